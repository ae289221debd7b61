"""Causal attention of ragged sequences over paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.formats.weight import Projections
from engine.kernels.linear import linears
from engine.kernels.pointwise import rotary
from engine.kernels.registry import operation
from engine.memory.budget import SCORE_BYTES


class PagedRows(Protocol):
    """Rows `start : start + length` of a batch, whose first is at position `context` of `pages`."""

    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def pages(self) -> Tensor: ...


@operation("paged_attention", cuda="engine.kernels.gpu.attention")
def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, sequences: Sequence[PagedRows], scale: float
) -> Tensor:
    """Attention of q [N, heads, D] over pages [pages, page_tokens, kv_heads, D] that already hold
    the batch's own keys and values: [N, heads, D].

    Each sequence is computed alone, so its rows depend on no neighbour. Its keys and values are
    copied into order, one sequence at a time: the budget's `workspace_per_token`.
    """
    out = torch.empty_like(q)
    for seq in sequences:
        total = seq.context + seq.length
        pages = seq.pages[: -(-total // keys.shape[1])]
        k, v = keys[pages].flatten(0, 1), values[pages].flatten(0, 1)
        # On a GPU, torch's attention with a mask and grouped queries holds all scores at once (its
        # CPU kernel never does).
        block = max(1, SCORE_BYTES // (4 * q.shape[1] * total))
        for first in range(0, seq.length, block):
            rows = slice(seq.start + first, seq.start + min(first + block, seq.length))
            context = seq.context + first
            seen = context + rows.stop - rows.start
            out[rows] = _causal(q[rows], k[:seen], v[:seen], context, scale)
    return out


class PagedSlots(Protocol):
    """Where each row of a batch keeps its key and value: int64 [N] page and offset within it."""

    @property
    def pages(self) -> Tensor: ...
    @property
    def offsets(self) -> Tensor: ...


@operation("rotate_and_store", cuda="engine.kernels.gpu.rotary")
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
    """Turn q [N, heads, D] and k [N, kv_heads, D] as `rotary` does; store k and v in pages.

    keys and values [pages, page_tokens, kv_heads, D] get them in their own dtype. Returns q.
    """
    keys[slots.pages, slots.offsets] = rotary(k, cos, sin).to(keys.dtype)
    values[slots.pages, slots.offsets] = v.to(values.dtype)
    return rotary(q, cos, sin)


@operation("attention_block")
def attention_block(
    x: Tensor,
    qkv: Projections,
    output: Projections,
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: PagedSlots,
    sequences: Sequence[PagedRows],
    scale: float,
) -> Tensor:
    """Attention of x [N, hidden] with the products around it: [N, hidden] in x's dtype.

    qkv are the matrices of q, k and v, output is one; the rest is as above.
    """
    dim = keys.shape[-1]
    q, k, v = (part.view(len(x), -1, dim) for part in linears(x, qkv))
    q = rotate_and_store(q, k, v, cos, sin, keys, values, slots)
    out = paged_attention(q.to(keys.dtype), keys, values, sequences, scale)
    return linears(out.to(x.dtype).flatten(1), output)[0]


def _causal(q: Tensor, k: Tensor, v: Tensor, context: int, scale: float) -> Tensor:
    """q [L, heads, D] at positions context onwards over k, v [context + L, kv_heads, D]."""
    mask = None
    if len(q) > 1 and context:
        mask = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).tril(context)
    attended = functional.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        k.transpose(0, 1).unsqueeze(0),
        v.transpose(0, 1).unsqueeze(0),
        attn_mask=mask,
        is_causal=len(q) > 1 and not context,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return attended.squeeze(0).transpose(0, 1)
