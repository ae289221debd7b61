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
    """The figures of now, their counters raised by the earlier ones.

    The time to the first token is the earlier one until a request has had another.
    """
    sums = {name: getattr(now, name) + getattr(earlier, name) for name in _COUNTERS}
    return msgspec.structs.replace(
        now,
        ttft_s=now.ttft_s or earlier.ttft_s,
        ttft_worst_s=max(now.ttft_worst_s, earlier.ttft_worst_s),
        **sums,
    )
