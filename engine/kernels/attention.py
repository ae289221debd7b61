"""Causal attention of ragged sequences over paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.registry import operation


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


@operation("paged_attention")
def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, sequences: Sequence[PagedRows], scale: float
) -> Tensor:
    """Attention of q [N, heads, D] over pages [pages, page_tokens, kv_heads, D] that already hold
    the batch's own keys and values: [N, heads, D].

    Each sequence is computed alone, so its rows depend on no neighbour.
    """
    out = torch.empty_like(q)
    page_tokens = keys.shape[1]
    for seq in sequences:
        total = seq.context + seq.length
        pages = seq.pages[: -(-total // page_tokens)]
        k = keys[pages].flatten(0, 1)[:total].transpose(0, 1).unsqueeze(0)
        v = values[pages].flatten(0, 1)[:total].transpose(0, 1).unsqueeze(0)
        rows = slice(seq.start, seq.start + seq.length)
        mask = None
        if seq.length > 1 and seq.context:
            visible = torch.ones(seq.length, total, dtype=torch.bool, device=q.device)
            mask = visible.tril(diagonal=seq.context)
        attended = functional.scaled_dot_product_attention(
            q[rows].transpose(0, 1).unsqueeze(0),
            k,
            v,
            attn_mask=mask,
            is_causal=seq.length > 1 and not seq.context,
            scale=scale,
            enable_gqa=q.shape[1] != keys.shape[2],
        )
        out[rows] = attended.squeeze(0).transpose(0, 1)
    return out
