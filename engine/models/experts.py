"""Where a checkpoint keeps the routed experts: a tensor for each matrix, or all experts in one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from engine.errors import UnsupportedModel
from engine.formats.blob import PLAIN_FORMATS
from engine.formats.checkpoint import Checkpoint, wrong_tensor
from engine.formats.expert_tensors import ExpertTensors
from engine.formats.weight import StoredWeight
from engine.models.spec import ModelSpec, MoeSpec

_PACKED_PER_BYTE = 2
"""NVFP4 holds two weights in a uint8."""


def expert_tensors(spec: ModelSpec, checkpoint: Checkpoint, layer: int) -> list[ExpertTensors]:
    """As `registry.expert_tensors`, of a checkpoint under the hub's plain names."""
    moe = spec.moe
    if moe is None or layer not in spec.moe_layers:
        raise ValueError(f"layer {layer} of family {spec.family} has no routed experts")
    base = f"model.layers.{layer}.mlp.experts"
    if checkpoint.has(f"{base}.gate_up_proj"):
        return _fused(checkpoint, base, moe, spec.hidden)
    return [_separate(checkpoint, f"{base}.{e}", moe, spec.hidden) for e in range(moe.experts)]


def _separate(checkpoint: Checkpoint, base: str, moe: MoeSpec, hidden: int) -> ExpertTensors:
    shapes = {
        "gate_proj": (moe.intermediate, hidden),
        "up_proj": (moe.intermediate, hidden),
        "down_proj": (hidden, moe.intermediate),
    }
    readers: list[Callable[[], StoredWeight]] = []
    for name, (rows, columns) in shapes.items():
        info = checkpoint.info(f"{base}.{name}.weight")
        stored = columns // _PACKED_PER_BYTE if info.dtype == "uint8" else columns
        if info.shape != (rows, stored):
            raise wrong_tensor(
                info, f"has shape {list(info.shape)}, the config implies {[rows, stored]}"
            )
        readers.append(partial(checkpoint.weight, f"{base}.{name}"))
    return ExpertTensors(*readers)


def _fused(checkpoint: Checkpoint, base: str, moe: MoeSpec, hidden: int) -> list[ExpertTensors]:
    """gate_up_proj [E, 2I, H] (gate rows first) and down_proj [E, H, I]."""
    inner = moe.intermediate
    shapes = {
        f"{base}.gate_up_proj": (moe.experts, 2 * inner, hidden),
        f"{base}.down_proj": (moe.experts, hidden, inner),
    }
    for name, shape in shapes.items():
        info = checkpoint.info(name)
        if info.shape != shape:
            raise wrong_tensor(
                info, f"has shape {list(info.shape)}, the config implies {list(shape)}"
            )
        if info.dtype not in PLAIN_FORMATS:
            raise UnsupportedModel(
                f"{info.file}: {name} holds all experts as {info.dtype}; fused experts are read "
                f"only as {', '.join(PLAIN_FORMATS)}"
            )

    def part(name: str, expert: int, start: int, stop: int) -> StoredWeight:
        rows: Tensor = checkpoint.read(f"{base}.{name}")[expert, start:stop]
        return StoredWeight(
            str(rows.dtype).removeprefix("torch."), tuple(rows.shape), {"weight": rows}
        )

    return [
        ExpertTensors(
            partial(part, "gate_up_proj", e, 0, inner),
            partial(part, "gate_up_proj", e, inner, 2 * inner),
            partial(part, "down_proj", e, 0, hidden),
        )
        for e in range(moe.experts)
    ]
