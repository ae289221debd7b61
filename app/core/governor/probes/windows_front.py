"""On Windows: the window in front, whether it covers its screen, and what the shell says of it."""

from __future__ import annotations

import ctypes
import sys
from ctypes import wintypes

from app.core.governor.probes.front import Front

_STYLE = -16
_CAPTION = 0x00C00000
"""Windows with a title bar are no fullscreen ones, however large."""
_NEAREST = 2
_DRAWS_BY_ITSELF = 3
"""QUNS_RUNNING_D3D_FULL_SCREEN"""

Rectangle = tuple[int, int, int, int]
"""left, top, right, bottom"""


class _MonitorInfo(ctypes.Structure):
    _fields_ = (
        ("size", wintypes.DWORD),
        ("monitor", wintypes.RECT),
        ("work", wintypes.RECT),
        ("flags", wintypes.DWORD),
    )


def covers(window: Rectangle, screen: Rectangle, style: int) -> bool:
    """Whether a window of this style hides everything else on its screen."""
    left, top, right, bottom = window
    inside = left <= screen[0] and top <= screen[1] and right >= screen[2] and bottom >= screen[3]
    return inside and style & _CAPTION != _CAPTION


class WindowsFrontProbe:
    name = "Window in front"

    def read(self) -> Front | None:
        """The window with the focus; none on other systems."""
        front: Front | None = None
        if sys.platform == "win32":
            front = _front()
        return front

    def rest(self) -> None:
        pass


if sys.platform == "win32":

    def _front() -> Front | None:
        user = ctypes.WinDLL("user32", use_last_error=True)
        user.GetForegroundWindow.restype = wintypes.HWND
        user.MonitorFromWindow.restype = wintypes.HMONITOR
        user.MonitorFromWindow.argtypes = (wintypes.HWND, wintypes.DWORD)
        user.GetMonitorInfoW.argtypes = (wintypes.HMONITOR, ctypes.POINTER(_MonitorInfo))
        user.GetWindowRect.argtypes = (wintypes.HWND, ctypes.POINTER(wintypes.RECT))
        user.GetWindowLongW.argtypes = (wintypes.HWND, ctypes.c_int)
        user.GetWindowThreadProcessId.argtypes = (wintypes.HWND, ctypes.POINTER(wintypes.DWORD))
        window = user.GetForegroundWindow()
        if not window:
            return None
        pid, area = wintypes.DWORD(), wintypes.RECT()
        screen = _MonitorInfo(size=ctypes.sizeof(_MonitorInfo))
        user.GetWindowThreadProcessId(window, ctypes.byref(pid))
        monitor = user.MonitorFromWindow(window, _NEAREST)
        if not user.GetWindowRect(window, ctypes.byref(area)) or not user.GetMonitorInfoW(
            monitor, ctypes.byref(screen)
        ):
            return None  # it is gone again
        style = user.GetWindowLongW(window, _STYLE)
        exclusive = _someone_draws_by_itself()
        fullscreen = covers(_rectangle(area), _rectangle(screen.monitor), style)
        return Front(int(pid.value), fullscreen or exclusive, exclusive)

    def _someone_draws_by_itself() -> bool:
        state = ctypes.c_int()
        shell = ctypes.WinDLL("shell32")
        failed = shell.SHQueryUserNotificationState(ctypes.byref(state))
        return not failed and state.value == _DRAWS_BY_ITSELF

    def _rectangle(area: wintypes.RECT) -> Rectangle:
        return (area.left, area.top, area.right, area.bottom)
