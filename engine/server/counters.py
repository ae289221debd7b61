"""Figures that count up, over all runtimes that a server has had."""

from __future__ import annotations

import msgspec

from engine.messages import Stats

_COUNTERS = (
    "requests_finished",
    "requests_failed",
    "steps",
    "decode_tokens",
    "prefill_tokens",
    "expert_hits",
    "expert_misses",
    "expert_fills",
    "link_bytes",
)


def with_earlier(now: Stats, earlier: Stats) -> Stats:
    """The figures of now, their counters raised by the earlier ones."""
    sums = {name: getattr(now, name) + getattr(earlier, name) for name in _COUNTERS}
    return msgspec.structs.replace(now, **sums)
