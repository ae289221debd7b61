"""CPU experts beside a device: a block of memory that both see, and the thread that serves it.

The order of reads and writes is in `source/headrace_native.h`. Torch-free: memory comes and goes as
addresses, and whoever owns it keeps it until the coordinator is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_uint32, c_void_p
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from engine.errors import InvalidRequest, StepPoisoned
from engine.formats.blob import BlobSpec
from engine.native.library import (
    ACTIVATIONS,
    BFLOAT16,
    LATE,
    OK,
    OUT_OF_MEMORY,
    POISONED,
    DoorbellShape,
    Layer,
    Library,
    expert_layout,
)

_REASONS = {
    1: "the CPU's experts did not answer in time",
    2: "the step did not end in time",
    3: "the device stopped waiting for the CPU's experts",
    4: "the CPU's experts have been shut down",
}
_REFUSED = {1: "a wrong descriptor", 2: "a slot beyond the bank", 3: "a lack of memory"}
_FIRST_REFUSAL = 16

_kept: list[object] = []
"""What threads that did not end may still use."""


@dataclass(frozen=True)
class LayerBank:
    """One layer's blobs in host memory: `address` of the first, `blobs` of them, one a stride."""

    spec: BlobSpec
    address: int
    blobs: int
    activation: str = "silu_glu"


def doorbell_shape(
    native: Library, *, tokens: int, routes: int, hidden: int, x_type: int = BFLOAT16
) -> DoorbellShape:
    """Where the parts of a block for steps of up to so many tokens lie: `slots` [tokens, routes]
    int64, `x` [tokens, hidden] and `rows` [tokens, routes, hidden] float32 are offsets from its
    begin and `bytes` its size. Raises InvalidRequest for sizes that cannot be."""
    shape = DoorbellShape(tokens=tokens, routes=routes, hidden=hidden, x_type=x_type)
    if native.functions.headrace_doorbell_layout(byref(shape)) != OK:
        raise InvalidRequest(
            f"a step of {tokens} tokens, {routes} routes and {hidden} columns has no doorbell"
        )
    return shape


class Doorbell:
    """A block at an address, on a 64-byte boundary; the device's side, for devices that are CPUs.

    A step smaller than the largest uses the begin of each part.
    """

    def __init__(self, native: Library, shape: DoorbellShape, address: int) -> None:
        self._functions = native.functions
        self.shape = shape
        self.address = address

    def ring(self, layer: int, tokens: int, routes: int) -> int:
        """Hand over what lies in the block. Returns the number to wait for, 0 if no route has a
        slot. Raises ValueError for a step that the block cannot hold, StepPoisoned."""
        most = self.shape
        if layer < 0 or not (0 <= tokens <= most.tokens and 0 <= routes <= most.routes):
            raise ValueError(
                f"layer {layer} with {tokens} tokens and {routes} routes: the block is for up to "
                f"{most.tokens} and {most.routes}"
            )
        ticket = c_uint32()
        ring = self._functions.headrace_doorbell_ring
        if ring(self.address, layer, tokens, routes, byref(ticket)) == POISONED:
            self.check()
        return ticket.value

    def wait(self, ticket: int, seconds: float) -> None:
        """Until the rows of that number are there. Raises StepPoisoned, at the latest then."""
        wait = self._functions.headrace_doorbell_wait
        if wait(self.address, ticket, int(seconds * 1e9)) == POISONED:
            self.check()

    def check(self) -> None:
        """Raises StepPoisoned if no answer in this block counts any more; it says why."""
        reason = int(self._functions.headrace_doorbell_poison(self.address))
        if reason == 0:
            return
        refused = _REFUSED.get(reason - _FIRST_REFUSAL, f"code {reason}")
        why = _REASONS.get(reason, f"the CPU's experts refused a layer: {refused}")
        raise StepPoisoned(
            f"A step was given up: {why}.",
            hint="The engine restarts. If this repeats, report the log.",
        )


class Coordinator:
    """Serves one doorbell with the library's threads until it is closed. A context manager."""

    def __init__(
        self,
        native: Library,
        doorbell: Doorbell,
        layers: Sequence[LayerBank],
        *,
        answer_seconds: float = 10.0,
        cpu: int | None = None,
    ) -> None:
        """`layers` by their number in a request. A request that is not answered in
        `answer_seconds` poisons the block. `cpu`: where the thread runs, None for anywhere.

        Raises InvalidRequest if a layer does not fit the doorbell, MemoryError if the system has no
        thread for it.
        """
        self._doorbell = doorbell
        self._functions = native.functions
        self._layers = (Layer * len(layers))(*(_described(layer) for layer in layers))
        handle = c_void_p()
        self._handle: c_void_p | None = None
        status = self._functions.headrace_coordinator_open(
            self._layers,
            len(layers),
            byref(doorbell.shape),
            doorbell.address,
            int(answer_seconds * 1e9),
            -1 if cpu is None else cpu,
            byref(handle),
        )
        if status == OK:
            self._handle = handle
            return
        if status == OUT_OF_MEMORY:
            raise MemoryError("the system has no thread for the CPU's experts")
        widths = sorted({layer.spec.hidden for layer in layers})
        raise InvalidRequest(
            f"layers of hidden size {widths} do not fit a doorbell at {doorbell.address:#x} for "
            f"{doorbell.shape.hidden} columns and {answer_seconds} seconds"
        )

    def begin_step(self, seconds: float) -> None:
        """Before a device's step: be awake, and poison the block if it has not ended by then."""
        self._functions.headrace_coordinator_begin(self._open(), int(seconds * 1e9))

    def end_step(self) -> None:
        """After it. Raises StepPoisoned if its result does not count."""
        self._functions.headrace_coordinator_end(self._open())
        self._doorbell.check()

    @property
    def answers(self) -> int:
        """Requests answered so far."""
        return int(self._functions.headrace_coordinator_answers(self._open()))

    @property
    def busy_seconds(self) -> float:
        """That computing them took."""
        return float(self._functions.headrace_coordinator_busy_ns(self._open())) / 1e9

    def close(self, patience: float = 5.0, keep: object = None) -> bool:
        """End the thread and poison the block. False if it did not end in `patience` seconds: then
        it never may, and `keep` (what owns the block and the banks) is kept for good."""
        if self._handle is None:
            return True
        handle, self._handle = self._handle, None
        if self._functions.headrace_coordinator_close(handle, int(patience * 1e9)) != LATE:
            return True
        _kept.append((self, keep))
        return False

    def _open(self) -> c_void_p:
        if self._handle is None:
            raise ValueError("the coordinator is closed")
        return self._handle

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _described(layer: LayerBank) -> Layer:
    activation = ACTIVATIONS[layer.activation]
    return Layer(expert_layout(layer.spec), layer.address, layer.blobs, activation)
