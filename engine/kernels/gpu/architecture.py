"""What kernels are told about where they run: the architecture, and whether it is Triton's
interpreter."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from engine.kernels.gpu.ahead import ARCHITECTURES

_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def interpreted() -> bool:
    """Kernels run in Python, on tensors in host memory: tests without a GPU."""
    return bool(triton.knobs.runtime.interpret)


@cache
def architecture(device: torch.device) -> int:
    """The newest of ARCHITECTURES that is no newer than the device: its row of the tables.

    The interpreter takes the row of small cards.
    """
    if interpreted():
        return 86
    major, minor = torch.cuda.get_device_capability(device)
    known = [each for each in ARCHITECTURES if each <= 10 * major + minor]
    if not known:
        raise RuntimeError(f"kernels need compute capability 8.0, the GPU has {major}.{minor}")
    return known[-1]


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """Type in which matrix products take their operands. Sums are float32 always.

    The interpreter computes with bfloat16 as if it were integers, so there it is float32.
    """
    return tl.float32 if interpreted() else _TYPES[dtype]
