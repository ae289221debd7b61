"""Attention of one new token per row over a ring of past keys: a Triton kernel and its plain form.

Row b's conversation began at step `start[b]` and now is at step `now`; the key of step p lies in
slot p % window. Rows thus restart at any time without moving anything.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None


def plain_ring(q: Tensor, keys: Tensor, values: Tensor, start: Tensor, now: Tensor) -> Tensor:
    """q [rows, heads, dim], keys and values [rows, kv heads, window, dim] -> like q."""
    rows, heads, dim = q.shape
    kv_heads, window = keys.shape[1:3]
    slots = torch.arange(window, device=q.device)
    step = now - torch.remainder(now - slots, window)
    # A row whose next conversation starts later still gets its own newest key.
    unseen = step[None, :] < torch.minimum(start, now)[:, None]
    grouped = q.reshape(rows, kv_heads, heads // kv_heads, dim)
    scores = (grouped @ keys.transpose(-1, -2)).float() * dim**-0.5
    scores = scores.masked_fill(unseen[:, None, None, :], float("-inf"))
    out: Tensor = scores.softmax(-1).to(values.dtype) @ values
    return out.reshape(rows, heads, dim)


if triton is not None:

    @triton.jit
    def _ring_kernel(  # type: ignore[no-untyped-def]
        q_at,
        k_at,
        v_at,
        start_at,
        now_at,
        out_at,
        scale,
        WINDOW: tl.constexpr,
        KV: tl.constexpr,
        GROUP: tl.constexpr,
        DIM: tl.constexpr,
        BLOCK: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64)
        kv = tl.program_id(1)
        now = tl.load(now_at).to(tl.int32)
        # A row whose next conversation starts later still gets its own newest key.
        start = tl.minimum(tl.load(start_at + row).to(tl.int32), now)
        lane = tl.arange(0, 16)
        dims = tl.arange(0, DIM)
        at = (row * KV * GROUP + kv * GROUP + lane[:, None]) * DIM + dims[None, :]
        real = lane[:, None] < GROUP
        q = tl.load(q_at + at, mask=real, other=0.0)
        base = (row * KV + kv) * WINDOW
        best = tl.full((16,), -1e30, tl.float32)
        total = tl.zeros((16,), tl.float32)
        mixed = tl.zeros((16, DIM), tl.float32)
        for first in range(start, now + 1, BLOCK):
            steps = first + tl.arange(0, BLOCK)
            live = steps <= now
            spot = (base + steps % WINDOW)[:, None] * DIM + dims[None, :]
            k = tl.load(k_at + spot, mask=live[:, None], other=0.0)
            v = tl.load(v_at + spot, mask=live[:, None], other=0.0)
            scores = tl.dot(q, tl.trans(k)) * scale
            scores = tl.where(live[None, :], scores, -1e30)
            new = tl.maximum(best, tl.max(scores, 1))
            weight = tl.exp(scores - new[:, None])
            weight = tl.where(live[None, :], weight, 0.0)
            shrink = tl.exp(best - new)
            total = total * shrink + tl.sum(weight, 1)
            mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v)
            best = new
        mixed = mixed / total[:, None]
        tl.store(out_at + at, mixed.to(q.dtype), mask=real)


def fused_ring(q: Tensor, keys: Tensor, values: Tensor, start: Tensor, now: Tensor) -> Tensor:
    """`plain_ring` that reads only the keys each row can see."""
    rows, heads, dim = q.shape
    kv_heads, window = keys.shape[1:3]
    out = torch.empty_like(q)
    kernel: Any = _ring_kernel
    kernel[(rows, kv_heads)](
        q, keys, values, start, now, out, dim**-0.5,
        WINDOW=window, KV=kv_heads, GROUP=heads // kv_heads, DIM=dim, BLOCK=32, num_warps=2,
    )  # fmt: skip
    return out
