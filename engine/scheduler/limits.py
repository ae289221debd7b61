"""Bounds that one engine's requests live within, and the refusal of those that cannot."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.messages import Submit


@dataclass(frozen=True)
class Limits:
    """`kv_tokens` is what all pages together hold; one request alone can use all of it."""

    context_tokens: int
    kv_tokens: int
    vocab_size: int
    chunk_tokens: int
    max_sequences: int
    max_waiting: int

    def __post_init__(self) -> None:
        for name in ("context_tokens", "kv_tokens", "vocab_size", "chunk_tokens", "max_sequences"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_waiting < 0:
            raise InvalidRequest(f"max_waiting is {self.max_waiting}; it must not be negative")

    @property
    def request_tokens(self) -> int:
        """Longest prompt plus output that one request can have."""
        return min(self.context_tokens, self.kv_tokens)

    def clip(self, submit: Submit) -> int:
        """The request's max_tokens as far as context and KV pages allow.

        Raises InvalidRequest for a malformed request, ContextLengthExceeded when not even one token
        fits behind the prompt.
        """
        self._validate(submit)
        prompt = len(submit.tokens)
        if prompt + 1 > self.request_tokens:
            if self.context_tokens <= self.kv_tokens:
                bound, remedy = (
                    f"the context of {self.context_tokens} tokens",
                    "Shorten the prompt.",
                )
            else:
                bound = f"the {self.kv_tokens} tokens that the KV memory holds"
                remedy = "Shorten the prompt, or start the engine with more kv_tokens."
            raise ContextLengthExceeded(
                f"The prompt has {prompt} tokens; with one token of output it exceeds {bound}.",
                hint=remedy,
                param="messages",
            )
        return min(submit.max_tokens, self.request_tokens - prompt)

    def _validate(self, submit: Submit) -> None:
        if not submit.tokens:
            raise InvalidRequest("The prompt has no tokens.", param="messages")
        lowest, highest = min(submit.tokens), max(submit.tokens)
        if lowest < 0 or highest >= self.vocab_size:
            wrong = lowest if lowest < 0 else highest
            raise InvalidRequest(
                f"The prompt has token {wrong}; the vocabulary ends at {self.vocab_size - 1}.",
                param="messages",
            )
        if submit.max_tokens < 1:
            raise InvalidRequest(
                f"max_tokens is {submit.max_tokens}; it must be at least 1.", param="max_tokens"
            )
        if not -1 <= submit.logprobs <= self.vocab_size:
            raise InvalidRequest(
                f"logprobs is {submit.logprobs}; it must lie between -1 and {self.vocab_size}.",
                param="top_logprobs",
            )
