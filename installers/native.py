"""Compiles the engine's native library, where there is a C++ compiler. Standard library only.

A record beside the library says which sources it was built from; where that is still so, a start
only reads them. Without a compiler, or with one that fails, the engine runs all the same: it
computes with PyTorch's operations and says so in its log.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from installers.system_libraries import say

SOURCE = Path(__file__).resolve().parent.parent / "engine" / "native"
BUILD = SOURCE / "_build"
NAME = "headrace_native" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
JOBS = 8
"""Compilers at once, at most: each takes memory too."""


def build_native(cmake: Callable[[], str]) -> None:
    """Bring the library up to date. `cmake` gives CMake's path and is asked only if it is needed.

    Says what it does and, when it cannot, what is lacking: once for each state of the sources and
    the compiler.
    """
    sources, record = sources_stamp(), read_record()
    if record.get("built") == sources and (BUILD / NAME).exists():
        return
    compiler = compiler_name()
    tried = f"{sources} {compiler}"
    if record.get("tried") == tried:
        return
    if not compiler:
        say(
            "There is no C++ compiler: models run on the CPU with PyTorch's operations, slower "
            "than with Headrace's own. Once one is installed (Debian and Ubuntu: sudo apt-get "
            "install g++; macOS: xcode-select --install), start the same command again."
        )
        write_record({"tried": tried})
        return
    say(f"Compiling the CPU kernels with {compiler} ...")
    started = time.monotonic()
    if BUILD.exists() and not record:  # half an object may lie there, newer than its source
        shutil.rmtree(BUILD)
    write_record({})
    problem = compile_with(cmake())
    if problem:
        say(f"{problem}\nThe CPU kernels could not be compiled; the lines above say why.")
        say("The engine runs without them, slower, with PyTorch's operations.")
        write_record({"tried": tried})
        return
    write_record({"built": sources})
    say(f"The CPU kernels are compiled ({time.monotonic() - started:.0f} s).")


def sources_stamp() -> str:
    """Changes with everything that the library is made from."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in [SOURCE / "CMakeLists.txt", *sorted((SOURCE / "source").rglob("*"))]:
        if file.is_file():
            digest.update(file.relative_to(SOURCE).as_posix().encode() + b"\0")
            digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def read_record() -> dict[str, str]:
    try:
        record = json.loads((BUILD / "record.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(record: dict[str, str]) -> None:
    BUILD.mkdir(exist_ok=True)
    (BUILD / "record.json").write_text(json.dumps(record), encoding="utf-8")


def compiler_name() -> str:
    """The compiler that CMake will find, with its version; empty where there is none."""
    if sys.platform == "win32":
        return "Visual Studio" if visual_studio() else ""
    if sys.platform == "darwin" and first_line(["xcode-select", "-p"]) == "":
        return ""  # /usr/bin/c++ is there, but only opens a dialog
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return first_line([found, "--version"]) if found else ""


def visual_studio() -> bool:
    """Whether the C++ tools are installed, by the tool that Visual Studio's installer leaves."""
    programs = Path(os.environ.get("PROGRAMFILES(X86)", "C:/Program Files (x86)"))
    finder = programs / "Microsoft Visual Studio" / "Installer" / "vswhere.exe"
    tools = "Microsoft.VisualStudio.Component.VC.Tools.x86.x64"
    wanted = ["-products", "*", "-requires", tools, "-property", "installationPath"]
    return finder.exists() and first_line([str(finder), *wanted]) != ""


def first_line(command: list[str]) -> str:
    """Of what the command prints; empty if it fails."""
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return outcome.stdout.strip().partition("\n")[0] if outcome.returncode == 0 else ""


def compile_with(cmake: str) -> str:
    """What went wrong; empty if nothing did. A configuration of another place is thrown away."""
    cache = BUILD / "CMakeCache.txt"
    if cache.exists() and str(BUILD.as_posix()) not in cache.read_text(errors="replace"):
        shutil.rmtree(BUILD)
    jobs = str(min(JOBS, os.cpu_count() or 1))
    for arguments in (
        ["-S", str(SOURCE), "-B", str(BUILD)],
        ["--build", str(BUILD), "--config", "Release", "--parallel", jobs],
    ):
        try:
            outcome = subprocess.run(
                [cmake, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            return str(error)
        if outcome.returncode:
            return "\n".join(outcome.stdout.splitlines()[-40:]) or f"{cmake} failed"
    return "" if (BUILD / NAME).exists() else f"CMake made no {NAME}"


if __name__ == "__main__":
    build_native(lambda: shutil.which("cmake") or "cmake")
