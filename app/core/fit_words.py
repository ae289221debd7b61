"""An estimate as people read it: a badge of a few words, and the lines behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.core import units
from engine.memory.fit import PROMPT_TOKENS, Fit
from engine.memory.pc import Pc
from engine.memory.speed import Range

Kind = Literal["good", "warn", "bad"]
BACKENDS = {
    "cpu": "on the CPU, from host memory",
    "offload": "on the GPU, with a part of the experts in VRAM",
    "fused": "on the GPU, with all weights in VRAM",
}


@dataclass(frozen=True)
class Badge:
    kind: Kind
    text: str


def badge(fit: Fit) -> Badge:
    """Whether it fits, in a line."""
    if fit.verdict == "too_large":
        return Badge("bad", f"Needs {missing(fit)}")
    speed = f"about {tokens(fit.decode.middle)} tok/s here" if fit.decode is not None else ""
    if fit.verdict == "when_free":
        return Badge("warn", f"Fits once {missing(fit)} is free, then {speed}")
    if fit.backend == "fused":
        return Badge("good", f"Fits, all in VRAM: {speed}")
    return Badge("good", f"Fits: needs {units.storage(fit.ram_least)} of memory, {speed}")


def missing(fit: Fit) -> str:
    """What is short, and how much of it."""
    parts = []
    if fit.ram_short:
        parts.append(f"{units.storage(fit.ram_short)} more memory")
    if fit.vram_short:
        parts.append(f"{units.storage(fit.vram_short)} more VRAM")
    return " and ".join(parts)


def details(fit: Fit) -> list[tuple[str, str]]:
    """What the estimate comes to: names and figures, in order."""
    lines = [("Runs", BACKENDS[fit.backend]), ("Memory", _amount(fit.ram, fit.ram_least))]
    if fit.vram_least:
        lines.append(("VRAM", _amount(fit.vram, fit.vram_least)))
    if short := missing(fit):
        lines.append(("Missing", short))
    if fit.budget is not None:
        lines.append(("Context", units.counted(fit.budget.context_tokens, "token")))
    if fit.hits is not None and fit.cached < 1:
        lines.append(("Experts in VRAM", _percent(Range(fit.cached, fit.cached))))
        lines.append(("Found there", _percent(fit.hits)))
    if fit.decode is not None:
        lines.append(("Answers", f"{_range(fit.decode)} tok/s"))
    if fit.prompt is not None:
        lines.append(("Reads prompts", f"{_range(fit.prompt)} tok/s"))
    if fit.first_token_s is not None:
        first = fit.first_token_s
        low, high = units.duration(first.low), units.duration(first.high)
        words = low if low == high else f"{low} to {high}"
        lines.append((f"First token after {units.counted(PROMPT_TOKENS, 'token')}", words))
    return lines


def _amount(taken: int, least: int) -> str:
    words = f"at least {units.storage(least)} free"
    return f"{units.storage(taken)}; {words}" if taken else words


def machine(pc: Pc) -> str:
    """This PC in a line."""
    parts = [f"{units.storage(pc.ram_total)} of memory, {units.storage(pc.ram_free)} free"]
    if pc.gpu is not None:
        vram, free = units.storage(pc.gpu.vram_total), units.storage(pc.gpu.vram_free)
        parts.append(f"{pc.gpu.name} with {vram} of VRAM, {free} free")
    else:
        parts.append("no NVIDIA GPU")
    return "  ·  ".join(parts)


def rates(pc: Pc) -> str:
    """Its two rates, and where they come from."""
    rates = [("Host memory", pc.host)]
    if pc.link is not None:
        rates.append(("Link to the GPU", pc.link))
    said = []
    for name, rate in rates:
        unmeasured = "" if rate.measured else "not measured yet: "
        said.append(f"{name}: {units.rate(rate.per_s)} ({unmeasured}{rate.source})")
    return "  ·  ".join(said)


def tokens(per_second: float) -> str:
    """An estimated rate: two figures are all that it is worth."""
    if per_second < 10:
        return f"{per_second:.1f}"
    step = 10 ** (len(str(int(per_second))) - 2)
    return f"{round(per_second / step) * step:,}"


def _range(value: Range) -> str:
    low, high = tokens(value.low), tokens(value.high)
    return low if low == high else f"{low} to {high}"


def _percent(value: Range) -> str:
    low, high = f"{100 * value.low:.0f}", f"{100 * value.high:.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"
