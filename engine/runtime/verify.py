"""`headrace verify`: backends beside a float32 reference, and bits that must be equal.

Settings of one group must give the same bits: on a GPU all experts in slots or few of them, after
evictions, after a prompt that was streamed, captured or not; in host memory, of float32, in place
or from slots. Every setting must be as near to the reference as its tolerance says.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import Tensor

from engine.experts.store import pool_needs
from engine.memory.budget import PAGE_TOKENS, check_cache_rate, slots_for_rate
from engine.memory.device import resolve_device
from engine.options import DtypeName, EngineOptions
from engine.runtime import bench_result
from engine.runtime.bench_result import Result
from engine.runtime.loading import load, open_model
from engine.runtime.parts import Parts
from engine.runtime.threads import apply_threads
from engine.runtime.verify_figures import Figures, measured
from engine.runtime.verify_reference import reference_logits
from engine.runtime.verify_steps import Forced, Replayed, Steps, evict
from engine.runtime.verify_table import Outcome, rows
from engine.runtime.verify_text import Text, load_text

Kind = Literal["cpu", "sim", "cuda"]
BACKENDS: dict[Kind, tuple[DtypeName, ...]] = {
    "cpu": ("float32", "bfloat16"),
    "sim": ("float32",),
    "cuda": ("bfloat16",),
}
"""What each device computes in here; the devices in their order."""
RATES = (0.05, 0.12, 0.37, 0.75)
EVICTED = 16
"""Experts of each pool that are forgotten before every step, where any are."""
SEED = 1


@dataclass(frozen=True)
class Choices:
    """What to verify."""

    model: str = "demo"
    layers: int = 0
    """Only the first ones; 0: all."""
    devices: Sequence[Kind] = ()
    """None: cpu, and cuda where there is one, else sim."""
    rates: Sequence[float] = RATES
    """Shares of the experts in slots, beside all of them."""
    text: Path | None = None
    prompt_tokens: int = 64
    tokens: int = 64
    """Decode steps."""
    replays: int = 0
    """Steps with random routing, each computed captured and plain."""
    sequences: int = 8
    """At most so many decode in one of these steps."""
    reference: Literal["auto", "cpu", "cuda"] = "auto"
    """What computes the reference; auto: cuda, if it is among the devices."""
    threads: int = 0


@dataclass(frozen=True)
class Setting:
    """A way to compute, of a loaded model."""

    name: str
    rate: float | None = None
    """None: as loaded, with all experts in slots where there are slots."""
    captured: bool = True
    evicted: bool = False
    streamed: bool = False


@dataclass(frozen=True)
class Verdict:
    result: Result
    outcomes: list[Outcome]
    reference: Figures
    failures: list[str]
    """Sentences, each with the setting's name: what is not equal, and what is too far off."""


@dataclass
class _Judge:
    """Compares as results come, and keeps no logits but a group's first."""

    text: Text
    reference: Tensor
    rounded: Figures | None = None
    """Of torch's own operations in bfloat16, if any setting is of bfloat16."""
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _first: dict[str, tuple[str, Tensor, Figures]] = field(default_factory=dict)

    def take(self, name: str, group: str, dtype: DtypeName, forced: Forced) -> None:
        if group not in self._first:
            figures = measured(forced.logits, self.reference, self.text.targets)
            outcome = Outcome(name, figures)
            self._first[group] = name, forced.logits, figures
        else:
            base, logits, figures = self._first[group]
            # As bits: a NaN is equal to itself, and the two zeros are not.
            same = (forced.logits.view(torch.int32) == logits.view(torch.int32)).all(-1)
            apart = (~same).nonzero().flatten().tolist()
            if apart:
                figures = measured(forced.logits, self.reference, self.text.targets)
                self.failures.append(
                    f"{name} is not equal to {base}: the logits of {len(apart)} of "
                    f"{len(logits)} steps differ, first of step {apart[0]}"
                )
            outcome = Outcome(name, figures, base, len(apart))
        if excess := figures.excess(self.rounded if dtype == "bfloat16" else None):
            self.failures.append(f"{name} is too far from the reference: {excess}")
        self.outcomes.append(outcome)

    def take_replayed(self, name: str, replayed: Replayed) -> None:
        self.outcomes.append(Outcome(name, None, f"{name} plain", replayed.mismatched, replayed))
        if replayed.mismatched:
            self.failures.append(
                f"{name}: {replayed.mismatched} of {replayed.steps} steps differ from plain ones"
            )


