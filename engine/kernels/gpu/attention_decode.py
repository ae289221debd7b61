"""Attention of one new token a sequence over paged keys and values, for captured graphs.

A sequence's positions are cut into spans of SPAN, and span i belongs to lane i % LANES. A block
attends over one lane for the query heads that share a key head; a second kernel joins the lanes in
order. Which lane a position belongs to, and the order within it, follow from the position alone, so
an output depends on neither the other sequences, nor their number, nor the room in the page table.
Lengths are read on the device: a lane beyond the end costs one load.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import ARCHITECTURES, Ahead
from engine.kernels.gpu.architecture import architecture, dot_type

SPAN = 64
LANES = 128
"""With two key heads, 256 blocks share 8,192 positions: about two for each multiprocessor."""
_BLOCK_POSITIONS = 32
_STAGES = {80: 5, 90: 5}
"""Page, then key and value: each step ahead takes two stages. Small cards keep one step ahead in
40 KiB, so that two blocks share a multiprocessor."""
_SMALL_STAGES = 3
_JOIN_COLUMNS = 32
_LOG2_E = math.log2(math.e)


@triton.jit(do_not_specialize=["table_row"])
def _attend_lane(
    q,
    keys,
    values,
    table,
    lengths,
    peaks,
    partials,
    scale,
    q_row,
    q_head,
    page_stride,
    table_row,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DOT: tl.constexpr,
):
    """Running softmax of one lane: peaks [S, heads, LANES, 2] get its maximum (of base 2) and sum,
    partials [S, heads, LANES, D] its weighted values."""
    lane = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = tl.program_id(2)
    length = tl.load(lengths + seq)
    if lane * SPAN >= length:
        return
    group = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + group
    query = tl.load(
        q + seq.to(tl.int64) * q_row + heads[:, None] * q_head + d[None, :],
        mask=(group < GROUP)[:, None] & (d < D)[None, :],
        other=0.0,
    ).to(DOT)
    top = tl.full([BLOCK_G], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    blocks = tl.cdiv(length - lane * SPAN, SPAN * LANES) * (SPAN // BLOCK_N)
    for block in range(blocks):
        span = block // (SPAN // BLOCK_N) * LANES + lane
        position = span * SPAN + block % (SPAN // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
        seen = position < length
        page = tl.load(table + seq * table_row + position // PAGE, mask=seen, other=0)
        offset = page.to(tl.int64) * page_stride + (position % PAGE * KV_HEADS + kv_head) * D
        key = tl.load(
            keys + offset[None, :] + d[:, None], mask=seen[None, :] & (d < D)[:, None], other=0.0
        ).to(DOT)
        value = tl.load(
            values + offset[:, None] + d[None, :], mask=seen[:, None] & (d < D)[None, :], other=0.0
        ).to(DOT)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, float("-inf"))
        peak = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - peak[:, None])
        kept = tl.exp2(top - peak)
        total = total * kept + tl.sum(weight, 1)
        acc = acc * kept[:, None]
        acc = tl.dot(weight.to(DOT), value, acc, input_precision="ieee")
        top = peak
    place = (seq * (KV_HEADS * GROUP) + heads) * LANES + lane
    tl.store(peaks + 2 * place, top, mask=group < GROUP)
    tl.store(peaks + 2 * place + 1, total, mask=group < GROUP)
    tl.store(
        partials + place[:, None].to(tl.int64) * D + d[None, :],
        acc,
        mask=(group < GROUP)[:, None] & (d < D)[None, :],
    )


@triton.jit
def _join_lanes(
    lengths,
    peaks,
    partials,
    gate,
    out,
    gate_row,
    gate_head,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    SPAN: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GATED: tl.constexpr,
):
    head = tl.program_id(0)
    seq = tl.program_id(2)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    lane = tl.arange(0, LANES)
    live = lane * SPAN < tl.load(lengths + seq)
    place = (seq * HEADS + head) * LANES + lane
    top = tl.load(peaks + 2 * place, mask=live, other=float("-inf"))
    total = tl.load(peaks + 2 * place + 1, mask=live, other=0.0)
    part = tl.load(
        partials + place[:, None].to(tl.int64) * D + d[None, :],
        mask=live[:, None] & (d < D)[None, :],
        other=0.0,
    )
    peak = tl.max(top, 0)
    # A sequence of length 0 has no lane, and -inf less -inf is no number.
    weight = tl.exp2(top - tl.where(peak == float("-inf"), 0.0, peak))
    mass = tl.sum(weight * total, 0)
    joined = tl.sum(part * weight[:, None], 0) / tl.where(mass > 0, mass, 1.0)
    if GATED:
        at = gate + seq.to(tl.int64) * gate_row + head * gate_head + d
        joined *= tl.sigmoid(tl.load(at, mask=d < D, other=0.0).to(tl.float32))
    tl.store(out + (seq * HEADS + head).to(tl.int64) * D + d, joined, mask=d < D)


def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    lengths: Tensor,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """Attention of q [S, heads, D] over pages [pages, page_tokens, kv_heads, D]: [S, heads, D] in
    q's dtype, times sigmoid(gate [S, heads, D]) where there is one.

    table int32 [S, max_pages] has each sequence's pages in order; lengths int32 [S] counts its
    positions, this token's among them. A row of length 0 gives zeros and reads no page. Heads of q
    and of the gate may lie apart. Nothing is read back, so a CUDA graph may hold this call.
    """
    sequences, heads, dim = q.shape
    page_tokens, kv_heads = keys.shape[1:3]
    check_pages(q, keys, values)
    if q.stride(2) != 1 or (gate is not None and gate.stride(2) != 1):
        raise ValueError("the dimensions of a head must lie side by side")
    group = heads // kv_heads
    peaks = torch.empty((sequences, heads, LANES, 2), dtype=torch.float32, device=q.device)
    partials = torch.empty((sequences, heads, LANES, dim), dtype=torch.float32, device=q.device)
    out = torch.empty((sequences, heads, dim), dtype=q.dtype, device=q.device)
    _attend_lane[(LANES, kv_heads, sequences)](
        *(q, keys, values, table, lengths, peaks, partials, scale * _LOG2_E),
        *(q.stride(0), q.stride(1), keys.stride(0), table.stride(0)),
        **_lane_constants(kv_heads, group, dim, page_tokens),
        DOT=dot_type(keys.dtype),
        num_warps=4,
        num_stages=_STAGES.get(architecture(q.device), _SMALL_STAGES),
    )
    _join_lanes[(heads, triton.cdiv(dim, _JOIN_COLUMNS), sequences)](
        *(lengths, peaks, partials, q if gate is None else gate, out),
        *((0, 0) if gate is None else (gate.stride(0), gate.stride(1))),
        **_join_constants(heads, dim, gate is not None),
        num_warps=4,
    )
    return out


def check_pages(q: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raises ValueError unless keys and values suit q's heads and lie as KvPages lays them."""
    kv_heads, dim = keys.shape[2:]
    if q.shape[1] % kv_heads or q.shape[2] != dim or keys.shape != values.shape:
        raise ValueError(f"queries {tuple(q.shape)} over pages {tuple(keys.shape)}")
    within = (kv_heads * dim, dim, 1)
    if keys.stride() != values.stride() or keys.stride()[1:] != within:
        raise ValueError("a page's keys and values must each lie side by side")


