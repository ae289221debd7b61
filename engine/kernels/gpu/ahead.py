"""Compiling kernels ahead of time: for any architecture, on a machine without a GPU.

Each module of this package lists its kernels in `AHEAD` with the types and constants that the
engine launches them with. Tests compile all of them, and installers will ship the result: a user's
PC need not have a C compiler, and no first token waits for one.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.gpu.assembler import use_assembler

ARCHITECTURES = (80, 86, 89, 90, 120)
"""Compute capabilities, times ten: A100, RTX 30, RTX 40, H100 and H200, RTX 50."""
MOST_SHARED_BYTES = 99 * 1024
"""Of a block, on the architectures of consumer cards (86, 89, 120)."""
_WARP = 32


@dataclass(frozen=True)
class Ahead:
    """One kernel as it is launched."""

    name: str
    kernel: Any
    """The function that triton.jit decorates."""
    types: Mapping[str, str]
    """Parameter to Triton's type: "*bf16", "*u8", "i32", "fp32", in the order of the function.
    Pointers are taken to be multiples of 16 bytes, as torch's are."""
    constants: Mapping[str, Any]
    """tl.constexpr parameters."""
    warps: int = 4
    stages: int = 3
    multiples: frozenset[str] = field(default_factory=frozenset)
    """Integer parameters that are multiples of 16."""
    architectures: tuple[int, ...] = ARCHITECTURES
    """Those that launch it: tiles differ between them."""
    registers: int | None = None
    """Most that a thread may take, as `maxnreg` at the launch. Unless it is given, the assembler
    spills a few for a better occupancy."""
    fusion: bool = True
    """Whether products and sums may be rounded once."""


@dataclass(frozen=True)
class Resources:
    registers: int
    spilled_bytes: int
    """Of local memory a thread."""
    shared_bytes: int
    """Of a block."""


def compiled(case: Ahead, architecture: int) -> Any:
    """Triton's compiled kernel: `asm["cubin"]` and `metadata`."""
    names = list(case.types)
    divisible = [["tt.divisibility", 16]]
    attributes = {
        (place,): divisible
        for place, name in enumerate(names)
        if case.types[name].startswith("*") or name in case.multiples
    }
    source = ASTSource(
        case.kernel,
        signature={**case.types, **dict.fromkeys(case.constants, "constexpr")},
        constexprs=dict(case.constants),
        attrs=attributes,
    )
    options = {
        "num_warps": case.warps,
        "num_stages": case.stages,
        "maxnreg": case.registers,
        "enable_fp_fusion": case.fusion,
    }
    with triton.knobs.nvidia.scope():
        use_assembler(divmod(architecture, 10))
        target = GPUTarget("cuda", architecture, _WARP)
        return triton.compile(source, target=target, options=options)


def resources(case: Ahead, architecture: int) -> Resources:
    """What one block of the compiled kernel takes. Raises RuntimeError if that cannot be read."""
    kernel = compiled(case, architecture)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        done = subprocess.run(
            [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=False
        )
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", done.stdout)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of {case.name}: {done.stderr.strip()}")
    registers, stack, local = map(int, found.groups())
    return Resources(registers, stack + local, kernel.metadata.shared)
