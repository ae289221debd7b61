"""Sampling defaults that a model's author put into generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from engine.errors import ModelConfigError
from engine.messages import Sampling

# generation_config's name -> (Sampling's name, smallest, largest)
_FIELDS: dict[str, tuple[str, float, float]] = {
    "temperature": ("temperature", 0.0, 1000.0),
    "top_p": ("top_p", 0.0, 1.0),
    "top_k": ("top_k", 0, 1 << 31),
    "min_p": ("min_p", 0.0, 1.0),
    "repetition_penalty": ("repetition_penalty", 1e-3, 1000.0),
}


def sampling_defaults(generation_config: dict[str, Any], origin: Path) -> Sampling:
    """The author's sampling, with what the file leaves open as in the API (temperature 1, no cuts).

    An explicit `do_sample: false` means greedy. Raises ModelConfigError naming file and field.
    """
    values: dict[str, float | int] = {}
    for name, (field, low, high) in _FIELDS.items():
        value = generation_config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelConfigError(f"{origin}: {name} is {value!r}, not a number.")
        if not low <= value <= high:
            raise ModelConfigError(f"{origin}: {name} is {value}, outside {low} to {high}.")
        values[field] = int(value) if field == "top_k" else float(value)
    if generation_config.get("do_sample") is False:
        values["temperature"] = 0.0
    return msgspec.convert(values, Sampling)
