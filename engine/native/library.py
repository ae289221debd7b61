"""Loads the native library with ctypes. Torch-free: tensors are addresses here.

The library is built by `dev.py setup` into `_build`; in a wheel it lies beside this file. Its
functions and their meaning are in `source/headrace_native.h`; nothing here checks shapes, that is
the callers' part.
"""

from __future__ import annotations

import ctypes
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from engine.errors import InvalidRequest
from engine.formats.blob import BlobSpec
from engine.native import structures
from engine.native.structures import AttentionLayout, Matrix, ReadOutcome, Rotation
from engine.paths import debug_setting, program

logger = logging.getLogger(__name__)

ABI = 5
FOLDER = Path(__file__).resolve().parent / "_build"
SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_NAMES = "float32 bfloat16 float16 fp8_block nvfp4 mxfp4 q8_0 q4_0 q4_1 q4_k q6_k"
FORMATS = {name: number for number, name in enumerate(_NAMES.split())}
"""By their names in StoredWeight."""
ACTIVATIONS = {"silu_glu": 0, "gelu_tanh_glu": 1, "clamped_swiglu": 2}
FLOAT32, BFLOAT16 = 0, 1
"""Types of activations and biases."""

_CPUS = os.cpu_count() or 1

OK, BAD_ARGUMENT, BAD_SLOT, OUT_OF_MEMORY, POISONED, LATE = range(6)


class NativeError(Exception):
    """The library cannot be used; the text says why and what to do."""


class ExpertLayout(Structure):
    """headrace_expert_layout"""

    _fields_ = [
        *((name, c_int64) for name in ("hidden", "intermediate", "stride")),
        *((f"gate_up_{part}", c_int64) for part in ("weight", "scale", "scale_2")),
        *((f"down_{part}", c_int64) for part in ("weight", "scale", "scale_2")),
        ("gate_up_bias", c_int64),
        ("down_bias", c_int64),
        ("gate_up_format", c_int32),
        ("down_format", c_int32),
        ("bias_type", c_int32),
    ]


class DoorbellShape(Structure):
    """headrace_doorbell_shape"""

    _fields_ = [
        *((name, c_int64) for name in ("tokens", "routes", "hidden")),
        *((name, c_int64) for name in ("slots", "x", "rows", "bytes")),
        ("x_type", c_int32),
    ]


class Layer(Structure):
    """headrace_layer"""

    _fields_ = [
        ("experts", ExpertLayout),
        ("bank", c_void_p),
        ("blobs", c_int64),
        ("activation", c_int32),
    ]


_MATRIX = (c_int32, c_int64, c_int64, c_void_p, c_void_p, c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "headrace_tiers": (c_int32,),
    "headrace_tier_name": (c_char_p, c_int32),
    "headrace_tier_usable": (c_int32, c_int32),
    "headrace_tier": (c_int32,),
    "headrace_set_tier": (c_int32, c_int32),
    "headrace_set_threads": (c_int32, c_int32),
    "headrace_products": (c_int32, POINTER(Matrix), c_int32, c_void_p, c_int32, c_int64, c_void_p),
    "headrace_mlp": (c_int32, POINTER(Matrix), c_int32, c_void_p, c_int32, c_int64, c_void_p),
    "headrace_attention": (
        *(c_int32, POINTER(AttentionLayout), POINTER(structures.Sequence)),
        *(c_int64, c_void_p, c_void_p),
    ),
    "headrace_rms_norm": (
        *(c_int32, c_void_p, c_void_p, c_void_p, c_float),
        *(c_int64, c_int64, c_void_p, c_void_p),
    ),
    "headrace_rotate_and_store": (c_int32, POINTER(AttentionLayout), POINTER(Rotation)),
    "headrace_attention_block": (
        *(c_int32, POINTER(Matrix), POINTER(Matrix), POINTER(AttentionLayout), POINTER(Rotation)),
        *(POINTER(structures.Sequence), c_int64, c_void_p, c_void_p),
    ),
    "headrace_route": (
        *(c_int32, c_void_p, c_int64, c_int64, c_void_p, c_int32),
        *(c_int64, c_int64, c_int32, c_void_p, c_void_p),
    ),
    "headrace_moe_rows": (
        *(c_int32, POINTER(ExpertLayout), c_void_p, c_int64, c_void_p, c_int32),
        *(c_int64, c_int64, c_void_p, c_int32, c_void_p),
    ),
    "headrace_settle": (c_int32,),
    "headrace_moe_combine": (c_int32, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p),
    "headrace_add_gated": (c_int32, c_void_p, c_void_p, c_void_p, c_int64, c_int64),
    "headrace_decode": (c_int32, *_MATRIX, c_int64, c_int64, c_void_p),
    "headrace_read": (c_uint64, c_void_p, c_int64),
    "headrace_set_cpus": (c_int32, POINTER(c_int32), c_int32, c_int32),
    "headrace_placed": (c_int32,),
    "headrace_doorbell_layout": (c_int32, POINTER(DoorbellShape)),
    "headrace_doorbell_ring": (c_int32, c_void_p, c_int32, c_int32, c_int32, POINTER(c_uint32)),
    "headrace_doorbell_wait": (c_int32, c_void_p, c_uint32, c_int64),
    "headrace_doorbell_poison": (c_uint32, c_void_p),
    "headrace_coordinator_open": (
        *(c_int32, POINTER(Layer), c_int32, POINTER(DoorbellShape), c_void_p, c_int64, c_int32),
        POINTER(c_void_p),
    ),
    "headrace_coordinator_begin": (None, c_void_p, c_int64),
    "headrace_coordinator_end": (None, c_void_p),
    "headrace_coordinator_answers": (c_uint64, c_void_p),
    "headrace_coordinator_busy_ns": (c_uint64, c_void_p),
    "headrace_coordinator_close": (c_int32, c_void_p, c_int64),
}
READ_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "headrace_read_begin": (c_void_p, POINTER(c_char_p), c_int64, c_void_p, c_int64, c_int32),
    "headrace_read_done": (c_int64, c_void_p),
    "headrace_read_wait": (c_int32, c_void_p, c_int32),
    "headrace_read_cancel": (None, c_void_p),
    "headrace_read_end": (c_int32, c_void_p, POINTER(ReadOutcome)),
}
"""Of `source/headrace_files.h`; `file_reads.py` calls them."""


