"""The few operations that teacher and student share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Mask = Tensor | BlockMask


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm, in float32, returned in the weight's type."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(weight.dtype)


def rotary_tables(positions: Tensor, dim: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin [..., dim] of positions [...], the two halves of a head alike."""
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    angles = positions.float().unsqueeze(-1) * base**-exponents
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., dim]."""
    half = x.shape[-1] // 2
    wide = x.float()
    turned = torch.cat([-wide[..., half:], wide[..., :half]], dim=-1)
    return (wide * cos + turned * sin).to(x.dtype)


def document_mask(documents: Tensor, fused: bool) -> Mask:
    """Causal attention within each document; `documents` [rows, length] numbers them."""
    rows, length = documents.shape
    if fused:

        def visible(b: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (i >= j) & (documents[b, i] == documents[b, j])

        return create_block_mask(visible, rows, None, length, length, device=documents.device.type)
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & torch.ones_like(same[0, 0]).tril()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Mask | None) -> Tensor:
    """Grouped attention over [rows, heads, length, dim]; no mask means every key is visible."""
    if isinstance(mask, BlockMask):
        out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)
        return out
    repeats = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1), attn_mask=mask
    )


def by_head(x: Tensor, dim: int) -> Tensor:
    """[..., heads * dim] to [..., heads, dim]."""
    return x.reshape(*x.shape[:-1], x.shape[-1] // dim, dim)


def heads(x: Tensor, dim: int) -> Tensor:
    """[rows, length, heads * dim] to [rows, heads, length, dim]."""
    return by_head(x, dim).transpose(1, 2)


def role_weights(
    ids: Tensor, im_start: int, im_end: int, roles: list[tuple[list[int], float]]
) -> Tensor:
    """The weight of each token of flat `ids` as a target: that of the turn it belongs to.

    A turn is `<|im_start|>` role newline text `<|im_end|>`; the text and its end carry the weight
    that `roles` gives with the role's tokens. Roles differ in their first token.
    """
    at = torch.arange(len(ids), device=ids.device)
    opened = torch.where(ids == im_start, at, torch.full_like(at, -1)).cummax(0).values
    closed = torch.where(ids == im_end, at, torch.full_like(at, -1)).cummax(0).values
    # The end marker itself still belongs to its turn: look at what was closed before it.
    closed_before = torch.cat([closed.new_full((1,), -1), closed[:-1]])
    inside = (opened >= 0) & (opened > closed_before)
    role = ids[(opened + 1).clamp(0, len(ids) - 1)]
    weight = torch.zeros(len(ids), dtype=torch.float32, device=ids.device)
    for tokens, value in roles:
        text = inside & (role == tokens[0]) & (at >= opened + len(tokens) + 2)
        weight = torch.where(text, torch.full_like(weight, value), weight)
    return weight
