"""Runs an engine in-process and sorts its events by request."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from engine.context.batch import Batch
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.messages import (
    Admitted,
    AnyEvent,
    Finished,
    RequestFailed,
    Sampled,
    StepEnded,
    StepStarted,
    Submit,
)
from engine.options import EngineOptions
from engine.runtime.debug import DebugFaults
from engine.runtime.engine import Engine
from engine.runtime.loading import load
from engine.runtime.parts import Parts
from tests.runtime.conftest import VOCAB


@dataclass
class Driver:
    engine: Engine
    events: list[AnyEvent] = field(default_factory=list)

    def step(self, count: int = 1) -> list[AnyEvent]:
        new = [event for _ in range(count) for event in self.engine.step()]
        self.events += new
        return new

    def run(self, submits: Iterable[Submit] = (), most: int = 3000) -> Driver:
        for submit in submits:
            self.engine.submit(submit)
        for _ in range(most):
            if not self.engine.has_work:
                return self
            self.step()
        raise AssertionError(f"still working after {most} steps")

    def tokens(self, request: int) -> list[int]:
        return [each.token for each in self.sampled(request)]

    def sampled(self, request: int) -> list[Sampled]:
        return [e for e in self.events if isinstance(e, Sampled) and e.request == request]

    def end(self, request: int) -> Finished | RequestFailed:
        ends = [
            event
            for event in self.events
            if isinstance(event, Finished | RequestFailed) and event.request == request
        ]
        assert len(ends) == 1, f"request {request} ended {len(ends)} times"
        assert not any(
            isinstance(event, Sampled | Admitted) and event.request == request
            for event in self.events[self.events.index(ends[0]) :]
        )
        return ends[0]

    def steps(self) -> list[StepStarted]:
        started = [event for event in self.events if isinstance(event, StepStarted)]
        ended = [event.step for event in self.events if isinstance(event, StepEnded)]
        assert [event.step for event in started] == ended
        return started


class Interceptor:
    """A model whose forward goes through a function of the test's."""

    def __init__(
        self, parts: Parts, change: Callable[[Batch, Callable[[], torch.Tensor]], torch.Tensor]
    ) -> None:
        self._model = parts.model
        self._change = change
        parts.model = self

    def forward(self, batch: Batch, kv: KvPages, states: StatePool | None) -> torch.Tensor:
        return self._change(batch, lambda: self._model.forward(batch, kv, states))


def options(model: Path, **changes: object) -> EngineOptions:
    values: dict[str, object] = {"model": str(model), "device": "cpu", "threads": 1, **changes}
    return EngineOptions(**values)  # type: ignore[arg-type]


def driver(
    model: Path,
    debug: DebugFaults | None = None,
    prepare: Callable[[Parts], object] | None = None,
    **changes: object,
) -> Driver:
    parts = load(options(model, **changes))
    if prepare is not None:
        prepare(parts)
    return Driver(Engine(parts, debug or DebugFaults()))


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens, never the last of the vocabulary (tests mark requests with it)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB - 1, (length,), generator=generator).tolist()


def reference(model: Path, tokens: list[int], count: int) -> list[int]:
    """transformers' greedy continuation, in float32."""
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = list(tokens)
    with torch.no_grad():
        for _ in range(count):
            logits = loaded(torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
    return ids[len(tokens) :]
