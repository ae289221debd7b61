"""Causal attention of ragged sequences over paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.attention_tables import AttentionTables, PagedRows, PagedSlots
from engine.kernels.pointwise import rms_norm, rotary
from engine.kernels.registry import operation
from engine.memory.budget import SCORE_BYTES

_CUDA_ATTENTION = "engine.kernels.gpu.attention"
_CUDA_ROTARY = "engine.kernels.gpu.rotary"


@operation("attention_tables", cuda=_CUDA_ATTENTION)
def attention_tables(
    tokens: Tensor,  # noqa: ARG001, this and the others are for a GPU
    sequences: Sequence[PagedRows],  # noqa: ARG001
    dim: int,  # noqa: ARG001
) -> AttentionTables | None:
    """What a GPU reads of a step's sequences, for heads of `dim` dimensions, on the device of
    `tokens`: made once for all layers. None on a CPU, which takes the sequences as they are."""
    return None


@operation("paged_attention", cuda=_CUDA_ATTENTION)
def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: Sequence[PagedRows],
    scale: float,
    gate: Tensor | None = None,
    tables: AttentionTables | None = None,  # noqa: ARG001, for a GPU
) -> Tensor:
    """Attention of q [N, heads, D] over pages [pages, page_tokens, kv_heads, D] that already hold
    the batch's own keys and values, times sigmoid(gate [N, heads, D]) where there is one:
    [N, heads, D] in q's dtype. `tables` are those of these sequences, if the caller has them.

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
    return gated(out, gate)


def gated(out: Tensor, gate: Tensor | None) -> Tensor:
    """out times sigmoid(gate), computed in float32; out itself without a gate."""
    if gate is None:
        return out
    return (out * torch.sigmoid(gate.to(torch.float32))).to(out.dtype)


@operation("rotate_and_store", cuda=_CUDA_ROTARY)
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


@operation("norm_rotate_and_store", cuda=_CUDA_ROTARY)
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
    """`rms_norm` of q and k with `weights` float32 [D] each, then `rotate_and_store`."""
    q, k = rms_norm(q, weights[0], eps), rms_norm(k, weights[1], eps)
    return rotate_and_store(q, k, v, cos, sin, keys, values, slots)


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
