"""Checks before Qt is imported: a missing system library would end the process without a word."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from engine import paths

# What PySide6-Essentials 6.11 loads (the closure of its libraries' NEEDED entries, read with
# readelf, less what every glibc system has), and the Debian/Ubuntu package that has it.
_CORE_LIBRARIES = {
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libX11.so.6": "libx11-6",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libgssapi_krb5.so.2": "libgssapi-krb5-2",
    "libbrotlidec.so.1": "libbrotli1",
    "libzstd.so.1": "libzstd1",
}
_X11_LIBRARIES = {
    "libxcb.so.1": "libxcb1",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
}
_WAYLAND_LIBRARIES = {
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
}
_DISPLAYLESS = ("offscreen", "minimal", "vnc", "linuxfb", "eglfs", "vkkhrdisplay")


def problem(environ: Mapping[str, str] | None = None) -> str:
    """Why the window cannot open, and how the engine runs without one. Empty when it can."""
    found = reason(environ)
    return f"{found}\n{without_window()}" if found else ""


def home_problem() -> str:
    """Why this user's settings, logs and state cannot be kept. Empty when they can."""
    home = paths.home()
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            return ""
    except OSError as error:
        return (
            f"Headrace keeps its settings and logs in {home}, which cannot be written "
            f"({error.strerror}). Let the variable HEADRACE_HOME name another folder, then start "
            "Headrace again."
        )


def without_window() -> str:
    """The command that serves without a window, as this installation has it."""
    command = "headrace"
    if not shutil.which(command):
        beside = Path(sys.executable).with_name("headrace.exe" if os.name == "nt" else "headrace")
        command = _quoted(beside) if beside.exists() else f"{_python()} -m app.cli"
    return f"Without a window, the engine runs with: {command} serve --model demo"


def _python() -> str:
    return _quoted(Path(sys.executable))


def _quoted(program: Path) -> str:
    return f'"{program}"' if " " in str(program) else str(program)


def reason(environ: Mapping[str, str] | None = None) -> str:
    """Why the window cannot open, with what to do about that. Empty when it can."""
    environ = os.environ if environ is None else environ
    if importlib.util.find_spec("PySide6") is None:
        return (
            "The window needs PySide6, which is not installed: "
            f"{_python()} -m pip install PySide6-Essentials"
        )
    if sys.version_info < (3, 12) and (6, 12) <= _qt_version() < (6, 13):
        return (
            "This PySide6 ends a program under Python 3.11 by surprise (it releases None once too"
            f' often). Take another: {_python()} -m pip install "PySide6-Essentials~=6.11.3"'
        )
    if not sys.platform.startswith("linux"):
        return ""
    platform = qt_platform(environ)
    if not platform:
        return "There is no display here (neither DISPLAY nor WAYLAND_DISPLAY is set)."
    if missing := missing_libraries(platform):
        return _missing_sentence(missing)
    if platform == "xcb" and not _x_server_answers():
        return f"The X server at DISPLAY={environ.get('DISPLAY', '')} cannot be reached."
    return ""


def missing_libraries(platform: str, load: Callable[[str], object] = ctypes.CDLL) -> dict[str, str]:
    """The system libraries that Qt would miss on this platform, with their Debian packages."""
    wanted = dict(_CORE_LIBRARIES)
    if platform == "xcb":
        wanted |= _X11_LIBRARIES
    if platform == "wayland":
        wanted |= _WAYLAND_LIBRARIES
    missing: dict[str, str] = {}
    for library, package in wanted.items():
        try:
            load(library)
        except OSError:
            missing[library] = package
    return missing


def _qt_version() -> tuple[int, ...]:
    try:
        parts = importlib.metadata.version("PySide6-Essentials").split(".")
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(part) for part in parts if part.isdigit())


def qt_platform(environ: Mapping[str, str]) -> str:
    """The platform plugin that Qt will take: xcb, wayland, one without a display, or none ("")."""
    asked = environ.get("QT_QPA_PLATFORM", "").partition(";")[0].partition(":")[0]
    if asked.startswith("wayland"):
        return "wayland"
    if asked in _DISPLAYLESS or asked == "xcb":
        return asked
    if environ.get("WAYLAND_DISPLAY"):
        return "wayland"
    return "xcb" if environ.get("DISPLAY") else ""


def _missing_sentence(missing: dict[str, str]) -> str:
    names = ", ".join(missing)
    packages = " ".join(sorted(set(missing.values())))
    return (
        f"The window cannot open: this system lacks {names}.\n"
        f"On Debian and Ubuntu: sudo apt install {packages}"
    )


def _x_server_answers() -> bool:
    """Connect as Qt would, with the same authority files; Qt itself aborts when this fails."""
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
        xcb.xcb_connect.restype = ctypes.c_void_p
        xcb.xcb_connect.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        xcb.xcb_connection_has_error.argtypes = [ctypes.c_void_p]
        xcb.xcb_disconnect.argtypes = [ctypes.c_void_p]
        connection = xcb.xcb_connect(None, None)
        failed = xcb.xcb_connection_has_error(connection)
        xcb.xcb_disconnect(connection)
    except (OSError, AttributeError):
        return False
    return not failed
