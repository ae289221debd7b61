"""The expert store: every expert's blob in host memory, filled straight from the model's files.

One arena a layer, untouched until it is filled, so that loading never holds a second copy. The
store is the source of truth: slots only ever hold copies of what is here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import ModelFilesError, UnsupportedModel
from engine.experts.holding import Hold, Holding, Pin
from engine.formats.blob import BlobSpec, blob_spec
from engine.formats.expert_tensors import ExpertTensors
from engine.formats.tensor_info import FileRange
from engine.formats.weight import StoredWeight
from engine.kernels.gather import Banks
from engine.kernels.moe import part_view
from engine.memory.arena import HostArena
from engine.memory.budget import PoolNeed
from engine.native.file_reads import Reading, read_ranges
from engine.native.library import library

ExpertSource = Callable[[int], Sequence[ExpertTensors]]
"""The experts of a layer, in order of their numbers, by the layer's number in the model."""
BytesProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""
FileRanges = Callable[[Tensor], FileRange | None]
"""Where the bytes of a tensor lie in a file, as Checkpoint.file_range says."""


@dataclass(frozen=True)
class LayerPlan:
    """A layer's experts before any of them is read."""

    layer: int
    spec: BlobSpec
    experts: int

    @property
    def nbytes(self) -> int:
        """Bytes the layer takes in the store, padding included."""
        return self.experts * self.spec.stride


def plan_layers(source: ExpertSource, layers: Sequence[int]) -> list[LayerPlan]:
    """What each layer's blobs will be, by its first expert's formats and shapes.

    Raises UnsupportedModel or ModelFilesError for experts that no blob can hold.
    """
    plans = []
    for layer in layers:
        experts = source(layer)
        if not experts:
            raise ModelFilesError(f"layer {layer} is a MoE layer and has no experts")
        first = experts[0]
        plans.append(
            LayerPlan(layer, _spec_of(first.gate, first.up, first.down, layer, 0), len(experts))
        )
    return plans


def layers_by_stride(plans: Sequence[LayerPlan]) -> list[list[LayerPlan]]:
    """Layers that share a pool of slots; pools in the order in which their strides appear."""
    groups: dict[int, list[LayerPlan]] = {}
    for plan in plans:
        groups.setdefault(plan.spec.stride, []).append(plan)
    return list(groups.values())


def pool_needs(plans: Sequence[LayerPlan]) -> tuple[PoolNeed, ...]:
    """What the memory solver has to know of these layers."""
    return tuple(
        PoolNeed(stride=group[0].spec.stride, blobs=sum(plan.experts for plan in group))
        for group in layers_by_stride(plans)
    )


@dataclass(frozen=True)
class _StoredLayer:
    plan: LayerPlan
    bank: Tensor
    arena: HostArena

    @staticmethod
    def empty(plan: LayerPlan) -> _StoredLayer:
        """Memory for the layer that nothing has touched."""
        arena = HostArena(plan.nbytes, large=True)
        arena.commit(plan.nbytes)
        return _StoredLayer(
            plan, arena.view(0, (plan.experts, plan.spec.stride), torch.uint8), arena
        )


class _Told:
    """Tells what is in its place, in bytes of the store; never the same twice."""

    def __init__(self, plans: Sequence[LayerPlan], progress: BytesProgress | None) -> None:
        self._progress = progress
        self._total = sum(plan.nbytes for plan in plans)
        self._parts = sum(
            plan.experts * sum(part.nbytes for part in plan.spec.parts) for plan in plans
        )
        self._done = self._told = 0

    def add(self, nbytes: int) -> None:
        """So many more bytes of parts are in their place."""
        self._done += nbytes
        now = self._total * self._done // self._parts
        if self._progress is not None and now > self._told:
            self._told = now
            self._progress(now, self._total)

    def finish(self, reading: Reading) -> None:
        """Wait for the reading, and tell meanwhile how far it is."""
        before = self._done
        reading.finish(lambda done: self.add(before + done - self._done))


class ExpertStore:
    def __init__(self, layers: dict[int, _StoredLayer], holding: Holding) -> None:
        self._layers = layers
        self._holding = holding

    @staticmethod
    def load(
        source: ExpertSource,
        plans: Sequence[LayerPlan],
        progress: BytesProgress | None = None,
        *,
        file_range: FileRanges | None = None,
        pin: Pin | None = None,
        lock: bool = False,
    ) -> ExpertStore:
        """Read every expert of these layers.

        What `file_range` finds in a file is read from there into its place, and never through the
        tensor; other parts are copied. The next layer is looked through while one is read. `pin`
        lets a GPU read the layers by itself, as far as the system has memory for that; `lock` keeps
        the others from being swapped out, as far as the system permits it.

        Raises as `plan_layers` does, and ModelFilesError for a file that cannot be read, ends early
        or changes meanwhile.
        """
        told = _Told(plans, progress)
        layers: dict[int, _StoredLayer] = {}
        with Holding(pin, lock=lock) as holding, contextlib.ExitStack() as last:
            filling: tuple[_StoredLayer, Reading] | None = None
            for plan in plans:
                layers[plan.layer] = layer = _StoredLayer.empty(plan)
                ranges = _fill(layer, source(plan.layer), file_range, told)
                _complete(filling, told, holding)
                filling = layer, last.enter_context(read_ranges(library(), ranges))
            _complete(filling, told, holding)
            holding.finish()
        return ExpertStore(layers, holding)

    @property
    def plans(self) -> tuple[LayerPlan, ...]:
        return tuple(layer.plan for layer in self._layers.values())

    @property
    def nbytes(self) -> int:
        """Host memory that the store holds."""
        return sum(layer.arena.backed for layer in self._layers.values())

    def plan(self, layer: int) -> LayerPlan:
        return self._layers[layer].plan

    def bank(self, layer: int) -> Tensor:
        """All blobs of a layer: uint8 [experts, stride]. Nobody writes to it."""
        return self._layers[layer].bank

    def banks(self, layers: Sequence[int], device: torch.device) -> Banks:
        """These layers of one stride, for kernels of `device`: those of a GPU read pinned layers
        only."""
        tensors = tuple(self.bank(layer) for layer in layers)
        if device.type == "cpu":
            addresses = [bank.data_ptr() for bank in tensors]
        else:
            addresses = [self._holding.device_address(layer) for layer in layers]
        return Banks(tensors, torch.tensor(addresses, dtype=torch.int64, device=device))

    def hold(self, layer: int) -> Hold:
        """How the layer is held in host memory."""
        return self._holding.hold(layer)

    @property
    def pinned_bytes(self) -> int:
        """Of layers that a GPU reads by itself."""
        return self._holding.pinned_bytes

    @property
    def locked_bytes(self) -> int:
        """Of other layers that are never swapped out."""
        return self._holding.locked_bytes

    def close(self) -> None:
        """Unpin the layers; no kernel may read them from now on."""
        self._holding.close()


