"""Numbers as people read them."""

from __future__ import annotations

import math

_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")
_STORAGE_STEPS = ("B", "kB", "MB", "GB", "TB")
_RATE_STEPS = ("B/s", "kB/s", "MB/s", "GB/s", "TB/s")


def size(count: float) -> str:
    """Bytes in binary units, as memory is sold: 1.5 GiB."""
    return _scaled(count, 1024, _STEPS)


def storage(count: float) -> str:
    """Bytes in decimal units, as disks and downloads are: 22.0 GB."""
    return _scaled(count, 1000, _STORAGE_STEPS)


def rate(per_second: float) -> str:
    """Bytes a second in decimal units, as links are sold: 54.4 GB/s."""
    return _scaled(per_second, 1000, _RATE_STEPS)


def duration(seconds: float) -> str:
    """340 ms, 1.24 s, 2 min 5 s, 3 h 20 min."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def short_time(seconds: float) -> str:
    """840 µs, 3.42 ms, 1.24 s: what steps and parts of them take."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 99.95e-3:
        return f"{seconds * 1e3:.{2 if seconds < 9.995e-3 else 1}f} ms"
    return duration(seconds)


def uptime(seconds: float) -> str:
    """43 s, 2 min 5 s, 3 h 20 min: no finer than it matters."""
    return f"{int(seconds)} s" if seconds < 60 else duration(seconds)


def count(number: int) -> str:
    """12,345 up to a hundred thousand, then 123 k, 4.5 M."""
    if number < 100_000:
        return f"{number:,}"
    if number < 1_000_000:
        return f"{number / 1000:.0f} k"
    if number < 1_000_000_000:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e9:.1f} G"


def counted(number: int, thing: str) -> str:
    """1 token, 2 tokens, 12,345 tokens."""
    return f"{count(number)} {thing}{'' if number == 1 else 's'}"


def times(number: int) -> str:
    """once, twice, 3 times."""
    return {1: "once", 2: "twice"}.get(number, f"{count(number)} times")


def speed(per_second: float) -> str:
    """Tokens a second, without the unit: 8.42, 42.1, 137."""
    if per_second <= 0:
        return "0"
    if per_second < 9.995:
        return f"{per_second:.2f}"
    return f"{per_second:.1f}" if per_second < 99.95 else f"{per_second:,.0f}"


def percent(share: float) -> str:
    """0.873 is 87.3 %; a share that is not quite whole never reads 100 %."""
    value = 100 * share
    if 99.95 <= value < 100:
        return "99.9 %"
    return f"{value:.0f} %" if value in (0.0, 100.0) else f"{value:.1f} %"


def round_up(value: float) -> float:
    """The next of 1, 2, 3, 5 and 8 times a power of ten: the upper end of a scale. 0 stays 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 5, 8, 10) if value <= step * power * (1 + 1e-9))


def _scaled(value: float, base: int, steps: tuple[str, ...]) -> str:
    if value <= 0:
        return f"0 {steps[0]}"
    index = 0
    while value >= base * 0.9995 and index < len(steps) - 1:
        value /= base
        index += 1
    if index == 0:
        return f"{value:.0f} {steps[0]}"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {steps[index]}"
