"""A weight as it is stored: one or several tensors and the format that explains them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.formats.quantisation import FP8_BLOCK


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A matrix [out, in] (or a vector) in its stored format.

    `parts` by format:
      float32, bfloat16, float16   weight [out, in]
      fp8_block                    weight float8_e4m3fn [out, in], scale float32 [out/128, in/128]
      nvfp4                        weight uint8 [out, in/2], scale float8_e4m3fn [out, in/16],
                                   scale_2 float32 []
      mxfp4                        weight uint8 [out, in/2], scale uint8 [out, in/32], where e
                                   means 2^(e - 127)
      q8_0 q4_0 q4_1 q4_k q6_k     weight uint8 [out, bytes of a row of GGUF blocks]
    An expert's matrix has a part bias [out] too where the model gives it one.
    """

    format: str
    shape: tuple[int, ...]
    parts: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())


@dataclass(frozen=True, eq=False)
class Run:
    """Matrices that lie end to end and so are one, with one bias [out] or None."""

    weight: StoredWeight
    bias: torch.Tensor | None
    rows: tuple[int, ...]
    """Of each of them."""


@dataclass(frozen=True, eq=False)
class Projections:
    """Matrices that multiply the same rows, each with its bias [out] or None."""

    weights: tuple[StoredWeight, ...]
    biases: tuple[torch.Tensor | None, ...]
    runs: tuple[Run, ...] = ()
    """The same in order, as few matrices as their formats allow. Empty if each lies by itself."""

    @staticmethod
    def end_to_end(
        weights: Sequence[StoredWeight], biases: Sequence[torch.Tensor | None]
    ) -> Projections:
        """Lays neighbours of one format end to end; what is returned has views of that memory."""
        runs: list[Run] = []
        group: list[int] = []
        laid: list[StoredWeight] = []
        for place in range(len(weights)):
            group.append(place)
            last = place + 1 == len(weights)
            if (
                not last
                and _can_follow(weights[place], weights[place + 1])
                and (biases[place] is None) == (biases[place + 1] is None)
            ):
                continue
            own = [weights[each] for each in group]
            added = [bias for each in group if (bias := biases[each]) is not None]
            bias = _rows_in_one(added) if added else None
            run = Run(_joined(own), bias, tuple(w.shape[0] for w in own))
            runs.append(run)
            laid += _rows_of(run)
            group = []
        return Projections(tuple(laid), tuple(biases), tuple(runs))


def _can_follow(first: StoredWeight, second: StoredWeight) -> bool:
    """Whether both can be one matrix: not with a global scale, nor across a block of scales."""
    if first.format != second.format or first.shape[1:] != second.shape[1:]:
        return False
    whole = first.format != "fp8_block" or first.shape[0] % FP8_BLOCK == 0
    return whole and "scale_2" not in first.parts


def _joined(weights: Sequence[StoredWeight]) -> StoredWeight:
    if len(weights) == 1:
        return weights[0]
    first = weights[0]
    parts = {name: _rows_in_one([w.parts[name] for w in weights]) for name in first.parts}
    rows = sum(weight.shape[0] for weight in weights)
    return StoredWeight(first.format, (rows, *first.shape[1:]), parts)


def _rows_in_one(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first = tensors[0]
    if first.is_meta:
        # To join what has no data would import torch's compiler, which takes seconds.
        rows = sum(tensor.shape[0] for tensor in tensors)
        return first.new_empty((rows, *first.shape[1:]))
    # As bytes: not every torch joins float8.
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(first.dtype)


def _rows_of(run: Run) -> list[StoredWeight]:
    if len(run.rows) == 1:
        return [run.weight]
    weights, start, whole = [], 0, run.weight
    for rows in run.rows:
        parts = {}
        for name, part in whole.parts.items():
            # A row of fp8_block's scales is that of a block of rows.
            each = FP8_BLOCK if name == "scale" and whole.format == "fp8_block" else 1
            parts[name] = part[start // each : -(-(start + rows) // each)]
        weights.append(StoredWeight(whole.format, (rows, *whole.shape[1:]), parts))
        start += rows
    return weights