def _complete(filling: tuple[_StoredLayer, Reading] | None, told: _Told, holding: Holding) -> None:
    """Wait for a layer's reading, if there is one, and have the layer held."""
    if filling is not None:
        layer, reading = filling
        told.finish(reading)
        holding.add(layer.plan.layer, layer.arena, layer.bank)


def _spec_of(
    gate: StoredWeight, up: StoredWeight, down: StoredWeight, layer: int, number: int
) -> BlobSpec:
    where = f"expert {number} of layer {layer}"
    if gate.format != up.format:
        raise UnsupportedModel(f"{where}: gate is stored as {gate.format}, up as {up.format}")
    if len(gate.shape) != 2 or up.shape != gate.shape or down.shape != gate.shape[::-1]:
        raise ModelFilesError(
            f"{where}: gate {list(gate.shape)}, up {list(up.shape)} and down {list(down.shape)} "
            "do not make a feed-forward block"
        )
    inner, hidden = gate.shape
    biases = {_bias_type(weight) for weight in (gate, up, down)}
    if len(biases) > 1:
        raise UnsupportedModel(f"{where}: gate, up and down have biases of different kinds")
    return blob_spec(gate.format, hidden, inner, down.format, biases.pop())


def _described(spec: BlobSpec) -> str:
    return (
        f"{spec.gate_up_format} [{spec.intermediate}, {spec.hidden}] and {spec.down_format} "
        f"with {spec.bias or 'no'} biases"
    )


def _bias_type(weight: StoredWeight) -> str | None:
    bias = weight.parts.get("bias")
    return None if bias is None else str(bias.dtype).removeprefix("torch.")


def _fill(
    layer: _StoredLayer,
    experts: Sequence[ExpertTensors],
    file_range: FileRanges | None,
    told: _Told,
) -> list[tuple[FileRange, int]]:
    """Copy the parts that lie in no file; the others, each with its address, are returned."""
    ranges = []
    for number, expert in enumerate(experts):
        copied = 0
        for target, part in _parts(layer.bank[number], layer.plan, number, expert):
            found = file_range(part) if file_range is not None else None
            if found is not None:
                ranges.append((found, target.data_ptr()))
            else:
                target.copy_(part)
                copied += part.nbytes
        told.add(copied)
    return ranges


def _parts(
    blob: Tensor, plan: LayerPlan, number: int, expert: ExpertTensors
) -> Iterator[tuple[Tensor, Tensor]]:
    """(its place in the blob, tensor) of all parts, alike in dtype and shape."""
    gate, up, down = expert.gate, expert.up, expert.down
    spec = _spec_of(gate, up, down, plan.layer, number)
    if spec != plan.spec:
        raise UnsupportedModel(
            f"expert {number} of layer {plan.layer} is stored as {_described(spec)}, the layer's "
            f"first as {_described(plan.spec)}"
        )
    for matrix, weights in (("gate_up", (gate, up)), ("down", (down,))):
        for name in weights[0].parts:
            target = part_view(blob.unsqueeze(0), spec, f"{matrix}.{name}")[0]
            # Stacked rows, block scales with a leading index, biases and globals have one shape
            # here: the matrices of the blob, one after the other.
            stacked = target.view(len(weights), *_stored_shape(target, name, len(weights)))
            for index, weight in enumerate(weights):
                part = weight.parts[name]
                _require_alike(stacked[index], part, f"{matrix}.{name}", plan.layer, number)
                yield stacked[index], part


def _stored_shape(target: Tensor, name: str, matrices: int) -> tuple[int, ...]:
    """Shape of one matrix's share of a part."""
    first, *rest = target.shape
    leading = len(rest) == 2 or name == "scale_2"
    return tuple(rest) if leading else (first // matrices, *rest)


def _require_alike(target: Tensor, part: Tensor, name: str, layer: int, number: int) -> None:
    # A copy would convert or broadcast in silence.
    if part.dtype != target.dtype or part.shape != target.shape:
        raise ModelFilesError(
            f"expert {number} of layer {layer}: {name} is {part.dtype} {list(part.shape)}, "
            f"expected {target.dtype} {list(target.shape)}"
        )
