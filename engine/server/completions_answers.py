"""What clients of plain completions read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from engine.chat.parsers.events import OutputEvent, Text
from engine.chat.tokenizer import Tokenizer
from engine.messages import TokenLogprob
from engine.server.collected import Completed
from engine.server.openai_answers import LOWEST_LOGPROB, Answer, JsonObject, finite
from engine.server.output import TokenText


class CompletionAnswer(Answer):
    prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        n: int = 1,
        echoes: Sequence[str] = (),
    ) -> None:
        """`echoes`: the prompts, where they stand in front of the answers."""
        super().__init__(model, tokenizer, logprobs=logprobs, n=n)
        self._echoes = echoes

    def opening(self, index: int) -> Iterable[JsonObject]:
        if self._echo(index):
            yield self._chunk(index, {"text": self._echo(index)}, None, None)

    def _echo(self, index: int) -> str:
        return self._echoes[index // self.n] if self._echoes else ""

    def _content(self, done: Completed, index: int) -> JsonObject:
        return {"text": self._echo(index) + done.text}

    def _delta(self, event: OutputEvent) -> JsonObject | None:
        return {"text": event.text} if isinstance(event, Text) else None

    def _no_delta(self) -> JsonObject:
        return {"text": ""}

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
