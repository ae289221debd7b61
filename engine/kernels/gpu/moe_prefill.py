"""The routed experts of many tokens: routes sorted by slot, then products of tiles of them.

Three small kernels sort: count the routes of each slot, lay the counts end to end in whole tiles,
and put every route in its place. Which of a slot's places a route gets depends on the order in
which programs run, and no bit of its row does. Then gate and up with their activation, and down,
which leaves a float32 row for each route; `moe_combine` adds a token's in the order of its routes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.blob import BlobSpec, blob_spec
from engine.kernels.gpu.ahead import ARCHITECTURES, Ahead
from engine.kernels.gpu.architecture import architecture
from engine.kernels.gpu.codes import NVFP4
from engine.kernels.gpu.linear_many import Tile
from engine.kernels.gpu.moe_decode import matrix_constants
from engine.kernels.gpu.tiles import add_product

_COUNTED_AT_ONCE = 256


@triton.jit(do_not_specialize=["routes"])
def count_kernel(slots, counts, ranks, routes, BLOCK: tl.constexpr):
    """counts [N] of zeros becomes the routes of each slot; ranks[route] is its place among them."""
    route = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + route, mask=route < routes, other=-1)
    rank = tl.atomic_add(counts + slot, 1, mask=slot >= 0)
    tl.store(ranks + route, rank, mask=slot >= 0)


@triton.jit(do_not_specialize=["banks"])
def ends_kernel(counts, ends, banks, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr):
    """ends[slot]: tiles of BLOCK_M routes up to and with this slot's."""
    before = 0
    for first in range(0, banks, BLOCK):
        slot = first + tl.arange(0, BLOCK)
        tiles = (tl.load(counts + slot, mask=slot < banks, other=0) + BLOCK_M - 1) // BLOCK_M
        tl.store(ends + slot, before + tl.cumsum(tiles, 0), mask=slot < banks)
        before += tl.sum(tiles, 0)


@triton.jit(do_not_specialize=["routes"])
def place_kernel(
    slots, ranks, counts, ends, order, routes, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr
):
    """order [tiles * BLOCK_M] of -1 gets the routes, each slot's from a whole tile on."""
    route = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + route, mask=route < routes, other=-1)
    mask = slot >= 0
    count = tl.load(counts + slot, mask=mask, other=0)
    first = tl.load(ends + slot, mask=mask, other=0) - (count + BLOCK_M - 1) // BLOCK_M
    rank = tl.load(ranks + route, mask=mask, other=0)
    tl.store(order + first * BLOCK_M + rank, route, mask=mask)


@triton.jit
def slot_of_tile(ends, tile, banks):
    """The slot whose routes this tile has; `banks` if there is no such tile. Binary search."""
    low = 0
    high = banks
    while low < high:
        middle = (low + high) // 2
        after = tl.load(ends + middle) <= tile
        low = tl.where(after, middle + 1, low)
        high = tl.where(after, high, middle)
    return low


