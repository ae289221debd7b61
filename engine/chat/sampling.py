"""The ranges of sampling parameters, and the defaults that a model's author chose."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec

from engine.messages import Sampling

log = logging.getLogger("headrace.model")

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, (1 << 31) - 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0.01, 10),
}
"""Smallest and largest value: of requests in every protocol, and of generation_config.json.

A top_k of 0 or -1 cuts nothing; a top_p of 0 leaves the likeliest token only.
"""
_BY_AUTHORS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(generation_config: dict[str, Any], origin: Path) -> Sampling:
    """The author's sampling, with what the file leaves open as in the API (temperature 1, no cuts).

    An explicit `do_sample: false` means greedy. A value that cannot be is left out with a warning
    that names file and field: the model itself is sound, and requests can say what they want.
    """
    values: dict[str, float | int] = {}
    for name in _BY_AUTHORS:
        value = generation_config.get(name)
        if value is None:
            continue
        low, high = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            log.warning("%s: %s is %r, not a number; it is left out", origin, name, value)
        elif not low <= value <= high:
            log.warning(
                "%s: %s is %s, outside %g to %g; it is left out", origin, name, value, low, high
            )
        elif name == "top_k":
            values[name] = max(0, int(value))
        else:
            values[name] = float(value)
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    return msgspec.convert(values, Sampling)


def for_runtime(sampling: Sampling) -> Sampling:
    """The same in the runtime's terms, where top_p is a share that some token must have."""
    if sampling.top_p == 0:
        return msgspec.structs.replace(sampling, top_k=1, top_p=1.0)
    return sampling
