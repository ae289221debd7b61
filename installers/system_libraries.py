"""What a set-up asks of the system, and how it tells the person. Standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from app.core import startup


class Trouble(Exception):
    """Something the person has to know or do; the text is the whole message."""


def say(text: str) -> None:
    print(text, flush=True)


def ensure_libraries(platform: str) -> None:
    """Have every library that Qt loads for this platform (`xcb`, `wayland`, `offscreen`).

    Root on Debian gets them installed; for anyone else Trouble is raised that names them.
    """
    for attempt in ("first", "after installing"):
        missing = startup.missing_libraries(platform) if sys.platform == "linux" else {}
        if not missing:
            return
        packages = sorted(set(missing.values()))
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
