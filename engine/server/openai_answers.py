"""What OpenAI clients read: the shapes of whole answers and of chunks."""

from __future__ import annotations

import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from engine.chat.tokenizer import Tokenizer
from engine.messages import TokenLogprob
from engine.server.generation import Ended, Started, TextDelta, TokenText

LOWEST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for an impossible token."""


class Answer(ABC):
    """One answer's identity, and the pieces it is sent in."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self.id = self.prefix + uuid.uuid4().hex
        self.created = int(time.time())
        self.model = model
        self.tokenizer = tokenizer
        self.logprobs = logprobs

    def whole(
        self, text: str, tokens: Sequence[TokenText], started: Started, ended: Ended
    ) -> dict[str, Any]:
        choice = {
            "index": 0,
            **self._content(text),
            "logprobs": self._logprobs(tokens) if self.logprobs else None,
            "finish_reason": ended.reason,
        }
        return {**self._envelope(self.whole_object, [choice]), "usage": usage(started, ended)}

    def opening(self) -> Iterable[dict[str, Any]]:
        """Chunks before the first text."""
        return ()

    def delta(self, event: TextDelta) -> dict[str, Any]:
        logprobs = self._logprobs(event.tokens) if self.logprobs else None
        return self._chunk(self._delta(event.text), logprobs, None)

    def ending(self, event: Ended) -> dict[str, Any]:
        return self._chunk(self._delta(None), None, event.reason)

    def usage_chunk(self, started: Started, ended: Ended) -> dict[str, Any]:
        return {**self._envelope(self.chunk_object, []), "usage": usage(started, ended)}

    def _chunk(self, delta: dict[str, Any], logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **delta, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope(self.chunk_object, [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    @abstractmethod
    def _content(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _delta(self, text: str | None) -> dict[str, Any]: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any]: ...


class ChatAnswer(Answer):
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> Iterable[dict[str, Any]]:
        return (self._chunk({"delta": {"role": "assistant", "content": ""}}, None, None),)

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _delta(self, text: str | None) -> dict[str, Any]:
        return {"delta": {} if text is None else {"content": text}}

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        entries = [
            {
                **self._entry(token.token, token.logprob),
                "top_logprobs": [self._entry(other.token, other.logprob) for other in token.top],
            }
            for token in tokens
        ]
        return {"content": entries, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.tokenizer.token_label(token),
            "logprob": finite(logprob),
            "bytes": list(self.tokenizer.token_bytes(token)),
        }


class CompletionAnswer(Answer):
    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, text: str | None) -> dict[str, Any]:
        return {"text": text or ""}

    def _logprobs(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        return {
            "tokens": [self.tokenizer.token_label(token.token) for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": [self._top(token.top) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _top(self, top: Sequence[TokenLogprob]) -> dict[str, float]:
        """By label, of which several tokens may have one (parts of characters): the likeliest."""
        labelled: dict[str, float] = {}
        for other in top:
            label = self.tokenizer.token_label(other.token)
            labelled[label] = max(finite(other.logprob), labelled.get(label, LOWEST_LOGPROB))
        return labelled


def usage(started: Started, ended: Ended) -> dict[str, Any]:
    return {
        "prompt_tokens": ended.prompt_tokens,
        "completion_tokens": ended.completion_tokens,
        "total_tokens": ended.prompt_tokens + ended.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": started.cached_tokens},
    }


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB) if not math.isnan(logprob) else LOWEST_LOGPROB
