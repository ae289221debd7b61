"""The routed experts of one layer, computed from blobs: torch reference.

Two steps. `moe_expert_rows` computes one row for each (token, route) whose expert is in the bank;
`moe_combine` adds a token's rows in the order of its routes. Apart from each other they let a layer
with more experts than slots be computed in groups, and the result is the same to the bit: a row
depends on its token and its expert only, and the sum's order on nothing but the route numbers.

A row must not depend on its neighbours either, and a plain matrix product breaks that: torch's CPU
product of 1 row and of 64 rows sum along K in different orders. So rows are computed in tiles of
one fixed height, padded with zeros. Elementwise functions need the same care: torch's vectorised
silu and the scalar one for what is left over at the end of a range can differ in the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from engine.formats.blob import PLAIN_FORMATS, BlobSpec
from engine.formats.quantisation import FP8_BLOCK
from engine.kernels.dequantise import (
    CACHE_BLOCK_WEIGHTS,
    dequantise_fp8_block,
    dequantise_mxfp4,
    dequantise_nvfp4,
)
from engine.kernels.registry import operation

TILE_ROWS = 8
"""Taller tiles decode a block for more rows of a prompt; shorter ones waste less on the one row
that decode gives an expert."""
_SERIAL_ELEMENTS = 32768
"""Elementwise work above this is split over threads (at::internal::GRAIN_SIZE)."""


_CUDA = "engine.kernels.gpu.experts"


@operation("moe_experts", cuda=_CUDA)
def moe_experts(
    bank: Tensor,
    spec: BlobSpec,
    x: Tensor,
    slots: Tensor,
    weights: Tensor | None,
    singles: int = 0,
    experts: int = 0,
) -> Tensor:
    """Sum over a token's routes j of weights[:, j] * down(silu(gate(x)) * up(x)) of its experts.

    bank uint8 [N, stride], x [T, H], slots int64 [T, k] rows of the bank, weights float32 [T, k].
    Returns [T, H] in x's dtype; sums are float32. Without weights: the rows, as `moe_combine`. The
    first `singles` rows of x are sequences of one token, which a GPU computes with other kernels.
    No more than `experts` different slots are named (0: the whole bank may be): a GPU makes room
    for so many.
    Raises ValueError for a slot outside the bank, except on a GPU, where that would have to be
    waited for.
    """
    if slots.numel() and int(slots.min()) < 0:
        raise ValueError(f"slot {int(slots.min())} is not in the bank")
    rows = torch.empty((*slots.shape, x.shape[1]), dtype=torch.float32, device=x.device)
    moe_expert_rows(bank, spec, x, slots, rows, singles, experts)
    return moe_combine(rows, weights, x.dtype)


@operation("moe_expert_rows", cuda=_CUDA)
def moe_expert_rows(
    bank: Tensor,
    spec: BlobSpec,
    x: Tensor,
    slots: Tensor,
    rows: Tensor,
    singles: int = 0,  # noqa: ARG001, for a GPU
    experts: int = 0,  # noqa: ARG001, for a GPU
) -> None:
    """Write rows[t, j] (float32 [T, k, H]) for every route whose slot is not negative.

    Other rows stay as they are. Arguments and errors are those of `moe_experts`.
    """
    plan = _plan(slots)
    if not plan.slots:
        return
    if plan.slots[-1] >= bank.shape[0]:
        raise ValueError(f"slot {plan.slots[-1]} is not in the bank of {bank.shape[0]}")
    hidden, inner = spec.hidden, spec.intermediate
    padded = torch.cat([x.to(torch.float32), x.new_zeros((1, hidden), dtype=torch.float32)])
    tiles = padded[plan.tokens].view(-1, TILE_ROWS, hidden)
    halves = tiles.new_empty((tiles.shape[0], TILE_ROWS, 2 * inner))
    _products(tiles, bank, spec, "gate_up", plan, halves)
    flat = halves.view(-1, 2 * inner)
    active = _silu_rows(flat[:, :inner]).mul_(flat[:, inner:]).view(-1, TILE_ROWS, inner)
    out = torch.empty_like(tiles)
    _products(active, bank, spec, "down", plan, out)
    rows.view(-1, hidden)[plan.routes] = out.view(-1, hidden)[plan.places]


@operation("moe_combine", cuda=_CUDA)
def moe_combine(rows: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    """rows float32 [T, k, H] weighed by float32 [T, k] and added in the order of the routes;
    without weights the rows themselves, for whoever adds them later.

    Products and sums are rounded one by one (no fused multiply-add), so no value depends on where
    in memory it lies. Returns [T, H] in `dtype`.
    """
    if weights is None:
        return rows
    weighed = rows * weights.to(torch.float32).unsqueeze(-1)
    total = weighed[:, 0]
    for route in range(1, rows.shape[1]):
        total = total + weighed[:, route]
    return total.to(dtype)


@dataclass(frozen=True)
class _Plan:
    """Which rows go where: routes grouped by slot, each group padded to whole tiles."""

    slots: list[int]
    """Distinct slots, ascending."""
    heights: list[int]
    """Tiles of each."""
    tokens: Tensor
    """int64 [tiles * TILE_ROWS]: token of each tile row; T (a row of zeros) where it is padding."""
    routes: Tensor
    """int64 [n]: flat (token, route) numbers that have a slot, grouped by it."""
    places: Tensor
    """int64 [n]: tile row of each of them."""


def _plan(slots: Tensor) -> _Plan:
    tokens, width = slots.shape
    grouped, routes = slots.reshape(-1).sort(stable=True)
    missing = int((grouped < 0).sum())
    grouped, routes = grouped[missing:], routes[missing:]
    distinct, counts = torch.unique_consecutive(grouped, return_counts=True)
    heights = (counts + (TILE_ROWS - 1)) // TILE_ROWS
    # A route's place is its rank in its group, counted from the group's first tile row.
    shift = (heights.cumsum(0) - heights) * TILE_ROWS - (counts.cumsum(0) - counts)
    places = torch.arange(len(routes), device=slots.device) + shift.repeat_interleave(counts)
    tile_rows = int(heights.sum()) * TILE_ROWS
    of_row = torch.full((tile_rows,), tokens, dtype=torch.int64, device=slots.device)
    of_row[places] = routes // width
    return _Plan(distinct.tolist(), heights.tolist(), of_row, routes, places)


def _products(
    tiles: Tensor, bank: Tensor, spec: BlobSpec, matrix: str, plan: _Plan, out: Tensor
) -> None:
    """out[tile] = tiles[tile] @ its expert's matrix transposed, plus its bias: float32
    [tiles, TILE_ROWS, _]."""
    first = list(accumulate(plan.heights, initial=0))
    for place, start, rows in decoded_blocks(bank, spec, matrix, plan.slots):
        transposed = rows.t()
        stop = start + rows.shape[0]
        for tile in range(first[place], first[place + 1]):
            torch.mm(tiles[tile], transposed, out=out[tile, :, start:stop])
    if spec.bias is not None:
        for place, bias in enumerate(part_view(bank, spec, f"{matrix}.bias")[plan.slots]):
            out[first[place] : first[place + 1]] += bias.to(torch.float32)


def _silu_rows(gate: Tensor) -> Tensor:
    """silu of [n, I], with a value's bits depending on its column only.

    Work that one thread does in one go treats every row alike; so does a single row. What torch
    would split at a place that depends on n is called in pieces.
    """
    if gate.numel() <= _SERIAL_ELEMENTS:
        return functional.silu(gate)
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    step = max(1, _SERIAL_ELEMENTS // gate.shape[1])
    for row in range(0, gate.shape[0], step):
        out[row : row + step] = functional.silu(gate[row : row + step])
    return out


def part_view(bank: Tensor, spec: BlobSpec, name: str) -> Tensor:
    """A part of every blob of the bank, without a copy: [N, *part.shape]."""
    part = spec.part(name)
    dtype: torch.dtype = getattr(torch, part.dtype)
    raw = bank[:, part.offset : part.offset + part.nbytes]
    return raw.view(dtype).view(bank.shape[0], *part.shape)


def decoded_blocks(
    bank: Tensor, spec: BlobSpec, matrix: str, slots: Sequence[int]
) -> Iterator[tuple[int, int, Tensor]]:
    """The matrices "gate_up" [2I, H] or "down" [H, I] of these slots, a block of rows at a time:
    (index in `slots`, first row, float32 rows), in order.

    Blocks stay in a core's cache from their decoding to their last product. Where they begin is a
    function of the layout alone. Each value is the product that the format defines, rounded once.
    """
    storage = spec.gate_up_format if matrix == "gate_up" else spec.down_format
    weight = part_view(bank, spec, f"{matrix}.weight")
    columns = spec.hidden if matrix == "gate_up" else spec.intermediate
    if storage == "float32":
        for place, slot in enumerate(slots):
            yield place, 0, weight[slot]
        return
    step = max(1, CACHE_BLOCK_WEIGHTS // columns)
    if storage in PLAIN_FORMATS:
        for place, slot in enumerate(slots):
            for start, rows in _row_blocks(weight[slot], step):
                yield place, start, rows.to(torch.float32)
        return
    scale = part_view(bank, spec, f"{matrix}.scale")
    if storage == "fp8_block":
        step = max(1, step // FP8_BLOCK) * FP8_BLOCK
        for place, slot in enumerate(slots):
            for start, rows in _fp8_blocks(weight[slot], scale[slot], step):
                yield place, start, rows
        return
    if storage == "mxfp4":
        for place, slot in enumerate(slots):
            for start, packed in _row_blocks(weight[slot], step):
                exponents = scale[slot, start : start + packed.shape[0]]
                yield place, start, dequantise_mxfp4(packed, exponents, torch.float32)
        return
    globals_ = part_view(bank, spec, f"{matrix}.scale_2")[list(slots)]
    # gate and up have a global of their own: one for each row of the packed matrix.
    by_row = globals_.repeat_interleave(weight.shape[1] // globals_.shape[1], 1).unsqueeze(-1)
    for place, slot in enumerate(slots):
        for start, packed in _row_blocks(weight[slot], step):
            block = slice(start, start + packed.shape[0])
            steps = scale[slot, block], by_row[place, block]
            yield place, start, dequantise_nvfp4(packed, *steps, torch.float32)


def _row_blocks(matrix: Tensor, step: int) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, matrix.shape[0], step):
        yield start, matrix[start : start + step]


def _fp8_blocks(codes: Tensor, scale: Tensor, step: int) -> Iterator[tuple[int, Tensor]]:
    """codes [m * rows, columns], scale [m, rows / 128, columns / 128]: m matrices with blocks of
    their own, so none crosses from gate into up."""
    rows = codes.shape[0] // scale.shape[0]
    for matrix, blocks in enumerate(scale):
        for start in range(0, rows, step):
            stop = min(rows, start + step)
            begin = matrix * rows + start
            yield (
                begin,
                dequantise_fp8_block(
                    codes[begin : matrix * rows + stop],
                    blocks[start // FP8_BLOCK : -(-stop // FP8_BLOCK)],
                    torch.float32,
                ),
            )
