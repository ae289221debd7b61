"""Routing on a GPU: logits of all experts in float32, softmax, and the best few.

The router's weights are float32 and tensor cores are not. A float32 is the sum of three bfloat16,
and their products with bfloat16 activations are exact in float32: three products give the logits as
precisely as float32 arithmetic does. The hidden dimension is cut into PARTS whose sums are added in
order, in one kernel or by the next, so a logit's bits depend on its row and expert only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.architecture import dot_type
from engine.kernels.gpu.ranking import LOWEST, index_of, ranked, value_of

PARTS = 8
_BLOCK_K = 64
_MOST_APART = 1024
"""Up to so many rows the parts are blocks of their own, for the sake of latency."""


@dataclass(frozen=True)
class _Tile:
    rows: int
    experts: int
    warps: int


_FEW = _Tile(16, 16, 2)
_MANY = _Tile(32, 64, 4)
"""No taller: from 64 rows on sm_90 has other instructions, whose sums have another order."""


@triton.jit(do_not_specialize=["rows"])
def _logits(
    x,
    weight,
    parts,
    rows,
    x_row,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    PARTS: tl.constexpr,
    JOINED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    DOT: tl.constexpr,
):
    """parts float32 [PARTS, rows, EXPERTS]; where JOINED, their sum alone."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    e = tl.program_id(1) * BLOCK_E + tl.arange(0, BLOCK_E)
    x_rows = x + m.to(tl.int64)[:, None] * x_row
    w_rows = weight + e[:, None] * HIDDEN
    in_m = (m < rows)[:, None]
    in_e = (e < EXPERTS)[:, None]
    out = parts + m.to(tl.int64)[:, None] * EXPERTS + e[None, :]
    if JOINED:
        total = _part(x_rows, w_rows, in_m, in_e, 0, HIDDEN, PARTS, BLOCK_K, SPLIT, DOT)
        for part in range(1, PARTS):
            total += _part(x_rows, w_rows, in_m, in_e, part, HIDDEN, PARTS, BLOCK_K, SPLIT, DOT)
        tl.store(out, total, mask=in_m & (e < EXPERTS)[None, :])
    else:
        part = tl.program_id(2)
        total = _part(x_rows, w_rows, in_m, in_e, part, HIDDEN, PARTS, BLOCK_K, SPLIT, DOT)
        tl.store(
            out + part.to(tl.int64) * rows * EXPERTS, total, mask=in_m & (e < EXPERTS)[None, :]
        )


@triton.jit
def _part(
    x_rows,
    w_rows,
    in_m,
    in_e,
    part,
    HIDDEN: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    DOT: tl.constexpr,
):
    WIDTH: tl.constexpr = (HIDDEN + PARTS * BLOCK_K - 1) // (PARTS * BLOCK_K) * BLOCK_K
    acc = tl.zeros([in_m.shape[0], in_e.shape[0]], tl.float32)
    for k in range(part * WIDTH, part * WIDTH + WIDTH, BLOCK_K):
        at = k + tl.arange(0, BLOCK_K)
        in_k = (at < HIDDEN)[None, :]
        x = tl.load(x_rows + at[None, :], mask=in_m & in_k, other=0.0).to(DOT)
        w = tl.load(w_rows + at[None, :], mask=in_e & in_k, other=0.0)
        if SPLIT:
            first = _high(w)
            second = _high(w - first)
            third = w - first - second
            acc = tl.dot(x, tl.trans(third.to(DOT)), acc, input_precision="ieee")
            acc = tl.dot(x, tl.trans(second.to(DOT)), acc, input_precision="ieee")
            acc = tl.dot(x, tl.trans(first.to(DOT)), acc, input_precision="ieee")
        else:
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    return acc


@triton.jit
def _high(w):
    """The sign, exponent and first 8 bits of float32 numbers: a bfloat16, still as float32."""
    return (w.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["rows"])
def _pick(
    parts,
    ids,
    weights,
    rows,
    EXPERTS: tl.constexpr,
    PARTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK_E)
    logits = tl.load(parts + row * EXPERTS + e, mask=e < EXPERTS, other=float("-inf"))
    for part in range(1, PARTS):
        at = parts + (part * rows.to(tl.int64) + row) * EXPERTS + e
        logits += tl.load(at, mask=e < EXPERTS, other=0.0)
    ids += row * TOP_K
    weights += row * TOP_K
    take_best(logits, ids, weights, EXPERTS, TOP_K, BLOCK_E, BLOCK_K, NORMALISE)


