"""Waiting for the GPU's clock between a stream's copies."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from engine.kernels.gpu.ahead import Ahead


@triton.jit
def mark_kernel(began):
    tl.store(began, globaltimer())


@triton.jit(do_not_specialize=["nbytes"])
def wait_kernel(began, pace, nbytes):
    until = tl.load(began) + (nbytes.to(tl.float32) * tl.load(pace)).to(tl.int64)
    now = globaltimer()
    while now < until:
        now = globaltimer()


def mark_clock(began: Tensor) -> None:
    mark_kernel[(1,)](began, num_warps=1)


def wait_clock(began: Tensor, pace: Tensor, nbytes: int) -> None:
    wait_kernel[(1,)](began, pace, nbytes, num_warps=1)


AHEAD = (
    Ahead("mark clock", mark_kernel, {"began": "*i64"}, {}, warps=1),
    Ahead(
        "wait clock", wait_kernel, {"began": "*i64", "pace": "*fp32", "nbytes": "i64"}, {}, warps=1
    ),
)
