"""Blobs from pinned host memory into slots: one kernel for any number of them, none included.

Many reads must be under way to fill the link, which answers after microseconds: each block has a
tile's worth of them. They go through the first-level cache, because only such reads ask the link
for 128 bytes at a time; with the hint `.cg` they are of 32, and half as fast.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from engine.kernels.gather import BLOCKS, Banks, Gauge
from engine.kernels.gpu.ahead import Ahead

TILE_WORDS = 4096
"""Of 32 bits: what a block reads before it writes."""
WARPS = 4


@triton.jit(do_not_specialize=["layer"])
def gather_kernel(
    pool,
    addresses,
    layer,
    fills,
    count,
    stride,
    spans,
    nbytes,
    pace,
    BLOCKS: tl.constexpr,
    TILE_WORDS: tl.constexpr,
    TIMED: tl.constexpr,
    PACED: tl.constexpr,
):
    """int32 `pool`; `stride` in words. `spans` and `nbytes` are read where TIMED, `pace` where
    PACED: without them the kernel knows no clock."""
    tiles = tl.cdiv(stride, TILE_WORDS)
    blobs = tl.load(count)
    total = blobs * tiles
    first = tl.program_id(0)
    if first >= total:
        return
    if TIMED or PACED:
        began = globaltimer()
    within = tl.arange(0, TILE_WORDS)
    bank = tl.load(addresses + layer).to(tl.pointer_type(tl.int32))
    for tile in range(first, total, BLOCKS):
        row = fills + tile // tiles * 2
        expert = tl.load(row).to(tl.int64)
        slot = tl.load(row + 1).to(tl.int64)
        at = tile % tiles * TILE_WORDS + within
        blob = tl.multiple_of(bank, 16) + expert * stride
        words = tl.load(blob + at, mask=at < stride)
        tl.store(pool + slot * stride + at, words, mask=at < stride)
    if TIMED or PACED:
        # All of the block's warps have what they asked for.
        tl.debug_barrier()
        now = globaltimer()
        copied = blobs.to(tl.int64) * stride * 4
    if PACED:
        until = began + (copied.to(tl.float32) * tl.load(pace)).to(tl.int64)
        while now < until:
            now = globaltimer()
    if TIMED:
        span = spans + (layer * BLOCKS + first) * 2
        tl.store(span, began)
        tl.store(span + 1, now)
        if first == 0:
            tl.store(nbytes + layer, copied)


@triton.jit
def gauge_kernel(spans, nbytes, totals, told, layers, BLOCKS: tl.constexpr, LAYERS: tl.constexpr):
    """`LAYERS` is a power of two and no less than `layers`."""
    layer = tl.arange(0, LAYERS)
    there = layer < layers
    at = spans + (layer[:, None] * BLOCKS + tl.arange(0, BLOCKS)[None, :]) * 2
    began = tl.load(at, mask=there[:, None], other=0)
    ended = tl.load(at + 1, mask=there[:, None], other=0)
    last = tl.max(ended, 1)
    # Before any begin there is nothing to take away.
    first = tl.min(tl.where(began > 0, began, 0x7FFFFFFFFFFFFFFF), 1)
    took = tl.sum(tl.where(last > 0, last - first, 0), 0)
    copied = tl.sum(tl.load(nbytes + layer, mask=there, other=0), 0)
    for column in tl.static_range(2):
        total = tl.load(totals + column) + (copied if column else took)
        tl.store(totals + column, total)
        tl.store(told + column, total)
    tl.store(at, tl.zeros_like(began), mask=there[:, None])
    tl.store(at + 1, tl.zeros_like(ended), mask=there[:, None])
    tl.store(nbytes + layer, tl.zeros([LAYERS], tl.int64), mask=there)


def gather_blobs(pool: Tensor, banks: Banks, layer: int, fills: Tensor, count: Tensor) -> None:
    """As engine.kernels.gather.gather_blobs, of strides that are multiples of 4 bytes; to be fast
    they are of 64, as every blob's is."""
    gauge = banks.gauge
    gather_kernel[(BLOCKS,)](
        pool.view(torch.int32),
        banks.addresses,
        layer,
        fills,
        count,
        pool.shape[1] // 4,
        None if gauge is None else gauge.spans,
        None if gauge is None else gauge.nbytes,
        banks.pace,
        BLOCKS=BLOCKS,
        TILE_WORDS=TILE_WORDS,
        TIMED=gauge is not None,
        PACED=banks.pace is not None,
        num_warps=WARPS,
        num_stages=1,
    )


def read_gauge(spans: Tensor, gauge: Gauge) -> None:
    """As engine.kernels.gather.read_gauge. The host's copy is written over the link."""
    layers = spans.shape[0]
    gauge_kernel[(1,)](
        spans,
        gauge.nbytes,
        gauge.totals,
        gauge.told,
        layers,
        BLOCKS=spans.shape[1],
        LAYERS=triton.next_power_of_2(layers),
    )


_COPIES = {
    "pool": "*i32",
    "addresses": "*i64",
    "layer": "i32",
    "fills": "*i32",
    "count": "*i32",
    "stride": "i32",
}
_SIZES = {"BLOCKS": BLOCKS, "TILE_WORDS": TILE_WORDS}
_UNTIMED = {"spans": None, "nbytes": None, "pace": None, "TIMED": False, "PACED": False}
_TIMES = {"spans": "*i64", "nbytes": "*i64"}


def _ahead(name: str, times: Mapping[str, str], constants: Mapping[str, object]) -> Ahead:
    return Ahead(
        name,
        gather_kernel,
        {**_COPIES, **times},
        {**_SIZES, **constants},
        warps=WARPS,
        stages=1,
        multiples=frozenset({"stride"}),
    )


AHEAD = (
    _ahead("gather", {}, _UNTIMED),
    _ahead("gather timed", _TIMES, {"pace": None, "TIMED": True, "PACED": False}),
    _ahead("gather paced", {**_TIMES, "pace": "*fp32"}, {"TIMED": True, "PACED": True}),
    Ahead(
        "gather gauge",
        gauge_kernel,
        {"spans": "*i64", "nbytes": "*i64", "totals": "*i64", "told": "*i64", "layers": "i32"},
        {"BLOCKS": BLOCKS, "LAYERS": 64},
    ),
)