@triton.jit
def take_best(
    logits,
    ids,
    weights,
    EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """ids and weights [TOP_K] of a row's logits float32 [BLOCK_E], -inf after EXPERTS."""
    e = tl.arange(0, BLOCK_E)
    peak = tl.max(logits, 0)
    total = tl.sum(tl.exp(logits - peak), 0)
    keys = tl.where(e < EXPERTS, ranked(logits, e), LOWEST)
    k = tl.arange(0, BLOCK_K)
    best = tl.full([BLOCK_K], LOWEST, tl.int64)
    for rank in range(TOP_K):
        highest = tl.max(keys, 0)
        best = tl.where(k == rank, highest, best)
        keys = tl.where(keys == highest, LOWEST, keys)
    share = tl.where(k < TOP_K, tl.exp(value_of(best) - peak) / total, 0.0)
    if NORMALISE:
        share = share / tl.sum(share, 0)
    tl.store(ids + k, index_of(best), mask=k < TOP_K)
    tl.store(weights + k, share, mask=k < TOP_K)


def route(x: Tensor, router: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """As engine.kernels.pointwise.route; of equal logits the lowest expert comes first."""
    return _top_k(router_parts(x, router), top_k, normalise)


def router_top_k(logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """As engine.kernels.pointwise.router_top_k; of equal logits the lowest expert comes first."""
    return _top_k(logits.to(torch.float32).contiguous().unsqueeze(0), top_k, normalise)


def router_parts(x: Tensor, router: Tensor) -> Tensor:
    """float32 [P, N, experts], whose sum over P in order are the logits of x [N, hidden] with
    router float32 [experts, hidden]."""
    rows, hidden = x.shape
    experts = router.shape[0]
    x = x if x.stride(1) == 1 else x.contiguous()
    joined = rows > _MOST_APART
    count = 1 if joined else PARTS
    parts = torch.empty((count, rows, experts), dtype=torch.float32, device=x.device)
    if rows == 0:
        return parts
    tile = _FEW if rows <= _FEW.rows else _MANY
    grid = (triton.cdiv(rows, tile.rows), triton.cdiv(experts, tile.experts), count)
    split = x.dtype == torch.bfloat16
    _logits[grid](
        *(x, router.contiguous(), parts, rows, x.stride(0)),
        **_logits_constants(hidden, experts, joined, tile, split),
        DOT=dot_type(x.dtype) if split else tl.float32,
        num_warps=tile.warps,
    )
    return parts


def _top_k(parts: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    count, rows, experts = parts.shape
    ids = torch.empty((rows, top_k), dtype=torch.int64, device=parts.device)
    weights = torch.empty((rows, top_k), dtype=torch.float32, device=parts.device)
    if rows:
        constants = pick_constants(experts, count, top_k, normalise)
        warps = pick_warps(constants["BLOCK_E"])
        _pick[(rows,)](parts, ids, weights, rows, **constants, num_warps=warps)
    return ids, weights


def _logits_constants(
    hidden: int, experts: int, joined: bool, tile: _Tile, split: bool
) -> dict[str, int]:
    return {
        "HIDDEN": hidden,
        "EXPERTS": experts,
        "PARTS": PARTS,
        "JOINED": joined,
        "BLOCK_M": tile.rows,
        "BLOCK_E": tile.experts,
        "BLOCK_K": _BLOCK_K,
        "SPLIT": split,
    }


def pick_constants(experts: int, parts: int, top_k: int, normalise: bool) -> dict[str, int]:
    return {
        "EXPERTS": experts,
        "PARTS": parts,
        "TOP_K": top_k,
        "BLOCK_E": triton.next_power_of_2(experts),
        "BLOCK_K": triton.next_power_of_2(top_k),
        "NORMALISE": normalise,
    }


def pick_warps(block: int) -> int:
    """One warp exchanges nothing through shared memory."""
    return 1 if block <= 512 else 4


def _ahead(model: str, hidden: int, experts: int, top_k: int) -> tuple[Ahead, ...]:
    pointers = {"x": "*bf16", "weight": "*fp32", "parts": "*fp32", "rows": "i32", "x_row": "i32"}
    ways = {"few": (_FEW, False), "some": (_MANY, False), "many": (_MANY, True)}
    logits = tuple(
        Ahead(
            f"router {way} {model}",
            _logits,
            pointers,
            {**_logits_constants(hidden, experts, joined, tile, True), "DOT": tl.bfloat16},
            warps=tile.warps,
            multiples=frozenset({"x_row"}),
        )
        for way, (tile, joined) in ways.items()
    )
    pick = tuple(
        Ahead(
            f"router top_k of {parts} {model}",
            _pick,
            {"parts": "*fp32", "ids": "*i64", "weights": "*fp32", "rows": "i32"},
            constants := pick_constants(experts, parts, top_k, True),
            warps=pick_warps(constants["BLOCK_E"]),
        )
        for parts in (PARTS, 1)
    )
    return (*logits, *pick)


AHEAD = (
    *_ahead("qwen3.6-35b-a3b", 2048, 256, 8),
    *_ahead("demo", 576, 16, 4),
)
