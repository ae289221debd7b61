"""A weight as it is stored: one or several tensors and the format that explains them."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
class Projections:
    """Matrices that multiply the same rows, each with its bias [out] or None."""

    weights: tuple[StoredWeight, ...]
    biases: tuple[torch.Tensor | None, ...]
