"""What `headrace bench host` has the CPU do: products with stored weights far beyond the caches.

All of it reads one stretch of memory, whatever the format: rates do not depend on values, as long
as none is subnormal. One byte everywhere is a small number in every format's codes and scales.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.formats.blob import FORMATS as BLOB_FORMATS
from engine.formats.blob import BlobSpec, blob_spec
from engine.formats.weight import StoredWeight
from engine.kernels.linear import linear
from engine.kernels.moe import moe_expert_rows
from engine.memory.arena import HostArena

COLUMNS = 2048
BLOCK_ROWS = 128
"""Rows of a matrix are a multiple of this, the height of FP8's blocks."""
HIDDEN, INNER, ROUTES = 2048, 512, 8
"""Of the MoE layer's experts, and experts of a token: Qwen3.6-35B-A3B's."""
FILL = 0x35
LARGE = 1e13
"""Of activations. The scales of MXFP4 are 2^-74 here: what two products leave of these stays a
normal number, and what they make of the largest other scales stays below infinity."""

_PLAIN = {"float32": 4, "bfloat16": 2, "float16": 2}
_GGUF = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20)}
_GGUF |= {"q4_k": (256, 144), "q6_k": (256, 210)}
"""Columns and bytes of a block."""
FORMATS = (*_PLAIN, "fp8_block", "nvfp4", "mxfp4", *_GGUF)


@dataclass(frozen=True)
class Work:
    """`run` reads `nbytes` of weights once, by way of what `kernel` answers."""

    name: str
    nbytes: int
    run: Callable[[], object]

    def rate(self) -> float:
        """10^9 bytes a second of one run."""
        begin = time.perf_counter()
        self.run()
        return self.nbytes / (time.perf_counter() - begin) / 1e9


class Stretch:
    """`nbytes` of memory in large pages, all of them touched."""

    def __init__(self, nbytes: int) -> None:
        self._arena = HostArena(nbytes, large=True)
        self._arena.commit(nbytes)
        self.bytes = self._arena.view(0, (nbytes,), torch.uint8).fill_(FILL)

    def linear(self, storage: str, nbytes: int = 0, *, reference: bool = False) -> Work:
        """A product with one token of a matrix as large as the stretch, or as `nbytes` of it."""
        whole = self.bytes.numel()
        weight = self._weight(storage, min(nbytes or whole, whole))
        x = torch.randn(1, COLUMNS).to(torch.bfloat16)
        call = linear.reference if reference else linear
        return Work(storage, weight.nbytes, lambda: call(x, weight, None))

    def moe(self, storage: str, tokens: int = 0, *, reference: bool = False) -> Work | None:
        """Steps of one token each through a MoE layer, with experts drawn at random, none twice:
        until no experts are left, or so many tokens. None for a format that no blob holds, and
        where the stretch has not the experts of one token."""
        if storage not in BLOB_FORMATS:
            return None
        try:
            spec = blob_spec(storage, HIDDEN, INNER)
        except UnsupportedModel:
            return None
        experts = self.bytes.numel() // spec.stride
        if experts < ROUTES:
            return None
        bank = self.bytes[: experts * spec.stride].view(experts, spec.stride)
        draws = torch.randperm(experts)[: experts // ROUTES * ROUTES].view(-1, 1, ROUTES)
        draws = draws[: tokens or None]
        read = draws.numel() * sum(part.nbytes for part in spec.parts)
        call = moe_expert_rows.reference if reference else moe_expert_rows
        return Work(f"moe {storage}", read, lambda: _steps(call, bank, spec, draws))

    def _weight(self, storage: str, nbytes: int) -> StoredWeight:
        """About `nbytes` of the stretch as a matrix of this format."""
        rows = max(1, int(nbytes / _row_bytes(storage)) // BLOCK_ROWS) * BLOCK_ROWS
        taken = 0

        def part(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
            nonlocal taken
            begin, taken = taken, taken + math.prod(shape) * dtype.itemsize
            return self.bytes[begin:taken].view(dtype).view(shape)

        if storage in _PLAIN:
            parts = {"weight": part(rows, COLUMNS, dtype=getattr(torch, storage))}
        elif storage in _GGUF:
            columns, size = _GGUF[storage]
            parts = {"weight": part(rows, COLUMNS // columns * size)}
        elif storage == "fp8_block":
            parts = {"weight": part(rows, COLUMNS, dtype=torch.float8_e4m3fn)}
            blocks = (rows // BLOCK_ROWS, COLUMNS // BLOCK_ROWS)
            parts["scale"] = part(*blocks, dtype=torch.float32)
        elif storage == "nvfp4":
            parts = {"weight": part(rows, COLUMNS // 2)}
            parts["scale"] = part(rows, COLUMNS // 16, dtype=torch.float8_e4m3fn)
            parts["scale_2"] = torch.tensor(0.01)
        else:
            parts = {"weight": part(rows, COLUMNS // 2), "scale": part(rows, COLUMNS // 32)}
        return StoredWeight(storage, (rows, COLUMNS), parts)


def _row_bytes(storage: str) -> float:
    if storage in _PLAIN:
        return COLUMNS * _PLAIN[storage]
    if storage in _GGUF:
        columns, size = _GGUF[storage]
        return COLUMNS / columns * size
    bits = {"fp8_block": 8 + 32 / BLOCK_ROWS**2, "nvfp4": 4 + 8 / 16, "mxfp4": 4 + 8 / 32}
    return COLUMNS * bits[storage] / 8


def _steps(
    call: Callable[[Tensor, BlobSpec, Tensor, Tensor, Tensor], None],
    bank: Tensor,
    spec: BlobSpec,
    draws: Tensor,
) -> None:
    x = (torch.randn(1, HIDDEN) * LARGE).to(torch.bfloat16)
    rows = torch.empty(1, ROUTES, HIDDEN)
    for slots in draws:
        call(bank, spec, x, slots, rows)