def verify(choices: Choices) -> Verdict:
    """Raises InvalidRequest for choices that contradict each other, and what loading raises."""
    for rate in choices.rates:
        check_cache_rate(rate)
    devices = _devices(choices)
    apply_threads(choices.threads)
    options = _options(choices)
    checkpoint, spec = open_model(options)
    wanted = choices.prompt_tokens, choices.tokens
    text = load_text(choices.model, choices.text, spec.vocab_size, *wanted)
    on = choices.reference
    if on == "auto":
        on = "cuda" if "cuda" in devices else "cpu"
    _say(f"the float32 reference on {on}")
    place = resolve_device(on)
    judge = _Judge(text, reference_logits(checkpoint, spec, text, place))
    if any("bfloat16" in BACKENDS[kind] for kind in devices):
        name = "torch bfloat16"
        _say(name)
        logits = reference_logits(checkpoint, spec, text, place, torch.bfloat16)
        judge.rounded = measured(logits, judge.reference, text.targets)
        judge.outcomes.append(Outcome(name, judge.rounded))
    model = checkpoint.display_name
    del checkpoint
    _let_go()
    for kind, dtypes in BACKENDS.items():
        for dtype in dtypes if kind in devices else ():
            _one_device(judge, choices, options, kind, dtype)
            _let_go()
    reference = measured(judge.reference, judge.reference, text.targets)
    last = [kind for kind in BACKENDS if kind in devices][-1]
    result = Result(
        bench="verify",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=model,
        machine=bench_result.machine(resolve_device(last)),
        rows=rows(reference, judge.outcomes),
        notes=[
            f"{text.name}: a prompt of {text.prompt} tokens, then {text.decoded} decode steps",
            f"reference: float32, torch's operations on {on}",
            *(spec.notes if choices.layers else ()),
            *judge.notes,
        ],
    )
    return Verdict(result, judge.outcomes, reference, judge.failures)


def _devices(choices: Choices) -> tuple[Kind, ...]:
    if choices.devices:
        return tuple(choices.devices)
    return ("cpu", "cuda") if resolve_device("auto").kind == "cuda" else ("cpu", "sim")


def _options(choices: Choices) -> EngineOptions:
    context = choices.prompt_tokens + choices.tokens
    sequences = choices.sequences if choices.replays else 1
    return EngineOptions(
        model=choices.model,
        layers=choices.layers,
        threads=choices.threads,
        max_sequences=sequences,
        context_tokens=context,
        kv_tokens=sequences * -(-context // PAGE_TOKENS) * PAGE_TOKENS,
    )


def _one_device(
    judge: _Judge, choices: Choices, options: EngineOptions, kind: Kind, dtype: DtypeName
) -> None:
    _say(f"loading for {kind}, {dtype}")
    parts = load(msgspec.structs.replace(options, device=kind, dtype=dtype))
    # What computes in host memory is one group, in place or from slots.
    group = dtype if parts.device.in_host_memory else kind
    steps = Steps(parts)
    try:
        for setting in _settings(parts, dtype, choices.rates, judge.notes):
            _say(setting.name)
            forced = _forced(steps, setting, judge.text)
            if setting.streamed and not forced.streamed:
                judge.notes.append(
                    f"{setting.name}: nothing was streamed, since a layer's experts have no room "
                    "in slots or none is absent"
                )
                continue
            if kind == "cuda" and setting.captured and forced.captured < judge.text.decoded:
                judge.notes.append(
                    f"{setting.name}: {forced.captured} of {judge.text.decoded} decode steps were "
                    "captured"
                )
            judge.take(setting.name, group, dtype, forced)
        if choices.replays and kind != "cpu":
            name = f"{kind} replays"
            if parts.experts is not None and choices.rates:
                rate = sorted(choices.rates)[len(choices.rates) // 2]
                _hold(parts, rate)
                name = f"{name} {rate:.0%}"
            _say(name)
            judge.take_replayed(name, steps.replay(choices.replays, SEED))
    finally:
        steps.close()


def _settings(
    parts: Parts, dtype: DtypeName, rates: Sequence[float], notes: list[str]
) -> list[Setting]:
    """The first one is what the others are compared with."""
    kind, experts = parts.device.kind, parts.experts
    captures = kind == "cuda"
    if not parts.device.has_slots or experts is None:
        found = [Setting(f"{kind} {dtype}")]
        return [*found, Setting(f"{kind} {dtype} plain", captured=False)] if captures else found
    offload, whole = ("cuda offload", "cuda fused") if captures else (kind, f"{kind} 100%")
    share = sum(experts.slots) / experts.experts_total
    if share < 1:
        whole = f"{offload} {share:.0%}"
        notes.append(f"{kind}: no more than {share:.0%} of the experts have room in slots")
    found = [Setting(whole)]
    if captures:
        found.append(Setting(f"{whole} plain", captured=False))
    for rate in sorted((rate for rate in rates if rate < share), reverse=True):
        name = f"{offload} {rate:.0%}"
        found.append(Setting(name, rate))
        if captures:
            found.append(Setting(f"{name} plain", rate, captured=False))
        found.append(Setting(f"{name} evicted", rate, evicted=True))
        found.append(Setting(f"{name} streamed", rate, streamed=True))
    return found


def _hold(parts: Parts, rate: float | None) -> None:
    """Have so many of the experts in slots; None: as many as there are."""
    experts = parts.experts
    if rate is None or experts is None:
        return
    slots = tuple(slots_for_rate(rate, need.blobs) for need in pool_needs(experts.store.plans))
    if slots != experts.slots:
        experts.resize(slots)


def _forced(steps: Steps, setting: Setting, text: Text) -> Forced:
    _hold(steps.parts, setting.rate)
    experts, draw = steps.parts.experts, random.Random(SEED)

    def forget() -> None:
        if experts is not None:
            evict(experts, draw, EVICTED)

    between = forget if setting.evicted else None
    return steps.force(text, captured=setting.captured, streamed=setting.streamed, between=between)


def _let_go() -> None:
    """Before the next model is loaded, this one's memory is the system's again."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _say(what: str) -> None:
    """On stderr: the table is alone on stdout."""
    print(f"headrace verify: {what}", file=sys.stderr)
