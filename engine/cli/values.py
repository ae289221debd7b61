"""What options take: each reader turns a word of the command line into a value, or refuses it."""

from __future__ import annotations

import math
import re
from argparse import ArgumentTypeError
from collections.abc import Callable

from engine.options import API_KEY_RULE, is_api_key

_PORTS = {"http": ":80", "https": ":443"}
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def given(text: str) -> str:
    """Any text but a blank one: an empty variable of a script would otherwise pass as a value."""
    if not text.strip():
        raise ArgumentTypeError("nothing is given: the text is empty")
    return text


def host(text: str) -> str:
    """A host's name as clients write it, without scheme and port. Addresses need none."""
    if not text.strip():
        raise ArgumentTypeError("nothing is given: the text is empty")
    if not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?", text):
        raise ArgumentTypeError(f"{text!r} is no host name such as box.example, without a port")
    return text.rstrip(".")


def key(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("an empty key would let everybody in")
    if not is_api_key(text):
        raise ArgumentTypeError(API_KEY_RULE)
    return text


def origin(text: str) -> str:
    """An origin as browsers write it: in lower case, without a path and the scheme's own port."""
    if not text.strip():
        raise ArgumentTypeError("nothing is given: the text is empty")
    if text in ("*", "null"):
        return text
    match = re.fullmatch(
        r"([a-z][a-z0-9+.-]*)://([^/?#@\s:\[\]*]+|\[[0-9a-f:.]+\])(:\d+)?/?", text.lower()
    )
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no origin such as https://example.org or *")
    scheme, host, port = match.groups()
    return f"{scheme}://{host}{'' if port in (None, _PORTS.get(scheme)) else port}"


def whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low or (high is not None and value > high):
            bounds = f"{low} or more" if high is None else f"from {low} to {high}"
            raise ArgumentTypeError(f"{value} is out of range: it must be {bounds}")
        return value

    return parse


def number(
    low: float, high: float | None = None, *, above_low: bool = False
) -> Callable[[str], float]:
    """Finite numbers from `low` to `high`; `low` itself is left out with `above_low`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not a number") from None
        high_enough = value > low if above_low else value >= low
        if not high_enough or (high is not None and value > high) or math.isinf(value):
            least = f"above {low:g}" if above_low else f"{low:g} or more"
            most = "" if high is None else f" and at most {high:g}"
            raise ArgumentTypeError(f"{text} is out of range: it must be {least}{most}")
        return value

    return parse


def size(text: str) -> int:
    """Bytes of `8GiB`, `500MB`, `1.5g` and the like."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(|[kmg]i?)b?", text.strip().lower())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size such as 8GiB")
    return int(float(match.group(1)) * _UNITS[match.group(2)])