@triton.jit(do_not_specialize=["banks"])
def prefill_gate_up_kernel(
    weights,
    scales,
    floats,
    biases,
    x,
    order,
    ends,
    inner,
    banks,
    ROUTES: tl.constexpr,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    STRIDE: tl.constexpr,
    SCALE_ITEM: tl.constexpr,
    WEIGHT_AT: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBAL_AT: tl.constexpr,
    BIAS_AT: tl.constexpr,
    BIAS_ITEM: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    WEIGHT_ITEM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """inner bfloat16 [tiles * BLOCK_M, INNER], in the order of `order`."""
    tiles_n: tl.constexpr = (INNER + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0) // tiles_n
    slot = slot_of_tile(ends, tile, banks).to(tl.int64)
    if slot >= banks:
        return
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    route = tl.load(order + place)
    wanted = route >= 0
    n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < INNER
    matrix = weights + slot * (STRIDE // WEIGHT_ITEM) + WEIGHT_AT // WEIGHT_ITEM
    steps = scales + slot * (STRIDE // SCALE_ITEM) + SCALE_AT // SCALE_ITEM
    in_row: tl.constexpr = HIDDEN // PER if WEIGHT_ITEM == 4 else HIDDEN
    # fp8_block has scales for blocks of 128 rows, and gate's and up's blocks of their own.
    up_scales: tl.constexpr = (INNER + 127) // 128 if SCALE_ITEM == 4 else INNER
    x_rows = x + (tl.maximum(route, 0) // ROUTES).to(tl.int64)[None, :] * HIDDEN
    gate = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for first in range(0, HIDDEN, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        mask = wanted[None, :] & (columns < HIDDEN)[:, None]
        rows = tl.load(x_rows + columns[:, None], mask=mask, other=0.0)
        gate = add_product(
            gate,
            rows,
            matrix,
            steps,
            n,
            first,
            there,
            HIDDEN,
            SCALES,
            FORMAT,
            PER,
            BLOCK_N,
            BLOCK_K,
        )
        up = add_product(
            up,
            rows,
            matrix + INNER * in_row,
            steps + up_scales * SCALES,
            n,
            first,
            there,
            HIDDEN,
            SCALES,
            FORMAT,
            PER,
            BLOCK_N,
            BLOCK_K,
        )
    if FORMAT == NVFP4:
        globals_ = floats + slot * (STRIDE // 4) + GLOBAL_AT // 4
        gate = gate * tl.load(globals_)
        up = up * tl.load(globals_ + 1)
    if BIAS_ITEM > 0:
        bias = biases + slot * (STRIDE // BIAS_ITEM) + BIAS_AT // BIAS_ITEM
        gate += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + INNER + n, mask=there, other=0.0).to(tl.float32)[:, None]
    active = gate * tl.sigmoid(gate) * up
    at = place.to(tl.int64)[None, :] * INNER + n[:, None]
    tl.store(inner + at, active.to(inner.dtype.element_ty), mask=wanted[None, :] & there[:, None])


@triton.jit(do_not_specialize=["banks"])
def prefill_down_kernel(
    weights,
    scales,
    floats,
    biases,
    inner,
    order,
    ends,
    y,
    banks,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    STRIDE: tl.constexpr,
    SCALE_ITEM: tl.constexpr,
    WEIGHT_AT: tl.constexpr,
    SCALE_AT: tl.constexpr,
    GLOBAL_AT: tl.constexpr,
    BIAS_AT: tl.constexpr,
    BIAS_ITEM: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    WEIGHT_ITEM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """y float32 [routes, HIDDEN]: the row of each route in `order`."""
    tiles_n: tl.constexpr = (HIDDEN + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0) // tiles_n
    slot = slot_of_tile(ends, tile, banks).to(tl.int64)
    if slot >= banks:
        return
    place = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    route = tl.load(order + place)
    wanted = route >= 0
    n = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    there = n < HIDDEN
    matrix = weights + slot * (STRIDE // WEIGHT_ITEM) + WEIGHT_AT // WEIGHT_ITEM
    steps = scales + slot * (STRIDE // SCALE_ITEM) + SCALE_AT // SCALE_ITEM
    inner_rows = inner + place.to(tl.int64)[None, :] * INNER
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for first in range(0, INNER, BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        mask = wanted[None, :] & (columns < INNER)[:, None]
        rows = tl.load(inner_rows + columns[:, None], mask=mask, other=0.0)
        total = add_product(
            total,
            rows,
            matrix,
            steps,
            n,
            first,
            there,
            INNER,
            SCALES,
            FORMAT,
            PER,
            BLOCK_N,
            BLOCK_K,
        )
    if FORMAT == NVFP4:
        total = total * tl.load(floats + slot * (STRIDE // 4) + GLOBAL_AT // 4)
    if BIAS_ITEM > 0:
        bias = biases + slot * (STRIDE // BIAS_ITEM) + BIAS_AT // BIAS_ITEM
        total += tl.load(bias + n, mask=there, other=0.0).to(tl.float32)[:, None]
    at = tl.maximum(route, 0).to(tl.int64)[None, :] * HIDDEN + n[:, None]
    tl.store(y + at, total, mask=wanted[None, :] & there[:, None])


def tile_for(arch: int) -> Tile:
    """Not of the number of tokens: the order of summation must not depend on it."""
    if arch not in (80, 90):
        return Tile(64, 64, 64, 4, 3)
    # Tall tiles decode a weight for more tokens. Of nine, these were the fastest on an H200.
    return Tile(128, 64, 64, 4, 3)


class Sorted:
    """Routes by slot, on the device."""

    def __init__(self, slots: Tensor, banks: int, height: int, experts: int = 0) -> None:
        """slots int [T, k], negative: left out; `banks` slots there are, of which `experts`
        different ones are named at most (0: all); tiles of `height`."""
        routes = slots.numel()
        device = slots.device
        self.most_tiles = routes // height + min(routes, experts or banks)
        self.ends = torch.empty(banks, dtype=torch.int32, device=device)
        self.order = torch.full((self.most_tiles * height,), -1, dtype=torch.int32, device=device)
        counts = torch.zeros(banks, dtype=torch.int32, device=device)
        ranks = torch.empty(routes, dtype=torch.int32, device=device)
        grid = (triton.cdiv(routes, _COUNTED_AT_ONCE),)
        count_kernel[grid](slots, counts, ranks, routes, BLOCK=_COUNTED_AT_ONCE)
        ends_kernel[(1,)](counts, self.ends, banks, BLOCK_M=height, BLOCK=1024)
        place_kernel[grid](
            slots,
            ranks,
            counts,
            self.ends,
            self.order,
            routes,
            BLOCK_M=height,
            BLOCK=_COUNTED_AT_ONCE,
        )


def prefill_rows(
    bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, rows: Tensor, experts: int = 0
) -> None:
    """Write rows[t, j] (float32 [T, k, H]) of every route whose slot is not negative.

    bank uint8 [N, stride], x bfloat16 [T, H], slots int [T, k] that name at most `experts` blobs
    (0: all). Other rows stay as they are.
    """
    routes, arch = slots.shape[1], architecture(x.device)
    gate_up, down = matrix_constants(spec, "gate_up"), matrix_constants(spec, "down")
    up_tile = tile_for(arch)
    down_tile = tile_for(arch)
    if up_tile.m != down_tile.m:
        raise ValueError("both matrices' tiles must be of one height: they share the order")
    order = Sorted(slots, bank.shape[0], up_tile.m, experts)
    inner = torch.empty(
        (len(order.order), spec.intermediate), dtype=torch.bfloat16, device=x.device
    )
    for kernel, matrix, storage, tile, source, target, columns in (
        (
            prefill_gate_up_kernel,
            gate_up,
            spec.gate_up_format,
            up_tile,
            x,
            inner,
            spec.intermediate,
        ),
        (prefill_down_kernel, down, spec.down_format, down_tile, inner, rows, spec.hidden),
    ):
        weight_type = torch.bfloat16 if storage == "bfloat16" else torch.int32
        more = {"ROUTES": routes} if kernel is prefill_gate_up_kernel else {}
        kernel[(order.most_tiles * triton.cdiv(columns, tile.n),)](
            bank.view(weight_type),
            bank.view(matrix.scale_type),
            bank.view(torch.float32),
            bank.view(matrix.bias_type),
            source,
            order.order,
            order.ends,
            target,
            bank.shape[0],
            WEIGHT_ITEM=weight_type.itemsize,
            **more,
            **matrix.constants,
            **tile.constants,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


def _ahead(arch: int) -> tuple[Ahead, ...]:
    """Cases with the tiles of one architecture."""
    cases = []
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4"):
        spec = blob_spec(storage, 2048, 512)
        tile = tile_for(arch)
        weight = "*bf16" if storage == "bfloat16" else "*i32"
        types = {
            "weights": weight,
            "scales": "*fp32" if storage == "fp8_block" else "*u8",
            "floats": "*fp32",
            "biases": "*fp32",
        }
        for name, kernel, source, target in (
            ("gate_up", prefill_gate_up_kernel, ("x", "*bf16"), ("inner", "*bf16")),
            ("down", prefill_down_kernel, ("inner", "*bf16"), ("y", "*fp32")),
        ):
            more = {"ROUTES": 8} if name == "gate_up" else {}
            cases.append(
                Ahead(
                    f"prefill {name} {storage}",
                    kernel,
                    {
                        **types,
                        source[0]: source[1],
                        "order": "*i32",
                        "ends": "*i32",
                        target[0]: target[1],
                        "banks": "i32",
                    },
                    {
                        **more,
                        **matrix_constants(spec, name).constants,
                        "WEIGHT_ITEM": 2 if storage == "bfloat16" else 4,
                        **tile.constants,
                    },
                    tile.warps,
                    tile.stages,
                    architectures=(arch,),
                )
            )
    return tuple(cases)


AHEAD = tuple(case for arch in ARCHITECTURES for case in _ahead(arch))
