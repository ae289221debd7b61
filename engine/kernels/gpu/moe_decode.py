"""The routed experts of a few tokens, read from slots by number: bound by reading the blobs.

Two kernels. Gate and up: one program for some inner columns of one (token, route). Down: one
program for some columns of one (token, route), a row each: their sum is `moe_combine`'s, which adds
in one order however a layer is cut into groups of experts. An expert that two tokens share is read
twice, the second time from the cache. No row depends on another, nor on where its blob lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.blob import BlobSpec, blob_spec
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.codes import NUMBERS, NVFP4, PER_WORD
from engine.kernels.gpu.moe_combine import combine
from engine.kernels.gpu.words import PAIR, row_sums, scale_rows, tile_rows

GATE_UP_ROWS, GATE_UP_WORDS, GATE_UP_WARPS = 4, 256, 4
"""Rows (of gate, and as many of up) and words of a program, and its warps."""
DOWN_ROWS, DOWN_WORDS, DOWN_WARPS = 16, 64, 4


@triton.jit
def gate_up_kernel(
    words,
    scales,
    floats,
    biases,
    x,
    slots,
    inner,
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
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """inner float32 [tokens * ROUTES, INNER] = silu(gate) * up; nothing where the slot is < 0.

    `words`, `scales`, `floats` and `biases` are the bank as int32, as its scales' type, as float32
    and as its biases' type; *_AT and STRIDE are bytes.
    """
    route = tl.program_id(0)
    slot = tl.load(slots + route).to(tl.int64)
    here = slot >= 0
    slot = tl.maximum(slot, 0)
    # Rows of gate and up by turns: the loads of both come before the sums of either.
    place = tl.arange(0, 2 * BLOCK_R)[:, None]
    own = tl.program_id(1) * BLOCK_R + place // 2
    rows = own + place % 2 * INNER
    # fp8_block has scales for blocks of 128 rows, and gate's and up's blocks of their own.
    blocks: tl.constexpr = (INNER + 127) // 128 if SCALE_ITEM == 4 else INNER
    sums = row_sums(
        words + slot * (STRIDE // 4) + WEIGHT_AT // 4,
        scales + slot * (STRIDE // SCALE_ITEM) + SCALE_AT // SCALE_ITEM,
        x + (route // ROUTES) * HIDDEN,
        rows,
        scale_rows(own, FORMAT) + place % 2 * blocks,
        (own < INNER) & here,
        HIDDEN // PER,
        SCALES,
        FORMAT,
        PER,
        2 * BLOCK_R,
        BLOCK_W,
    )
    gate, up = tl.split(tl.reshape(sums, (BLOCK_R, 2)))
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    there = (row < INNER) & here
    if FORMAT == NVFP4:
        globals_ = floats + slot * (STRIDE // 4) + GLOBAL_AT // 4
        gate = gate * tl.load(globals_, mask=here, other=0.0)
        up = up * tl.load(globals_ + 1, mask=here, other=0.0)
    if BIAS_ITEM > 0:
        bias = biases + slot * (STRIDE // BIAS_ITEM) + BIAS_AT // BIAS_ITEM
        gate += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
        up += tl.load(bias + INNER + row, mask=there, other=0.0).to(tl.float32)
    tl.store(inner + route * INNER + row, gate * tl.sigmoid(gate) * up, mask=there)


@triton.jit
def down_kernel(
    words,
    scales,
    floats,
    biases,
    inner,
    slots,
    y,
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
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    CLEAR: tl.constexpr,
):
    """y float32 [tokens * ROUTES, HIDDEN]: the expert's row of each route. Where the slot is < 0,
    zeros if CLEAR, else nothing."""
    route = tl.program_id(0)
    rows = tile_rows(tl.program_id(1) * BLOCK_R, BLOCK_R)
    slot = tl.load(slots + route).to(tl.int64)
    here = slot >= 0
    slot = tl.maximum(slot, 0)
    sums = row_sums(
        words + slot * (STRIDE // 4) + WEIGHT_AT // 4,
        scales + slot * (STRIDE // SCALE_ITEM) + SCALE_AT // SCALE_ITEM,
        inner + route * INNER,
        rows,
        scale_rows(rows, FORMAT),
        (rows < HIDDEN) & here,
        INNER // PER,
        SCALES,
        FORMAT,
        PER,
        BLOCK_R,
        BLOCK_W,
    )
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    there = (row < HIDDEN) & here
    if FORMAT == NVFP4:
        at = floats + slot * (STRIDE // 4) + GLOBAL_AT // 4
        sums = sums * tl.load(at, mask=here, other=0.0)
    if BIAS_ITEM > 0:
        bias = biases + slot * (STRIDE // BIAS_ITEM) + BIAS_AT // BIAS_ITEM
        sums += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    if CLEAR:
        # What a route that is not here left in `inner` may be anything.
        sums = tl.where(here, sums, 0.0)
        there = row < HIDDEN
    tl.store(y + route.to(tl.int64) * HIDDEN + row, sums, mask=there)


@dataclass(frozen=True)
class Matrix:
    """Constants of the kernels for one matrix of a blob."""

    constants: dict[str, int]
    scale_type: torch.dtype
    bias_type: torch.dtype


def matrix_constants(spec: BlobSpec, name: str) -> Matrix:
    """`name` is "gate_up" or "down"."""
    storage = spec.gate_up_format if name == "gate_up" else spec.down_format
    parts = {part.name: part for part in spec.parts}
    scale, bias = parts.get(f"{name}.scale"), parts.get(f"{name}.bias")
    scale_2 = parts.get(f"{name}.scale_2")
    scale_type = torch.float32 if storage == "fp8_block" else torch.uint8
    bias_type: torch.dtype = getattr(torch, spec.bias or "float32")
    return Matrix(
        {
            "HIDDEN": spec.hidden,
            "INNER": spec.intermediate,
            "STRIDE": spec.stride,
            "SCALE_ITEM": scale_type.itemsize,
            "WEIGHT_AT": parts[f"{name}.weight"].offset,
            "SCALE_AT": scale.offset if scale else 0,
            "GLOBAL_AT": scale_2.offset if scale_2 else 0,
            "BIAS_AT": bias.offset if bias else 0,
            "BIAS_ITEM": bias_type.itemsize if bias else 0,
            "SCALES": scale.shape[-1] if scale else 0,
            "FORMAT": NUMBERS[storage],
            "PER": PER_WORD[storage],
        },
        scale_type,
        bias_type,
    )


def can_read_blobs(spec: BlobSpec) -> bool:
    """Whether kernels of this package read these blobs."""
    formats = (spec.gate_up_format, spec.hidden), (spec.down_format, spec.intermediate)
    return all(f in NUMBERS and size % (PAIR * PER_WORD[f]) == 0 for f, size in formats)


def decode_rows(
    bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, rows: Tensor, *, clear: bool = False
) -> None:
    """Write rows[t, j] (float32 [T, k, H]) of every route whose slot is not negative.

    bank uint8 [N, stride], x [T, H], slots int [T, k]. Other rows become zero if `clear`, else they
    stay as they are. Sums and the inner activations are float32. Slots are not checked: they are
    the residency table's.
    """
    tokens, routes = slots.shape
    inner = torch.empty((tokens * routes, spec.intermediate), dtype=torch.float32, device=x.device)
    gate_up, down = matrix_constants(spec, "gate_up"), matrix_constants(spec, "down")
    words, floats = bank.view(torch.int32), bank.view(torch.float32)
    gate_up_kernel[(tokens * routes, triton.cdiv(spec.intermediate, GATE_UP_ROWS))](
        words,
        bank.view(gate_up.scale_type),
        floats,
        bank.view(gate_up.bias_type),
        x,
        slots,
        inner,
        ROUTES=routes,
        BLOCK_R=GATE_UP_ROWS,
        BLOCK_W=GATE_UP_WORDS,
        num_warps=GATE_UP_WARPS,
        **gate_up.constants,
    )
    down_kernel[(tokens * routes, triton.cdiv(spec.hidden, DOWN_ROWS))](
        words,
        bank.view(down.scale_type),
        floats,
        bank.view(down.bias_type),
        inner,
        slots,
        rows,
        BLOCK_R=DOWN_ROWS,
        BLOCK_W=DOWN_WORDS,
        CLEAR=clear,
        num_warps=DOWN_WARPS,
        **down.constants,
    )


def moe_decode(
    bank: Tensor,
    spec: BlobSpec,
    x: Tensor,
    slots: Tensor,
    weights: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """The sum of a token's routes, weighed by float32 [T, k]: [T, H] in x's dtype, written to `out`
    if given. Other arguments are those of `decode_rows`; a negative slot adds nothing."""
    rows = torch.empty((*slots.shape, x.shape[1]), dtype=torch.float32, device=x.device)
    decode_rows(bank, spec, x, slots, rows, clear=True)
    return combine(rows, weights, x.dtype, out)


def _ahead(storage: str, routes: int, hidden: int, inner: int) -> tuple[Ahead, Ahead]:
    spec = blob_spec(storage, hidden, inner)
    scale = "*fp32" if storage == "fp8_block" else "*u8"
    common = {"words": "*i32", "scales": scale, "floats": "*fp32", "biases": "*fp32"}
    shape = f"{storage} [{inner}, {hidden}] k={routes}"
    return (
        Ahead(
            f"gate_up {shape}",
            gate_up_kernel,
            {**common, "x": "*bf16", "slots": "*i64", "inner": "*fp32"},
            {
                "ROUTES": routes,
                "BLOCK_R": GATE_UP_ROWS,
                "BLOCK_W": GATE_UP_WORDS,
                **matrix_constants(spec, "gate_up").constants,
            },
            warps=GATE_UP_WARPS,
        ),
        Ahead(
            f"down {shape}",
            down_kernel,
            {**common, "inner": "*fp32", "slots": "*i64", "y": "*fp32"},
            {
                "BLOCK_R": DOWN_ROWS,
                "BLOCK_W": DOWN_WORDS,
                "CLEAR": True,
                **matrix_constants(spec, "down").constants,
            },
            warps=DOWN_WARPS,
        ),
    )


AHEAD = tuple(
    case
    for storage in ("bfloat16", "fp8_block", "nvfp4", "mxfp4")
    for case in _ahead(storage, 8, 2048, 512)
)
