"""The routed experts of one layer, computed from blobs: torch reference.

Two steps. `moe_expert_rows` computes one row for each (token, route) whose expert is in the bank;
`moe_combine` adds a token's rows in the order of its routes. Apart from each other they let a layer
with more experts than slots be computed in groups, and the result is the same to the bit: a row
depends on its token and its expert only, and the sum's order on nothing but the route numbers.

A row must not depend on its neighbours either, and a plain matrix product breaks that: torch's CPU
product of 1 row and of 64 rows sum along K in different orders. So rows are computed in tiles of
one fixed height, padded with zeros. Elementwise functions need the same care: torch's vectorised
silu and the scalar one for what is left over at the end of a range differ in the last bit for 4 %
of values [2 cores, torch 2.13].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.formats.blob import PLAIN_FORMATS, BlobSpec
from engine.formats.nvfp4 import E2M1
from engine.formats.quantisation import FP8_BLOCK, NVFP4_GROUP
from engine.kernels.registry import operation

TILE_ROWS = 16
"""A [1024, 2048] product of 1 row takes 0.98 / 1.22 / 1.61 ms in tiles of 8 / 16 / 32 rows, one of
64 rows 8.1 / 4.9 / 3.3 ms [one EPYC core, MKL]: 16 serves decode and prefill."""
DECODED_BYTES = 32 << 20
"""Weights decoded to float32 at once: many small experts a call, or one large one."""
_SERIAL_ELEMENTS = 32768
"""Elementwise work above this is split over threads (at::internal::GRAIN_SIZE)."""


@operation("moe_experts")
def moe_experts(bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, weights: Tensor) -> Tensor:
    """Sum over a token's routes j of weights[:, j] * down(silu(gate(x)) * up(x)) of its experts.

    bank uint8 [N, stride], x [T, H], slots int64 [T, k] rows of the bank, weights float32 [T, k].
    Returns [T, H] in x's dtype; sums are float32. Raises ValueError for a slot outside the bank.
    """
    if slots.numel() and int(slots.min()) < 0:
        raise ValueError(f"slot {int(slots.min())} is not in the bank")
    rows = torch.empty((*slots.shape, x.shape[1]), dtype=torch.float32, device=x.device)
    moe_expert_rows(bank, spec, x, slots, rows)
    return moe_combine(rows, weights, x.dtype)


@operation("moe_expert_rows")
def moe_expert_rows(bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Write rows[t, j] (float32 [T, k, H]) for every route whose slot is not negative.

    Other rows stay as they are. Raises ValueError for a slot beyond the bank.
    """
    plan = _plan(slots)
    if not plan.slots:
        return
    if plan.slots[-1] >= bank.shape[0]:
        raise ValueError(f"slot {plan.slots[-1]} is not in the bank of {bank.shape[0]}")
    padded = torch.cat([x.to(torch.float32), x.new_zeros((1, x.shape[1]), dtype=torch.float32)])
    tiles = padded[plan.tokens].view(-1, TILE_ROWS, x.shape[1])
    out = torch.empty_like(tiles)
    first_tile = 0
    for begin in range(0, len(plan.slots), _experts_at_once(spec)):
        end = begin + _experts_at_once(spec)
        heights = plan.heights[begin:end]
        last_tile = first_tile + sum(heights)
        chosen = slice(first_tile, last_tile)
        _feed_forward(bank, spec, plan.slots[begin:end], heights, tiles[chosen], out[chosen])
        first_tile = last_tile
    rows.view(-1, x.shape[1])[plan.routes] = out.view(-1, x.shape[1])[plan.places]


