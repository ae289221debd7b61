"""Calls of CUDA's driver that torch does not offer: virtual memory, and host memory for the GPU.

Through ctypes on the driver's own library; torch-free. Every call is made in the GPU's primary
context, which is torch's, and its result is checked. Names and numbers are those of cuda.h.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from engine.errors import DeviceFault, DeviceUnavailable, DriverError, HeadraceError, OutOfMemory

_VIRTUAL_MEMORY = 102
"""CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"""
_PINNED, _DEVICE, _READ_WRITE, _MINIMUM = 1, 1, 3, 0
_PORTABLE_AND_MAPPED = 0x01 | 0x02
"""CU_MEMHOSTREGISTER_PORTABLE and _DEVICEMAP. Not _READ_ONLY: not every GPU has it, and on others
it asks for pages that the host cannot write to."""
_OUT_OF_MEMORY = 2
_LOST = frozenset({4, 214, 220, 226, 700, 702, 709, 710, *range(714, 720), 911})
"""After these nothing can be computed in this process: errors of kernels, the hardware's, and a
context that is gone."""


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("windows_attributes", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = (("location", _Location), ("flags", c_int))


_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Properties), c_int),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Properties), c_uint64),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemRelease": (c_uint64,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostGetDevicePointer_v2": (POINTER(c_uint64), c_void_p, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
}


@cache
def _library() -> ctypes.CDLL:
    """Raises DeviceUnavailable where there is no driver."""
    try:
        if sys.platform == "win32":
            library: ctypes.CDLL = ctypes.WinDLL("nvcuda.dll")
        else:
            library = ctypes.CDLL("libcuda.so.1")
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise DeviceUnavailable(
            f"NVIDIA's driver cannot be used: {error}.",
            hint="Install a driver for the GPU, or a newer one.",
        ) from error
    return library


def _call(name: str, *arguments: object) -> None:
    """Raises what the driver's result means."""
    code: int = getattr(_library(), name)(*arguments)
    if code:
        raise _meaning(name, code)


def _meaning(call: str, code: int) -> HeadraceError:
    name, text = c_char_p(), c_char_p()
    _library().cuGetErrorName(code, byref(name))
    _library().cuGetErrorString(code, byref(text))
    known, said = (each.value.decode() if each.value else f"error {code}" for each in (name, text))
    message = f"{call.removesuffix('_v2')}: {known} ({said})"
    if code == _OUT_OF_MEMORY:
        return OutOfMemory(message)
    if code in _LOST:
        return DeviceFault(message, hint="The engine must be started again.")
    return DriverError(message, hint="The log of the system may say more about the GPU's driver.")


class Driver:
    """One GPU. Addresses, sizes and handles are plain numbers.

    Beside what each method says, all raise DeviceFault when the context is broken, OutOfMemory when
    the driver says so, and DriverError for other refusals.
    """

    def __init__(self, ordinal: int) -> None:
        """Raises DeviceUnavailable where there is no driver."""
        _call("cuInit", 0)
        device, self._context = c_int(), c_void_p()
        _call("cuDeviceGet", byref(device), ordinal)
        self._device = device.value
        # Never given back: torch keeps the same context until the process ends.
        _call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        self._place = _Location(_DEVICE, self._device)
        self._properties = _Properties(_PINNED, 0, self._place)

    def _here(self, name: str, *arguments: object) -> None:
        """The call, in the GPU's context whatever this thread's is."""
        with self._current():
            _call(name, *arguments)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """This thread is in the GPU's context."""
        _call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", byref(c_void_p()))

    @property
    def has_virtual_memory(self) -> bool:
        found = c_int()
        _call("cuDeviceGetAttribute", byref(found), _VIRTUAL_MEMORY, self._device)
        return bool(found.value)

    def granularity(self) -> int:
        """Bytes of which every size and address of virtual memory must be a multiple."""
        size = c_size_t()
        self._here("cuMemGetAllocationGranularity", byref(size), byref(self._properties), _MINIMUM)
        return size.value

    def free_bytes(self) -> int:
        free, total = c_size_t(), c_size_t()
        self._here("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value

    def synchronise(self) -> None:
        """Wait for every stream of the context."""
        self._here("cuCtxSynchronize")

    def reserve(self, nbytes: int) -> int:
        """Address of a range that nothing backs yet."""
        address = c_uint64()
        self._here("cuMemAddressReserve", byref(address), nbytes, 0, 0, 0)
        return address.value

    def free_range(self, address: int, nbytes: int) -> None:
        self._here("cuMemAddressFree", address, nbytes)

    def create(self, nbytes: int) -> int:
        """Handle of so much of the GPU's memory, which has no address yet."""
        handle = c_uint64()
        self._here("cuMemCreate", byref(handle), nbytes, byref(self._properties), 0)
        return handle.value

    def release(self, handle: int) -> None:
        """The memory goes once it is unmapped too."""
        self._here("cuMemRelease", handle)

    def map(self, address: int, nbytes: int, handle: int) -> None:
        self._here("cuMemMap", address, nbytes, 0, handle, 0)

    def allow(self, address: int, nbytes: int) -> None:
        """Let this GPU read and write what is mapped there."""
        access = _Access(self._place, _READ_WRITE)
        self._here("cuMemSetAccess", address, nbytes, byref(access), 1)

    def unmap(self, address: int, nbytes: int) -> None:
        """Nothing that runs may use these addresses."""
        self._here("cuMemUnmap", address, nbytes)

    def register(self, address: int, nbytes: int) -> None:
        """Lock pages of host memory and let the GPU read them."""
        self._here("cuMemHostRegister_v2", address, nbytes, _PORTABLE_AND_MAPPED)

    def device_address(self, address: int) -> int:
        """Where the GPU finds registered host memory."""
        found = c_uint64()
        self._here("cuMemHostGetDevicePointer_v2", byref(found), address, 0)
        return found.value

    def unregister(self, address: int) -> None:
        """Nothing that runs may use this memory."""
        self._here("cuMemHostUnregister", address)

    def copy_in(self, copies: Iterable[tuple[int, int, int]], stream: int) -> None:
        """(target on the GPU, source in host memory, bytes) one after another, as the copy engine
        comes to them in the order of this stream. Sources that are not pinned are waited for."""
        with self._current():
            for target, source, nbytes in copies:
                _call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)


@cache
def driver(ordinal: int) -> Driver:
    """Of the GPU with this number among those that the process sees, as torch counts them."""
    return Driver(ordinal)
