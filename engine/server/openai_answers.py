"""What OpenAI clients read: the shapes of whole answers and of chunks."""

from __future__ import annotations

import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from engine.chat.parsers.events import CallArguments, CallOpened, OutputEvent, Reasoning, Text
from engine.chat.tokenizer import Tokenizer
from engine.server.blocks import Block
from engine.server.collected import Completed
from engine.server.generation import Ended, Started
from engine.server.output import Delta, TokenText

LOWEST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for an impossible token."""

JsonObject = dict[str, Any]


class Answer(ABC):
    """The identity of one or several choices, and the pieces they are sent in."""

    prefix: ClassVar[str]
    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, tokenizer: Tokenizer, *, logprobs: bool, n: int = 1) -> None:
        """`n`: choices that share one prompt."""
        self.id = self.prefix + uuid.uuid4().hex
        self.created = int(time.time())
        self.model = model
        self.tokenizer = tokenizer
        self.logprobs = logprobs
        self.n = n

    def whole(self, choices: Sequence[Completed]) -> JsonObject:
        shown = [
            {
                "index": index,
                **self._content(done, index),
                "logprobs": self._logprobs(done.tokens) if self.logprobs else None,
                "finish_reason": done.ended.reason,
            }
            for index, done in enumerate(choices)
        ]
        counted = self.usage([(done.started, done.ended) for done in choices])
        return {**self._envelope(self.whole_object, shown), "usage": counted}

    @abstractmethod
    def opening(self, index: int) -> Iterable[JsonObject]:
        """Chunks before a choice's first text."""

    def deltas(self, index: int, delta: Delta) -> Iterable[JsonObject]:
        logprobs = self._logprobs(delta.tokens) if self.logprobs else None
        events = delta.events
        if not events or (delta.tokens and not any(isinstance(each, Text) for each in events)):
            events = (Text(""), *events)
        for event in events:
            change = self._delta(event)
            if change is None:
                continue
            own, logprobs = (logprobs, None) if isinstance(event, Text) else (None, logprobs)
            yield self._chunk(index, change, own, None)

    def ending(self, index: int, ended: Ended) -> JsonObject:
        return self._chunk(index, self._no_delta(), None, ended.reason)

    def usage_chunk(self, counts: Sequence[tuple[Started, Ended]]) -> JsonObject:
        return {**self._envelope(self.chunk_object, []), "usage": self.usage(counts)}

    def usage(self, counts: Sequence[tuple[Started, Ended]]) -> JsonObject:
        """A prompt that several choices share counts once."""
        prompt = sum(ended.prompt_tokens for _, ended in counts[:: self.n])
        made = sum(ended.completion_tokens for _, ended in counts)
        cached = sum(started.cached_tokens for started, _ in counts[:: self.n])
        reasoning = sum(ended.reasoning_tokens for _, ended in counts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": made,
            "total_tokens": prompt + made,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def _chunk(
        self, index: int, change: JsonObject, logprobs: Any, reason: str | None
    ) -> JsonObject:
        choice = {"index": index, **change, "logprobs": logprobs, "finish_reason": reason}
        return self._envelope(self.chunk_object, [choice])

    def _envelope(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    @abstractmethod
    def _content(self, done: Completed, index: int) -> JsonObject: ...

    @abstractmethod
    def _delta(self, event: OutputEvent) -> JsonObject | None:
        """None: a client is not told of this event."""

    @abstractmethod
    def _no_delta(self) -> JsonObject: ...

    @abstractmethod
    def _logprobs(self, tokens: Sequence[TokenText]) -> JsonObject: ...


class ChatAnswer(Answer):
    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> Iterable[JsonObject]:
        first = {"delta": {"role": "assistant", "content": ""}}
        return (self._chunk(index, first, None, None),)

    def _content(self, done: Completed, _index: int) -> JsonObject:
        calls = [
            {"id": call_id(), "type": "function", "function": _function(call)}
            for call in done.calls
        ]
        message: JsonObject = {
            "role": "assistant",
            "content": None if calls and not done.text else done.text,
            "refusal": None,
        }
        if reasoning := done.joined("reasoning"):
            message |= _reasoning(reasoning)
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _delta(self, event: OutputEvent) -> JsonObject | None:
        match event:
            case Text():
                return {"delta": {"content": event.text}}
            case Reasoning():
                return {"delta": _reasoning(event.text)}
            case CallOpened():
                opened = {"id": call_id(), "type": "function"}
                called = {"name": event.name, "arguments": ""}
                call = {"index": event.index, **opened, "function": called}
                return {"delta": {"tool_calls": [call]}}
            case CallArguments():
                call = {"index": event.index, "function": {"arguments": event.text}}
                return {"delta": {"tool_calls": [call]}}
        return None

    def _no_delta(self) -> JsonObject:
        return {"delta": {}}

    def _logprobs(self, tokens: Sequence[TokenText]) -> JsonObject:
        return {"content": logprob_entries(self.tokenizer, tokens), "refusal": None}


def _reasoning(text: str) -> JsonObject:
    """Under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def _function(call: Block) -> JsonObject:
    return {"name": call.name, "arguments": call.content}


def call_id() -> str:
    return "call_" + uuid.uuid4().hex[:24]


def logprob_entries(tokenizer: Tokenizer, tokens: Sequence[TokenText]) -> list[JsonObject]:
    def entry(token: int, logprob: float) -> JsonObject:
        return {
            "token": tokenizer.token_label(token),
            "logprob": finite(logprob),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    return [
        {
            **entry(token.token, token.logprob),
            "top_logprobs": [entry(other.token, other.logprob) for other in token.top],
        }
        for token in tokens
    ]


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB) if not math.isnan(logprob) else LOWEST_LOGPROB
