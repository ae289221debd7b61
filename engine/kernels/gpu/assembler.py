"""Which of Triton's two assemblers makes a kernel.

One is of CUDA 12.8; the other, newer, is Triton's choice from compute capability 10 on. On 9.0 the
older one lets some warps of `delta_scan` read outside of shared memory (their matrix descriptors
are wrong); the newer one does not. Below 9.0 the older one spills less.
"""

from __future__ import annotations

import os

import triton

_HOPPER = (9, 0)


def use_assembler(capability: tuple[int, int]) -> None:
    """For kernels of this compute capability from now on, unless TRITON_PTXAS_PATH names one."""
    if capability == _HOPPER and not os.environ.get("TRITON_PTXAS_PATH"):
        triton.knobs.nvidia.ptxas = triton.knobs.nvidia.ptxas_blackwell.path
