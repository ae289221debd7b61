"""On Windows: the VRAM of each program, from the system's performance counters (PDH).

“Local Usage” is what is in VRAM now; “Dedicated Usage” would be what was promised. Counters are
added by their English names, since the system translates them.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable
from ctypes import wintypes

from app.core.governor.probes.probe import NotAvailable

_COUNTER = r"\GPU Process Memory(*)\Local Usage"
_INSTANCE = re.compile(r"pid_(\d+)_luid_(0x[0-9A-Fa-f]+_0x[0-9A-Fa-f]+)_phys_\d+")
_AS_INT64 = 0x00000400
_NO_SCALE = 0x00001000
_MORE_DATA = 0x800007D2
_NO_DATA = (0x800007D5, 0xC0000BC6)
"""No program uses a GPU now (PDH_NO_DATA, PDH_INVALID_DATA)."""


class CounterItem(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W with a value of 64 bits."""

    _fields_ = (
        ("name", ctypes.c_wchar_p),
        ("status", wintypes.DWORD),
        ("value", ctypes.c_int64),
    )


def vram_by_pid(counters: Iterable[tuple[str, int]], engine_pid: int) -> dict[int, int]:
    """Bytes by pid, of the GPU that the engine's process uses most; of all where it uses none."""
    by_gpu: dict[str, dict[int, int]] = {}
    for name, used in counters:
        if match := _INSTANCE.fullmatch(name):
            users = by_gpu.setdefault(match[2].lower(), {})
            users[int(match[1])] = users.get(int(match[1]), 0) + used
    engines = max(by_gpu.values(), key=lambda users: users.get(engine_pid, 0), default={})
    if engine_pid in engines:
        return engines
    total: dict[int, int] = {}
    for users in by_gpu.values():
        for pid, used in users.items():
            total[pid] = total.get(pid, 0) + used
    return total


class WindowsVramProbe:
    name = "VRAM of each program"

    def __init__(self) -> None:
        self._query: int | None = None
        self._counter: int | None = None

    def read(self, engine_pid: int) -> dict[int, int]:
        """Bytes by pid; none on other systems. Raises NotAvailable."""
        counters: list[tuple[str, int]] = []
        if sys.platform == "win32":
            counters = self._counters()
        return vram_by_pid(counters, engine_pid)

    def rest(self) -> None:
        if sys.platform == "win32" and self._query is not None:
            _pdh().PdhCloseQuery(self._query)
        self._query = self._counter = None

    if sys.platform == "win32":

        def _counters(self) -> list[tuple[str, int]]:
            pdh = _pdh()
            if self._query is None:
                self._open(pdh)
            self._check(pdh.PdhCollectQueryData(self._query))
            size, count = wintypes.DWORD(), wintypes.DWORD()
            places = (ctypes.byref(size), ctypes.byref(count))
            form = _AS_INT64 | _NO_SCALE
            status = pdh.PdhGetFormattedCounterArrayW(self._counter, form, *places, None)
            if status in _NO_DATA:
                return []
            if status != _MORE_DATA:
                self._check(status)
            # Names lie behind the items, in the same memory.
            room = ctypes.create_string_buffer(size.value)
            status = pdh.PdhGetFormattedCounterArrayW(self._counter, form, *places, room)
            if status == _MORE_DATA:
                raise NotAvailable("Programs came while they were counted.")
            self._check(status)
            items = ctypes.cast(room, ctypes.POINTER(CounterItem))
            return [(items[i].name, items[i].value) for i in range(count.value)]

        def _open(self, pdh: ctypes.WinDLL) -> None:
            query, counter = wintypes.HANDLE(), wintypes.HANDLE()
            self._check(pdh.PdhOpenQueryW(None, None, ctypes.byref(query)))
            self._query = query.value
            added = pdh.PdhAddEnglishCounterW(query, _COUNTER, None, ctypes.byref(counter))
            self._check(added)
            self._counter = counter.value

        def _check(self, status: int) -> None:
            if status and status not in _NO_DATA:
                self.rest()
                raise NotAvailable(f"Windows' counters fail with code 0x{status:08X}.")


if sys.platform == "win32":

    def _pdh() -> ctypes.WinDLL:
        """pdh.dll with the types of what is used: statuses are unsigned, handles pointers."""
        pdh = ctypes.WinDLL("pdh")
        handle, dword, pointer = wintypes.HANDLE, wintypes.DWORD, ctypes.c_void_p
        pdh.PdhOpenQueryW.argtypes = (wintypes.LPCWSTR, pointer, pointer)
        pdh.PdhAddEnglishCounterW.argtypes = (handle, wintypes.LPCWSTR, pointer, pointer)
        pdh.PdhCollectQueryData.argtypes = (handle,)
        pdh.PdhGetFormattedCounterArrayW.argtypes = (handle, dword, pointer, pointer, pointer)
        pdh.PdhCloseQuery.argtypes = (handle,)
        for function in (
            pdh.PdhOpenQueryW,
            pdh.PdhAddEnglishCounterW,
            pdh.PdhCollectQueryData,
            pdh.PdhGetFormattedCounterArrayW,
            pdh.PdhCloseQuery,
        ):
            function.restype = dword
        return pdh
