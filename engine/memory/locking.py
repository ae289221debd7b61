"""Keeps host memory from being swapped out, as far as the system permits it. Torch-free."""

from __future__ import annotations

import ctypes
import os
import sys

if sys.platform == "win32":
    _kernel32 = ctypes.WinDLL("kernel32", use_last_error=True)
    _kernel32.GetCurrentProcess.restype = ctypes.c_void_p
    _SIZES = [ctypes.c_size_t, ctypes.c_size_t]
    _kernel32.SetProcessWorkingSetSize.argtypes = [ctypes.c_void_p, *_SIZES]
    _kernel32.GetProcessWorkingSetSize.argtypes = [
        ctypes.c_void_p,
        *[ctypes.POINTER(ctypes.c_size_t)] * 2,
    ]
    _kernel32.VirtualLock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def lock_memory(address: int, nbytes: int) -> str:
        """Lock these bytes. Returns why that is not permitted; "" when they are locked."""
        process = _kernel32.GetCurrentProcess()
        least, most = ctypes.c_size_t(), ctypes.c_size_t()
        # A process may lock about as much as its least working set.
        _kernel32.GetProcessWorkingSetSize(process, ctypes.byref(least), ctypes.byref(most))
        wanted = (least.value + nbytes, max(most.value, least.value) + nbytes)
        if _kernel32.SetProcessWorkingSetSize(process, *wanted) and _kernel32.VirtualLock(
            address, nbytes
        ):
            return ""
        return str(ctypes.WinError(ctypes.get_last_error()))

else:
    import resource

    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def lock_memory(address: int, nbytes: int) -> str:
        """Lock these bytes. Returns why that is not permitted; "" when they are locked."""
        if _libc.mlock(address, nbytes) == 0:
            return ""
        reason = os.strerror(ctypes.get_errno())
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if limit == resource.RLIM_INFINITY:
            return reason
        return f"{reason}; this user may lock {limit / 1e9:.3f} GB (ulimit -l is {limit >> 10})"
