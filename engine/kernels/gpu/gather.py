"""Blobs from pinned host memory into slots: one kernel for any number of them, none included.

Many reads must be under way to fill the link, which answers after microseconds: each block has a
tile's worth of them. They go through the first-level cache, because only such reads ask the link
for 128 bytes at a time; with the hint `.cg` they are of 32, and half as fast.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gather import Banks
from engine.kernels.gpu.ahead import Ahead

BLOCKS = 32
"""A fixed grid, since a captured graph has one: few enough to leave the GPU to what computes."""
TILE_WORDS = 4096
"""Of 32 bits: what a block reads before it writes."""
WARPS = 4


@triton.jit
def gather_kernel(
    pool, addresses, fills, count, stride, BLOCKS: tl.constexpr, TILE_WORDS: tl.constexpr
):
    """int32 `pool`; `stride` in words."""
    tiles = tl.cdiv(stride, TILE_WORDS)
    total = tl.load(count) * tiles
    within = tl.arange(0, TILE_WORDS)
    for tile in range(tl.program_id(0), total, BLOCKS):
        row = fills + tile // tiles * 3
        bank = tl.load(addresses + tl.load(row)).to(tl.pointer_type(tl.int32))
        expert = tl.load(row + 1).to(tl.int64)
        slot = tl.load(row + 2).to(tl.int64)
        at = tile % tiles * TILE_WORDS + within
        blob = tl.multiple_of(bank, 16) + expert * stride
        words = tl.load(blob + at, mask=at < stride)
        tl.store(pool + slot * stride + at, words, mask=at < stride)


def gather_blobs(pool: Tensor, banks: Banks, fills: Tensor, count: Tensor) -> None:
    """As engine.kernels.gather.gather_blobs, of strides that are multiples of 4 bytes; to be fast
    they are of 64, as every blob's is."""
    gather_kernel[(BLOCKS,)](
        pool.view(torch.int32),
        banks.addresses,
        fills,
        count,
        pool.shape[1] // 4,
        BLOCKS=BLOCKS,
        TILE_WORDS=TILE_WORDS,
        num_warps=WARPS,
        num_stages=1,
    )


AHEAD = (
    Ahead(
        "gather",
        gather_kernel,
        {"pool": "*i32", "addresses": "*i64", "fills": "*i32", "count": "*i32", "stride": "i32"},
        {"BLOCKS": BLOCKS, "TILE_WORDS": TILE_WORDS},
        warps=WARPS,
        stages=1,
        multiples=frozenset({"stride"}),
    ),
)
