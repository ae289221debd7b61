"""Which limit a prompt that is too long has met, and what would move it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from engine.chat.text_model import PromptTooLong
from engine.messages import Ready
from engine.options import EngineOptions


@contextlib.contextmanager
def explained(ready: Ready, options: EngineOptions) -> Iterator[None]:
    """Around what makes a prompt: a PromptTooLong leaves it with the remedy in its hint."""
    try:
        yield
    except PromptTooLong as error:
        error.hint = f"{error.hint} {remedy(ready, options)}".rstrip()
        raise


def remedy(ready: Ready, options: EngineOptions) -> str:
    """A sentence about the limit on a request's tokens, `ready.context_tokens`."""
    most = ready.model_context_tokens
    if ready.context_tokens >= most:
        return "The limit is the model's own: no option raises it."
    if 0 < options.context_tokens <= ready.context_tokens:
        return f"Or start Headrace with a larger --context: the model takes up to {most} tokens."
    if options.kv_tokens:
        return f"Or start Headrace with more --kv-tokens: the model takes up to {most} tokens."
    return (
        f"Memory holds no more; the model takes up to {most} tokens. Close other programs, or "
        "start Headrace with a lower --moe-cache-rate or fewer --max-sequences."
    )