class Library:
    """The functions of one loaded library. Calls release the interpreter lock.

    `functions` has them all, by their names in C.
    """

    def __init__(self, path: Path) -> None:
        """Raises NativeError for a file that does not load or speaks another version."""
        self.path = path
        _check_size(path)
        try:
            self.functions = ctypes.CDLL(str(path))
            self.functions.headrace_abi.restype = c_int32
            found = self.functions.headrace_abi()
        except (OSError, AttributeError) as error:
            raise NativeError(f"{path} does not load: {error}") from error
        if found != ABI:
            raise NativeError(f"{path} has interface {found}, this version needs {ABI}")
        for name, (result, *arguments) in (_SIGNATURES | READ_SIGNATURES).items():
            try:
                function = getattr(self.functions, name)
            except AttributeError as error:
                raise NativeError(f"{path} is of another version: it lacks {name}") from error
            function.restype, function.argtypes = result, arguments
        self.products = self.functions.headrace_products
        self.mlp = self.functions.headrace_mlp
        self.attention = self.functions.headrace_attention
        self.rms_norm = self.functions.headrace_rms_norm
        self.rotate_and_store = self.functions.headrace_rotate_and_store
        self.attention_block = self.functions.headrace_attention_block
        self.route = self.functions.headrace_route
        self.add_gated = self.functions.headrace_add_gated
        self.moe_combine = self.functions.headrace_moe_combine
        self.decode = self.functions.headrace_decode
        self.read = self.functions.headrace_read
        self._process = os.getpid()
        self._threads = 1
        self._setting = threading.Lock()
        self._step = threading.Lock()
        self._banks: dict[int, object] = {}

    def moe_rows(self, bank: object, *arguments: object) -> int:
        """headrace_moe_rows, of which `bank` owns the bank: it is kept for as long as a thread that
        another program keeps from its core may read it."""
        with self._step:
            status = int(self.functions.headrace_moe_rows(*arguments))
            if status == OK:
                self._banks.clear()
            self._banks[id(bank)] = bank
        return OK if status == LATE else status

    def settle(self) -> None:
        """Return when no thread reads a bank of earlier calls any more: before one is written to,
        or its memory is given back. Banks that are only dropped need no such call."""
        with self._step:
            self.functions.headrace_settle()
            self._banks.clear()

    @property
    def compiled_tiers(self) -> list[str]:
        """Names of the instruction sets that the library has code for, ascending."""
        count = self.functions.headrace_tiers()
        return [self.functions.headrace_tier_name(i).decode() for i in range(count)]

    @property
    def tiers(self) -> list[str]:
        """Those of them that this machine can run."""
        names = enumerate(self.compiled_tiers)
        return [name for i, name in names if self.functions.headrace_tier_usable(i)]

    @property
    def tier(self) -> str:
        name: bytes = self.functions.headrace_tier_name(self.functions.headrace_tier())
        return name.decode()

    def set_tier(self, name: str) -> None:
        """Use this instruction set. Raises NativeError if the machine has not got it."""
        usable = self.tiers
        if name not in usable:
            raise NativeError(f"no instruction set {name!r} here; there are {', '.join(usable)}")
        self.cap_tier(name)

    def cap_tier(self, name: str) -> None:
        """Use the best of `tiers` that is not above this one of `compiled_tiers`."""
        self.functions.headrace_set_tier(self.compiled_tiers.index(name))

    def set_threads(self, threads: int) -> None:
        """Have this many threads, the caller's included; never more than there are CPUs. Raises
        NativeError in a child of fork()."""
        self._check_process()
        threads = min(threads, _CPUS)
        # The usual answer needs no lock: whoever changes the number waits for the library's calls.
        if threads == self._threads:
            return
        with self._setting:
            if threads != self._threads:
                self.functions.headrace_set_threads(threads)
                self._threads = threads

    def set_cpus(self, cpus: Sequence[int], *, each: bool = False) -> None:
        """Let threads run on any of these CPUs (the system's numbers, one a core), or `each` on its
        own: then the first is the caller's, who must be there, or it shares a core with a thread.
        None: anywhere. Raises NativeError in a child of fork()."""
        self._check_process()
        self.functions.headrace_set_cpus((c_int32 * len(cpus))(*cpus), len(cpus), each)

    def _check_process(self) -> None:
        """A child of fork() has none of the threads, which it would wait for without end."""
        if os.getpid() != self._process:
            raise NativeError(
                "the CPU kernels belong to the process that loaded them, and this one was forked "
                "from it: start a process afresh instead"
            )

    @property
    def placed(self) -> int:
        """How many threads the system has put on their CPUs so far, without the caller's."""
        return int(self.functions.headrace_placed())


