"""Small random experts as a checkpoint would hand them out, and the same ones in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engine.formats import nvfp4
from engine.formats.expert_tensors import ExpertTensors
from engine.formats.weight import StoredWeight

FORMATS = ("float32", "bfloat16", "float16", "fp8_block", "nvfp4", "mxfp4")
GROUPS = {"nvfp4": 16, "mxfp4": 32}
"""Formats whose rows come in groups of so many columns."""


def store(weight: Tensor, storage: str) -> StoredWeight:
    """A float32 matrix in this format, rounded as needed."""
    shape = tuple(weight.shape)
    if storage == "nvfp4":
        packed, scale, scale_2 = nvfp4.quantise(weight)
        return StoredWeight(storage, shape, {"weight": packed, "scale": scale, "scale_2": scale_2})
    if storage == "mxfp4":
        groups = weight.view(shape[0], -1, 32)
        exponents = torch.ceil(torch.log2(groups.abs().amax(-1) / 6)).clamp(-127, 127)
        table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        scaled = groups / torch.exp2(exponents).unsqueeze(-1)
        codes = (scaled.abs().unsqueeze(-1) - table).abs().argmin(-1) + 8 * (scaled < 0)
        codes = codes.view(shape).to(torch.uint8)
        packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
        parts = {"weight": packed, "scale": (exponents + 127).to(torch.uint8)}
        return StoredWeight(storage, shape, parts)
    if storage == "fp8_block":
        rows, columns = -(-shape[0] // 128), -(-shape[1] // 128)
        scale = torch.rand(rows, columns) + 0.5
        wide = scale.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1)[:, : shape[1]]
        codes = (weight / wide).to(torch.float8_e4m3fn)
        return StoredWeight(storage, shape, {"weight": codes, "scale": scale})
    return StoredWeight(storage, shape, {"weight": weight.to(getattr(torch, storage))})


def plain(weight: StoredWeight) -> Tensor:
    """The float64 matrix that a stored weight means, element by element from the formats' text."""
    parts = weight.parts
    if weight.format in ("nvfp4", "mxfp4"):
        magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
        packed = parts["weight"].to(torch.int64)
        codes = torch.empty(weight.shape, dtype=torch.int64)
        codes[:, 0::2], codes[:, 1::2] = packed % 16, packed // 16
        out = magnitudes[codes % 8] * torch.where(codes >= 8, -1.0, 1.0)
        if weight.format == "mxfp4":
            exponents = parts["scale"].to(torch.float64) - 127
            return out * torch.exp2(exponents).repeat_interleave(32, 1)
        scale = parts["scale"].to(torch.float64).repeat_interleave(16, 1)
        return out * scale * parts["scale_2"].to(torch.float64)
    if weight.format == "fp8_block":
        wide = parts["scale"].to(torch.float64).repeat_interleave(128, 0)[: weight.shape[0]]
        wide = wide.repeat_interleave(128, 1)[:, : weight.shape[1]]
        return parts["weight"].to(torch.float64) * wide
    return parts["weight"].to(torch.float64)


@dataclass(frozen=True)
class RandomExperts:
    """`layers[l][e]` are (gate, up, down). Called with a layer, it is an ExpertSource."""

    layers: list[list[tuple[StoredWeight, StoredWeight, StoredWeight]]]

    @cached_property
    def plain(self) -> list[list[list[Tensor]]]:
        """`layers` as float64 matrices. They take longer to make than all that is done with one."""
        return [[[plain(weight) for weight in expert] for expert in layer] for layer in self.layers]

    def __call__(self, layer: int) -> Sequence[ExpertTensors]:
        return [as_tensors(*matrices) for matrices in self.layers[layer]]


def as_tensors(gate: StoredWeight, up: StoredWeight, down: StoredWeight) -> ExpertTensors:
    return ExpertTensors(lambda: gate, lambda: up, lambda: down)


def random_experts(
    storage: str | Sequence[str],
    *,
    experts: int,
    hidden: int,
    inner: int,
    seed: int = 0,
) -> RandomExperts:
    """One layer for each of the formats. Matrices of one expert have scales of their own."""
    torch.manual_seed(seed)
    formats = [storage] if isinstance(storage, str) else storage
    return RandomExperts(
        [
            [
                (
                    store(torch.randn(inner, hidden) * 0.2, kind),
                    store(torch.randn(inner, hidden) * 0.7, kind),
                    store(torch.randn(hidden, inner) * 0.3, kind),
                )
                for _ in range(experts)
            ]
            for kind in formats
        ]
    )
