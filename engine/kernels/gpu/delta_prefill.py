"""Gated delta rule of many tokens: from the projections to what the output layer reads.

Four launches a layer: convolution, what chunks know without their states, the scan, norm and gate.
"""

from __future__ import annotations

from torch import Tensor

from engine.kernels.chunk_table import CHUNK, ChunkTable
from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.gpu.delta_conv import delta_conv
from engine.kernels.gpu.delta_scan import delta_scan
from engine.kernels.gpu.delta_shapes import DeltaShape, delta_shape
from engine.kernels.gpu.delta_within import FACTORS, delta_within
from engine.kernels.gpu.gated_norm import gated_norm


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
    """The rows of the table's runs: what the output projection reads, [rows, heads * value_dim].

    qkv [rows, channels], z [rows, value_heads * value_dim], b and a [rows, value_heads] are the
    input projections, rows of any stride; rows outside the table are left undefined. conv
    [states, channels, taps - 1] and recurrent float32 [states, value_heads, key_dim, value_dim] are
    one layer's views of the state pool, moved on in place; `kept` the same views of the pool that
    snapshots go to. A run's result depends on its rows, its states and its chunks alone.
    Raises ValueError if the table has snapshots and there is no pool for them.
    """
    shape = delta_shape(qkv, z, b, a, parameters, conv, recurrent)
    if table.keeps and kept is None:
        raise ValueError("the chunk table has snapshots, and no pool is given for them")
    mixed = delta_conv(qkv, parameters.conv_weight, conv, table, shape)
    made = delta_within(mixed, b, a, parameters, table, shape)
    pool = (conv, recurrent) if kept is None else kept
    out = delta_scan(qkv, mixed, made, conv, recurrent, table, shape, pool)
    return gated_norm(out, z, parameters.norm_weight, parameters.eps)


def prefill_bytes(shape: DeltaShape, rows: int, chunks: int, itemsize: int = 2) -> int:
    """Of device memory that `delta_prefill` takes at once beside its arguments."""
    width = shape.value_heads * shape.value_dim
    within = chunks * shape.value_heads * CHUNK * (2 * CHUNK + FACTORS) * 4
    return rows * shape.channels * itemsize + within + rows * width * (4 + itemsize)
