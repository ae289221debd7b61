"""Router and shared expert of single tokens in two launches, which share the GPU.

The router alone leaves most of it idle, and no routed expert can start before it. So the first
launch has programs for logits, for gate and up of the shared expert, and for its scalar gate; the
second one that takes the best experts, and those of the shared expert's down. Every sum is of
words (`row_sums`), so no row depends on another. Rows of chunks take the kernels of many rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels import moe_layer as operations
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.codes import BFLOAT16, FLOAT32, NUMBERS, NVFP4, PER_WORD
from engine.kernels.gpu.linear_few import can_read, scale_arguments
from engine.kernels.gpu.router import pick_constants, pick_warps, take_best
from engine.kernels.gpu.words import row_sums, scale_rows, tile_rows
from engine.kernels.moe_layer import MoeEntry, SharedExpert

EXPERT_ROWS, EXPERT_WORDS = 2, 1024
"""Rows and words of a program: of the router,"""
INNER_ROWS, INNER_WORDS = 4, 256
"""of gate and of up,"""
DOWN_ROWS, DOWN_WORDS = 4, 64
"""and of down."""
FIRST_WARPS = 4


@triton.jit
def first_kernel(
    x,
    router,
    gate,
    gate_scales,
    gate_global,
    up,
    up_scales,
    up_global,
    scalar,
    logits,
    inner,
    opened,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    INNER: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK_E: tl.constexpr,
    WORDS_E: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    WORDS_G: tl.constexpr,
):
    """logits float32 [S, EXPERTS], inner float32 [S, INNER] = silu(gate) * up, and opened [S, 1],
    the product with the scalar gate. Without a shared expert INNER is 0."""
    token = tl.program_id(0)
    of_token = x + token * HIDDEN
    of_router: tl.constexpr = (EXPERTS + BLOCK_E - 1) // BLOCK_E
    of_inner: tl.constexpr = (INNER + BLOCK_R - 1) // BLOCK_R
    place = tl.program_id(1)
    if place < of_router:
        logits += token * EXPERTS
        _logits(logits, of_token, router, place * BLOCK_E, HIDDEN, EXPERTS, BLOCK_E, WORDS_E)
    elif place < of_router + of_inner:
        _inner(
            *(inner + token * INNER, of_token, gate, gate_scales, gate_global),
            *(up, up_scales, up_global, (place - of_router) * BLOCK_R, HIDDEN, INNER),
            *(SCALES, FORMAT, PER, BLOCK_R, BLOCK_W),
        )
    elif GATED:
        _open(opened + token, of_token, scalar, HIDDEN, WORDS_G)


@triton.jit
def _logits(
    logits,
    x,
    router,
    first,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    rows = tile_rows(first, BLOCK_R)
    there = rows < EXPERTS
    sums = row_sums(
        *(router, router, x, rows, rows, there, HIDDEN, 0, FLOAT32, 1, BLOCK_R, BLOCK_W)
    )
    row = first + tl.arange(0, BLOCK_R)
    tl.store(logits + row, sums, mask=row < EXPERTS)


@triton.jit
def _inner(
    inner,
    x,
    gate,
    gate_scales,
    gate_global,
    up,
    up_scales,
    up_global,
    first,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    # Rows of gate and up by turns: the loads of both come before the sums of either.
    place = tl.arange(0, 2 * BLOCK_R)[:, None]
    rows = first + place // 2
    of_up = place % 2 == 1
    words = tl.where(of_up, up, gate)
    scales = tl.where(of_up, up_scales, gate_scales)
    sums = row_sums(
        *(words, scales, x, rows, scale_rows(rows, FORMAT), rows < INNER),
        *(HIDDEN // PER, SCALES, FORMAT, PER, 2 * BLOCK_R, BLOCK_W),
    )
    opening, value = tl.split(tl.reshape(sums, (BLOCK_R, 2)))
    if FORMAT == NVFP4:
        opening = opening * tl.load(gate_global)
        value = value * tl.load(up_global)
    row = first + tl.arange(0, BLOCK_R)
    tl.store(inner + row, opening * tl.sigmoid(opening) * value, mask=row < INNER)


@triton.jit
def _open(opened, x, scalar, HIDDEN: tl.constexpr, BLOCK_W: tl.constexpr):
    rows = tile_rows(0, 1)
    sums = row_sums(
        *(scalar, scalar, x, rows, rows, rows < 1, HIDDEN // 2, 0, BFLOAT16, 2, 1, BLOCK_W)
    )
    tl.store(opened + tl.arange(0, 1), sums.to(opened.dtype.element_ty))


@triton.jit
def second_kernel(
    logits,
    inner,
    down,
    down_scales,
    down_global,
    ids,
    weights,
    shared,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    INNER: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """ids and weights [S, TOP_K] of the best experts; shared [S, HIDDEN]."""
    token = tl.program_id(0)
    place = tl.program_id(1)
    if place == 0:
        e = tl.arange(0, BLOCK_E)
        own = tl.load(logits + token * EXPERTS + e, mask=e < EXPERTS, other=float("-inf"))
        ids += token * TOP_K
        weights += token * TOP_K
        take_best(own, ids, weights, EXPERTS, TOP_K, BLOCK_E, BLOCK_K, NORMALISE)
    else:
        _down(
            *(shared + token * HIDDEN, inner + token * INNER, down, down_scales, down_global),
            *((place - 1) * BLOCK_R, HIDDEN, INNER, SCALES, FORMAT, PER, BLOCK_R, BLOCK_W),
        )


@triton.jit
def _down(
    shared,
    inner,
    down,
    down_scales,
    down_global,
    first,
    HIDDEN: tl.constexpr,
    INNER: tl.constexpr,
    SCALES: tl.constexpr,
    FORMAT: tl.constexpr,
    PER: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    rows = tile_rows(first, BLOCK_R)
    sums = row_sums(
        *(down, down_scales, inner, rows, scale_rows(rows, FORMAT), rows < HIDDEN),
        *(INNER // PER, SCALES, FORMAT, PER, BLOCK_R, BLOCK_W),
    )
    if FORMAT == NVFP4:
        sums = sums * tl.load(down_global)
    row = first + tl.arange(0, BLOCK_R)
    tl.store(shared + row, sums.to(shared.dtype.element_ty), mask=row < HIDDEN)


def moe_entry(
    x: Tensor,
    router: Tensor,
    top_k: int,
    normalise: bool,
    shared: SharedExpert | None,
    singles: int = 0,
) -> MoeEntry:
    """As engine.kernels.moe_layer.moe_entry."""
    if singles == 0 or x.dtype != torch.bfloat16 or not _can_read(shared):
        return operations.moe_entry.reference(x, router, top_k, normalise, shared, singles)
    few = _few(x[:singles].contiguous(), router, top_k, normalise, shared)
    if singles == len(x):
        return few
    many = operations.moe_entry.reference(x[singles:], router, top_k, normalise, shared)
    return MoeEntry(
        torch.cat((few.ids, many.ids)),
        torch.cat((few.weights, many.weights)),
        _after(few.shared, many.shared),
        _after(few.gate, many.gate),
    )


def _after(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    return None if first is None or second is None else torch.cat((first, second))


def _can_read(shared: SharedExpert | None) -> bool:
    if shared is None:
        return True
    gate, up, _ = shared.gate_up_down.weights
    readable = all(can_read(weight) for weight in shared.gate_up_down.weights)
    return (
        readable
        and gate.format == up.format
        and all(bias is None for bias in shared.gate_up_down.biases)
        and (shared.gate is None or shared.gate.format == "bfloat16")
    )


@dataclass(frozen=True)
class _Matrix:
    """A weight as kernels read it."""

    words: Tensor
    scales: Tensor
    scale_2: Tensor
    constants: dict[str, int]

    @staticmethod
    def of(weight: StoredWeight) -> _Matrix:
        scales, scale_2, in_row = scale_arguments(weight)
        words = weight.parts["weight"].view(torch.uint8).view(torch.int32)
        fixed = {
            "SCALES": in_row,
            "FORMAT": NUMBERS[weight.format],
            "PER": PER_WORD[weight.format],
        }
        return _Matrix(words, scales, scale_2, fixed)


def _few(
    x: Tensor, router: Tensor, top_k: int, normalise: bool, shared: SharedExpert | None
) -> MoeEntry:
    tokens, hidden = x.shape
    device, experts = x.device, router.shape[0]
    words = router.contiguous().view(torch.int32)
    logits = torch.empty((tokens, experts), dtype=torch.float32, device=device)
    ids = torch.empty((tokens, top_k), dtype=torch.int64, device=device)
    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=device)
    inner, out, opened, size, scalar = logits, None, None, 0, words
    if shared is None:
        # What is missing is not read.
        gate = up = down = _Matrix(words, words, words, _NO_MATRIX)
    else:
        gate, up, down = (_Matrix.of(weight) for weight in shared.gate_up_down.weights)
        size = shared.gate_up_down.weights[0].shape[0]
        inner = torch.empty((tokens, size), dtype=torch.float32, device=device)
        out = torch.empty_like(x)
        if shared.gate is not None:
            opened = torch.empty((tokens, 1), dtype=x.dtype, device=device)
            scalar = shared.gate.parts["weight"].view(torch.int32)
    constants = _first_constants(hidden, experts, size, opened is not None)
    first_kernel[(tokens, _first_programs(experts, size, opened is not None))](
        *(x, words, gate.words, gate.scales, gate.scale_2, up.words, up.scales, up.scale_2),
        *(scalar, logits, inner, x if opened is None else opened),
        **constants,
        **gate.constants,
        num_warps=FIRST_WARPS,
    )
    constants = _second_constants(hidden, experts, size, top_k, normalise)
    second_kernel[(tokens, 1 + (triton.cdiv(hidden, DOWN_ROWS) if size else 0))](
        *(logits, inner, down.words, down.scales, down.scale_2),
        *(ids, weights, x if out is None else out),
        **constants,
        **down.constants,
        num_warps=pick_warps(constants["BLOCK_E"]),
    )
    return MoeEntry(ids, weights, out, opened)


_NO_MATRIX = {"SCALES": 0, "FORMAT": NUMBERS["bfloat16"], "PER": PER_WORD["bfloat16"]}


def _first_programs(experts: int, inner: int, gated: bool) -> int:
    return -(-experts // EXPERT_ROWS) + -(-inner // INNER_ROWS) + gated


def _first_constants(hidden: int, experts: int, inner: int, gated: bool) -> dict[str, int]:
    return {
        "HIDDEN": hidden,
        "EXPERTS": experts,
        "INNER": inner,
        "GATED": gated,
        "BLOCK_E": EXPERT_ROWS,
        "WORDS_E": min(EXPERT_WORDS, triton.next_power_of_2(hidden)),
        "BLOCK_R": INNER_ROWS,
        "BLOCK_W": INNER_WORDS,
        "WORDS_G": min(EXPERT_WORDS, triton.next_power_of_2(hidden // 2)),
    }


def _second_constants(
    hidden: int, experts: int, inner: int, top_k: int, normalise: bool
) -> dict[str, int]:
    picking = pick_constants(experts, 1, top_k, normalise)
    del picking["PARTS"]
    return {
        "HIDDEN": hidden,
        "INNER": inner,
        "BLOCK_R": DOWN_ROWS,
        "BLOCK_W": DOWN_WORDS,
        **picking,
    }


def _ahead(
    model: str, storage: str, hidden: int, experts: int, inner: int, top_k: int
) -> tuple[Ahead, Ahead]:
    scale = "*fp32" if storage == "fp8_block" else "*u8"
    group = {"bfloat16": 0, "fp8_block": 128, "nvfp4": 16, "mxfp4": 32}[storage]
    fixed = {"FORMAT": NUMBERS[storage], "PER": PER_WORD[storage]}
    first = {"x": "*bf16", "router": "*i32"}
    for name in ("gate", "up"):
        first |= {name: "*i32", f"{name}_scales": scale, f"{name}_global": "*fp32"}
    first |= {"scalar": "*i32", "logits": "*fp32", "inner": "*fp32", "opened": "*bf16"}
    down = {"down": "*i32", "down_scales": scale, "down_global": "*fp32"}
    constants = _second_constants(hidden, experts, inner, top_k, True)
    return (
        Ahead(
            f"moe entry {storage} {model}",
            first_kernel,
            first,
            {
                **_first_constants(hidden, experts, inner, inner > 0),
                "SCALES": hidden // group if group else 0,
                **fixed,
            },
            warps=FIRST_WARPS,
        ),
        Ahead(
            f"moe entry's second {storage} {model}",
            second_kernel,
            {"logits": "*fp32", "inner": "*fp32", **down, "ids": "*i64", "weights": "*fp32"}
            | {"shared": "*bf16"},
            {**constants, "SCALES": inner // group if group else 0, **fixed},
            warps=pick_warps(constants["BLOCK_E"]),
        ),
    )


AHEAD = tuple(
    case
    for model, storage, sizes in (
        ("qwen3.6-35b-a3b", "nvfp4", (2048, 256, 512, 8)),
        ("qwen3.6-35b-a3b", "bfloat16", (2048, 256, 512, 8)),
        ("qwen3.6-35b-a3b", "fp8_block", (2048, 256, 512, 8)),
        ("qwen3.6-35b-a3b", "mxfp4", (2048, 256, 512, 8)),
        ("demo", "bfloat16", (576, 16, 0, 4)),
    )
    for case in _ahead(model, storage, *sizes)
)
