"""On Linux: whether the NVIDIA GPUs sleep, as the kernel says, without waking them."""

from __future__ import annotations

import contextlib
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"


def all_asleep(devices: Path = DEVICES) -> bool:
    """Whether there are NVIDIA GPUs and every one is suspended. Elsewhere False: nobody knows."""
    states = [_read(gpu / "power" / "runtime_status") for gpu in _gpus(devices)]
    return bool(states) and all(state == "suspended" for state in states)


def _gpus(devices: Path) -> list[Path]:
    if not devices.is_dir():
        return []
    return [
        device
        for device in devices.iterdir()
        if _read(device / "vendor") == _NVIDIA
        and _read(device / "class").startswith(_DISPLAY_CLASS)
    ]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="ascii").strip()
    return ""
