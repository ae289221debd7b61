"""A layer of the gated delta rule on a GPU: by kernels, where they can take its heads."""

from __future__ import annotations

from torch import Tensor

from engine.kernels import delta_layer as operations
from engine.kernels.chunk_table import ChunkTable
from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.gpu import delta_decode as decode
from engine.kernels.gpu import delta_prefill as prefill
from engine.kernels.gpu.delta_shapes import can_take


def delta_decode(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
    states: Tensor,
) -> Tensor:
    """As engine.kernels.delta_layer.delta_decode."""
    answer = decode.delta_decode if can_take(recurrent) else operations.delta_decode.reference
    return answer(qkv, z, b, a, parameters, conv, recurrent, states)


def delta_prefill(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
    table: ChunkTable,
    kept: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """As engine.kernels.delta_layer.delta_prefill."""
    answer = prefill.delta_prefill if can_take(recurrent) else operations.delta_prefill.reference
    return answer(qkv, z, b, a, parameters, conv, recurrent, table, kept)