@operation("moe_combine")
def moe_combine(rows: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    """rows float32 [T, k, H] weighed by float32 [T, k] and added in the order of the routes.

    Products and sums are rounded one by one (no fused multiply-add), so no value depends on where
    in memory it lies. Returns [T, H] in `dtype`.
    """
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


def _experts_at_once(spec: BlobSpec) -> int:
    elements = spec.hidden * spec.intermediate
    if elements % 16:
        # Matrix products may differ by their operands' alignment: each expert then begins an
        # allocation of its own, which is aligned to 64 bytes whatever its place in the group.
        return 1
    return max(1, DECODED_BYTES // (3 * 4 * elements))


def _feed_forward(
    bank: Tensor,
    spec: BlobSpec,
    slots: list[int],
    heights: list[int],
    tiles: Tensor,
    out: Tensor,
) -> None:
    """out = down(silu(gate(tiles)) * up(tiles)); tiles and out are float32 [n, TILE_ROWS, H]."""
    inner = spec.intermediate
    hidden = tiles.new_empty((tiles.shape[0], TILE_ROWS, 2 * inner))
    _tile_products(tiles, decode(bank, spec, "gate_up", slots), heights, hidden)
    flat = hidden.view(-1, 2 * inner)
    active = _silu_rows(flat[:, :inner]).mul_(flat[:, inner:])
    _tile_products(
        active.view(-1, TILE_ROWS, inner), decode(bank, spec, "down", slots), heights, out
    )


def _tile_products(
    tiles: Tensor, matrices: Sequence[Tensor], heights: list[int], out: Tensor
) -> None:
    tile = 0
    for matrix, height in zip(matrices, heights, strict=True):
        transposed = matrix.t()
        for index in range(tile, tile + height):
            torch.mm(tiles[index], transposed, out=out[index])
        tile += height


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


def decode(bank: Tensor, spec: BlobSpec, matrix: str, slots: Sequence[int]) -> Sequence[Tensor]:
    """The float32 matrices "gate_up" [2I, H] or "down" [H, I] of these slots.

    Each value is the product that the format defines, in float32, rounded once.
    """
    storage = spec.gate_up_format if matrix == "gate_up" else spec.down_format
    weight = part_view(bank, spec, f"{matrix}.weight")
    if storage == "float32":
        return [weight[slot] for slot in slots]
    index = torch.tensor(slots, dtype=torch.int64, device=bank.device)
    stored = weight[index]
    if storage in PLAIN_FORMATS:
        return stored.to(torch.float32).unbind(0)
    scale = part_view(bank, spec, f"{matrix}.scale")[index]
    if storage == "fp8_block":
        return _decode_fp8_block(stored, scale).unbind(0)
    globals_ = part_view(bank, spec, f"{matrix}.scale_2")[index]
    return _decode_nvfp4(stored, scale, globals_).unbind(0)


def _decode_fp8_block(codes: Tensor, scale: Tensor) -> Tensor:
    """codes e4m3 [n, m * rows, columns], scale float32 [n, m, rows / 128, columns / 128]."""
    count, matrices, _, _ = scale.shape
    stacked, columns = codes.shape[1:]
    rows = stacked // matrices
    wide = scale.repeat_interleave(FP8_BLOCK, 2)[:, :, :rows]
    wide = wide.repeat_interleave(FP8_BLOCK, 3)[..., :columns]
    return codes.to(torch.float32).mul_(wide.reshape(count, stacked, columns))


def _decode_nvfp4(packed: Tensor, scale: Tensor, globals_: Tensor) -> Tensor:
    """packed uint8 [n, m * rows, K / 2], scale e4m3 [n, m * rows, K / 16], globals float32 [n, m].

    A table of 256 pairs, read as one 8-byte word each: 0.85 ms for [1024, 2048] where looking up
    every nibble takes 8.4 [one EPYC core].
    """
    count, stacked, half = packed.shape
    words = _pairs(packed.device).index_select(0, packed.reshape(-1).to(torch.int32))
    values = words.view(torch.float32).view(count, stacked, 2 * half // NVFP4_GROUP, NVFP4_GROUP)
    rows = stacked // globals_.shape[1]
    step = scale.to(torch.float32) * globals_.repeat_interleave(rows, 1).unsqueeze(-1)
    return values.mul_(step.unsqueeze(-1)).view(count, stacked, 2 * half)


_PAIRS: dict[torch.device, Tensor] = {}


def _pairs(device: torch.device) -> Tensor:
    """float64 [256]: word b holds the float32 values of the low and the high nibble of byte b."""
    if device not in _PAIRS:
        values = torch.tensor([*E2M1, *(-value for value in E2M1)], dtype=torch.float32)
        pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=1)
        _PAIRS[device] = pairs.view(torch.float64).reshape(-1).to(device)
    return _PAIRS[device]
