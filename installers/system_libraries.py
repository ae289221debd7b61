"""The system libraries that Qt wants on Linux: found by trying, installed or named.

Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

# What PySide6-Essentials 6.12 needs of a Linux system: the closure of its libraries' NEEDED entries
# (readelf) less what every glibc system has, with the Debian package of each.
QT_ALWAYS = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libX11.so.6": "libx11-6",
    "libbrotlidec.so.1": "libbrotli1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libgssapi_krb5.so.2": "libgssapi-krb5-2",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libzstd.so.1": "libzstd1",
}
QT_X11 = {
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
}
QT_WAYLAND = {
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
}


class Trouble(Exception):
    """Something the person has to know or do; the text is the whole message."""


def say(text: str) -> None:
    print(text, flush=True)


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def missing_libraries(needed: dict[str, str], can_load: Callable[[str], bool]) -> list[str]:
    return [library for library in needed if not can_load(library)]


def display_libraries() -> dict[str, str]:
    if os.environ.get("WAYLAND_DISPLAY"):
        return QT_ALWAYS | QT_WAYLAND
    return QT_ALWAYS | QT_X11


def ensure_libraries(needed: dict[str, str]) -> None:
    """Have every library of Qt. Raises Trouble that names those which this user cannot install."""
    for attempt in ("first", "after installing"):
        missing = missing_libraries(needed, loads) if sys.platform == "linux" else []
        if not missing:
            return
        packages = sorted({needed[library] for library in missing})
        lacking = f"Qt cannot load: this system lacks {', '.join(missing)}."
        apt_install(packages, lacking, may_install=attempt == "first")


def apt_install(packages: Sequence[str], lacking: str, *, may_install: bool = True) -> None:
    """Install Debian packages as root; for anyone else raise Trouble that says what is lacking."""
    message = f"{lacking} On Debian and Ubuntu: sudo apt-get install {' '.join(packages)}"
    if sys.platform == "win32" or not shutil.which("apt-get") or os.geteuid() or not may_install:
        raise Trouble(message)
    say(f"{lacking} Installing with apt-get: {' '.join(packages)}")
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    install = [*apt, "install", "--yes", "--no-install-recommends", *packages]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in ([*apt, "update"], install):
        outcome = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )
    if outcome.returncode:
        raise Trouble(f"apt-get failed; its lines above say why. {message}")