@functools.cache
def expert_layout(spec: BlobSpec) -> ExpertLayout:
    """Where the parts of a blob lie."""
    offsets = {part.name.replace(".", "_"): part.offset for part in spec.parts}
    names = [f"{matrix}_{part}" for matrix in ("gate_up", "down") for part in _PARTS]
    return ExpertLayout(
        spec.hidden,
        spec.intermediate,
        spec.stride,
        *(offsets.get(name, -1) for name in names),
        *(offsets.get(name, -1) for name in ("gate_up_bias", "down_bias")),
        FORMATS[spec.gate_up_format],
        FORMATS[spec.down_format],
        BFLOAT16 if spec.bias == "bfloat16" else FLOAT32,
    )


_PARTS = ("weight", "scale", "scale_2")


@functools.cache
def library() -> Library | None:
    """The library, None where there is none or it does not fit: the log says so, once.

    Raises InvalidRequest for a HEADRACE_DEBUG_ISA that names no instruction set.
    """
    if debug_setting("native", "1") == "0":
        return None
    try:
        return _load()
    except NativeError as error:
        logger.warning(
            "CPU kernels are not available (%s): PyTorch's operations compute instead, slower. %s",
            *(error, remedy()),
        )
        return None


def remedy() -> str:
    """What to do where the library is not there: in a checkout, and where a wheel is installed."""
    command = "python3 dev.py setup"
    if not (program() / "dev.py").exists():
        command = f'"{sys.executable}" -m pip install --force-reinstall --no-deps '
        command += "(the folder or archive of Headrace's source)"
    return f"With a C++20 compiler installed, this builds them: {command}"


def _check_size(path: Path) -> None:
    """By the record of the set-up: to load a file that was cut off ends the process (SIGBUS)."""
    try:
        record = json.loads((path.parent / "record.json").read_text(encoding="utf-8"))
        size = path.stat().st_size
    except (OSError, ValueError):
        return  # a wheel's has no record, nor one that was compiled by hand
    made = record.get("size", size) if isinstance(record, dict) else size
    if size != made:
        raise NativeError(f"{path} is damaged: it has {size} bytes, and {made} when it was made")


def _apply_setting(loaded: Library) -> None:
    """HEADRACE_DEBUG_ISA, the highest instruction set to use; empty for the best."""
    setting = debug_setting("isa")
    if not setting:
        return
    name, known = setting.strip().lower(), loaded.compiled_tiers
    if name not in known:
        raise InvalidRequest(
            f"HEADRACE_DEBUG_ISA is {setting!r}, which is no instruction set of the CPU kernels",
            hint=f"Unset it, or set it to one of these: {', '.join(known)}.",
        )
    loaded.cap_tier(name)
    if loaded.tier != name:
        logger.warning("This machine has no %s: the CPU kernels use %s", name, loaded.tier)


def _load() -> Library:
    name = f"headrace_native{SUFFIX}"
    # In a checkout it lies where it was built, in a wheel beside this file.
    path = next((path for path in (FOLDER / name, FOLDER.parent / name) if path.exists()), None)
    if path is None:
        raise NativeError("they have not been built")
    loaded = Library(path)
    _apply_setting(loaded)
    logger.info("CPU kernels: %s, process %d", loaded.tier, os.getpid())
    return loaded
