"""On Windows: a child process that the system ends together with this one.

A closed pipe ends a child that reads it; a Job Object ends also one that is stuck. Elsewhere the
child asks the kernel for a parent-death signal by itself (engine.child_process).
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys

log = logging.getLogger("headrace.child")

_EXTENDED_LIMIT_INFORMATION = 9
_KILL_ON_JOB_CLOSE = 0x2000
_PROCESS_SET_QUOTA_AND_TERMINATE = 0x0100 | 0x0001


class _BasicLimits(ctypes.Structure):
    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", ctypes.c_uint32),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", ctypes.c_uint32),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", ctypes.c_uint32),
        ("SchedulingClass", ctypes.c_uint32),
    )


class _ExtendedLimits(ctypes.Structure):
    _fields_ = (
        ("BasicLimitInformation", _BasicLimits),
        ("IoCounters", ctypes.c_uint64 * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    )


@functools.cache
def own_job() -> JobObject:
    """The one job of this process; it lasts as long as the process does."""
    return JobObject()


class JobObject:
    """Holds the processes put into it; Windows ends them when this process is gone.

    Does nothing on other systems.
    """

    def __init__(self) -> None:
        self._handle: int | None = None
        if sys.platform == "win32":
            self._handle = self._create()

    def add(self, pid: int) -> None:
        """A failure is a warning: the closed pipe still ends every child that is not stuck."""
        if sys.platform == "win32" and self._handle is not None:
            kernel = _kernel()
            process = kernel.OpenProcess(_PROCESS_SET_QUOTA_AND_TERMINATE, False, pid)
            added = process and kernel.AssignProcessToJobObject(self._handle, process)
            if not added:
                log.warning(
                    "process %d is not tied to this one: %s",
                    pid,
                    ctypes.WinError(ctypes.get_last_error()),
                )
            if process:
                kernel.CloseHandle(process)

    if sys.platform == "win32":

        def _create(self) -> int | None:
            kernel = _kernel()
            handle = kernel.CreateJobObjectW(None, None)
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            size = ctypes.sizeof(limits)
            if handle and kernel.SetInformationJobObject(
                handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), size
            ):
                return int(handle)
            log.warning("no Job Object could be made: %s", ctypes.WinError(ctypes.get_last_error()))
            return None


if sys.platform == "win32":

    def _kernel() -> ctypes.WinDLL:
        """kernel32 with the types of what is used: handles are pointers, not C ints."""
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        handle, dword = ctypes.c_void_p, ctypes.c_uint32
        kernel.CreateJobObjectW.restype = handle
        kernel.CreateJobObjectW.argtypes = (handle, ctypes.c_wchar_p)
        kernel.SetInformationJobObject.argtypes = (handle, ctypes.c_int, handle, dword)
        kernel.OpenProcess.restype = handle
        kernel.OpenProcess.argtypes = (dword, ctypes.c_int, dword)
        kernel.AssignProcessToJobObject.argtypes = (handle, handle)
        kernel.CloseHandle.argtypes = (handle,)
        return kernel
