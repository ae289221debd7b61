"""Queries and keys made ready, and keys and values stored in their pages, in one launch.

A block has one head of one row: a query, a key or a value. The norm over a head's dimensions, where
a model has one, is part of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.attention_tables import PagedSlots
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.attention_decode import check_pages


@triton.jit
def _turn_and_store(
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos,
    sin,
    keys,
    values,
    pages,
    offsets,
    out,
    eps,
    q_row,
    q_head,
    k_row,
    v_row,
    page_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NORM: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    page = tl.load(pages + row).to(tl.int64)
    # The place of head 0 of this row in keys and in values.
    place = page * page_stride + tl.load(offsets + row).to(tl.int64) * (KV_HEADS * D)
    if head < HEADS:
        turned = _turned(
            *(q + row * q_row + head * q_head, q_weight, cos + row * HALF, sin + row * HALF),
            *(eps, D, HALF, BLOCK_D, NORM),
        )
        tl.store(out + (row * HEADS + head) * D + d, turned, mask=d < D)
    elif head < HEADS + KV_HEADS:
        kv_head = head - HEADS
        turned = _turned(
            *(k + row * k_row + kv_head * D, k_weight, cos + row * HALF, sin + row * HALF),
            *(eps, D, HALF, BLOCK_D, NORM),
        )
        tl.store(keys + place + kv_head * D + d, turned, mask=(d < D) & (page >= 0))
    else:
        kv_head = head - HEADS - KV_HEADS
        value = tl.load(v + row * v_row + kv_head * D + d, mask=d < D, other=0.0)
        value = value.to(tl.float32)
        tl.store(values + place + kv_head * D + d, value, mask=(d < D) & (page >= 0))


@triton.jit
def _turned(
    x,
    weight,
    cos,
    sin,
    eps,
    D: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_D: tl.constexpr,
    NORM: tl.constexpr,
):
    """A head, through its norm if it has one, with pairs (i, i + HALF) turned: float32."""
    d = tl.arange(0, BLOCK_D)
    pair = tl.where(d < HALF, d + HALF, tl.where(d < 2 * HALF, d - HALF, d))
    mine = tl.load(x + d, mask=d < D, other=0.0).to(tl.float32)
    other = tl.load(x + pair, mask=d < D, other=0.0).to(tl.float32)
    if NORM:
        root = tl.rsqrt(tl.sum(mine * mine, 0) / D + eps)
        # The norm's result has x's dtype, before it is turned.
        mine = mine * root * tl.load(weight + d, mask=d < D, other=0.0)
        other = other * root * tl.load(weight + pair, mask=d < D, other=0.0)
        mine = mine.to(x.dtype.element_ty).to(tl.float32)
        other = other.to(x.dtype.element_ty).to(tl.float32)
    angle = tl.where(d < HALF, d, d - HALF)
    turns = d < 2 * HALF
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    return tl.where(turns, mine * c + tl.where(d < HALF, -other, other) * s, mine)


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: PagedSlots,
) -> Tensor:
    """As engine.kernels.attention.rotate_and_store."""
    return _launch(q, k, v, None, 0.0, cos, sin, keys, values, slots)


def norm_rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: tuple[Tensor, Tensor],
    eps: float,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: PagedSlots,
) -> Tensor:
    """As engine.kernels.attention.norm_rotate_and_store.

    Pages and offsets may be int32. A row whose page is negative stores nothing: one that is empty
    in a captured batch.
    """
    return _launch(q, k, v, weights, eps, cos, sin, keys, values, slots)


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: tuple[Tensor, Tensor] | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: PagedSlots,
) -> Tensor:
    rows, heads, dim = q.shape
    kv_heads = k.shape[1]
    check_pages(q, keys, values)
    k, v = (part.flatten(1) for part in (k, v))
    parts = [part if part.stride(-1) == 1 else part.contiguous() for part in (q, k, v)]
    q, k, v = parts
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    if rows == 0:
        return out
    # Without norms the kernel does not read the weights.
    q_weight, k_weight = (cos, cos) if weights is None else weights
    pages, offsets = slots.pages.contiguous(), slots.offsets.contiguous()
    _turn_and_store[(heads + 2 * kv_heads, rows)](
        *(q, k, v, q_weight, k_weight, cos.contiguous(), sin.contiguous()),
        *(keys, values, pages, offsets, out, eps),
        *(q.stride(0), q.stride(1), k.stride(0), v.stride(0), keys.stride(0)),
        **_constants(heads, kv_heads, dim, cos.shape[1], weights is not None),
        num_warps=1,
    )
    return out


def _constants(heads: int, kv_heads: int, dim: int, half: int, norm: bool) -> dict[str, int]:
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "D": dim,
        "HALF": half,
        "BLOCK_D": triton.next_power_of_2(dim),
        "NORM": norm,
    }


def _ahead(name: str, sizes: tuple[int, int, int, int], norm: bool) -> Ahead:
    inputs = dict.fromkeys(("q", "k", "v"), "*bf16")
    floats = dict.fromkeys(("q_weight", "k_weight", "cos", "sin"), "*fp32")
    stored = {"keys": "*bf16", "values": "*bf16", "pages": "*i64", "offsets": "*i64"}
    strides = ("q_row", "q_head", "k_row", "v_row", "page_stride")
    return Ahead(
        name,
        _turn_and_store,
        {**inputs, **floats, **stored, "out": "*bf16", "eps": "fp32"}
        | dict.fromkeys(strides, "i32"),
        _constants(*sizes, norm),
        warps=1,
        multiples=frozenset(strides),
    )


AHEAD = (
    _ahead("norm_rotate_and_store qwen3.6-35b-a3b", (16, 2, 256, 32), norm=True),
    _ahead("rotate_and_store demo", (9, 3, 64, 32), norm=False),
)