def _lane_constants(kv_heads: int, group: int, dim: int, page_tokens: int) -> dict[str, int]:
    return {
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "D": dim,
        "PAGE": page_tokens,
        "SPAN": SPAN,
        "LANES": LANES,
        "BLOCK_G": max(16, triton.next_power_of_2(group)),
        "BLOCK_D": max(16, triton.next_power_of_2(dim)),
        "BLOCK_N": _BLOCK_POSITIONS,
    }


def _join_constants(heads: int, dim: int, gated: bool) -> dict[str, int]:
    return {
        "HEADS": heads,
        "D": dim,
        "SPAN": SPAN,
        "LANES": LANES,
        "BLOCK_D": _JOIN_COLUMNS,
        "GATED": gated,
    }


def _ahead(model: str, kv_heads: int, group: int, dim: int, gated: bool) -> tuple[Ahead, ...]:
    pages = {"q": "*bf16", "keys": "*bf16", "values": "*bf16", "table": "*i32"}
    lanes = {"lengths": "*i32", "peaks": "*fp32", "partials": "*fp32"}
    strides = ("q_row", "q_head", "page_stride", "table_row")
    large = tuple(_STAGES)
    small = tuple(arch for arch in ARCHITECTURES if arch not in _STAGES)
    attend = (
        Ahead(
            f"attention_decode {model} {stages} stages",
            _attend_lane,
            {**pages, **lanes, "scale": "fp32", **dict.fromkeys(strides, "i32")},
            {**_lane_constants(kv_heads, group, dim, 16), "DOT": tl.bfloat16},
            stages=stages,
            multiples=frozenset({"q_row", "q_head", "page_stride"}),
            architectures=architectures,
        )
        for stages, architectures in ((_STAGES[90], large), (_SMALL_STAGES, small))
    )
    join = Ahead(
        f"attention_decode join {model}",
        _join_lanes,
        {**lanes, "gate": "*bf16", "out": "*bf16", "gate_row": "i32", "gate_head": "i32"},
        _join_constants(kv_heads * group, dim, gated),
        multiples=frozenset({"gate_row", "gate_head"}),
    )
    return (*attend, join)


AHEAD = (
    *_ahead("qwen3.6-35b-a3b", kv_heads=2, group=8, dim=256, gated=True),
    *_ahead("demo", kv_heads=3, group=3, dim=64, gated=False),
)
