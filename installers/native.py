"""Compiles the engine's native library, where there is a C++ compiler. Standard library only.

A record beside the library says which sources it was built from, its size and its hash; where that
is still so, a start only reads them. Without a compiler, or with one that fails, the engine runs
all the same: it computes with PyTorch's operations and says so in its log.
"""

from __future__ import annotations

import contextlib
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

from installers.lock import only_one
from installers.system_libraries import say

SOURCE = Path(__file__).resolve().parent.parent / "engine" / "native"
BUILD = SOURCE / "_build"
NAME = "headrace_native" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
GUARD = "setup.lock"
Record = dict[str, str | int]
JOBS = 8
"""Compilers at once, at most: each takes memory too."""


def build_native(cmake: Callable[[], str]) -> None:
    """Bring the library up to date. `cmake` gives CMake's path and is asked only if it is needed.

    Says what it does and, when it cannot, what is lacking: once for each state of the sources and
    the compiler, until `forget_failure`.
    """
    if not is_settled(read_record()):
        with only_one_build():
            record = read_record()  # another set-up may have written it meanwhile
            if not is_settled(record):
                build(record, cmake)


def forget_failure() -> None:
    """Let the next `build_native` try again what failed: memory or disk may have been short."""
    if "tried" in read_record():
        with only_one_build():
            if "tried" in read_record():
                say("The CPU kernels could not be compiled before; trying again.")
                write_record({})


def only_one_build() -> contextlib.AbstractContextManager[None]:
    """A lock of its own: a set-up that holds the environment's has this module run beside pip."""
    BUILD.mkdir(exist_ok=True)
    waiting = "Another set-up compiles the CPU kernels in this folder; waiting for it to end."
    return only_one(BUILD / GUARD, waiting)


def is_settled(record: Record) -> bool:
    """Whether nothing is left to do for these sources and this compiler."""
    sources = sources_stamp()
    if record.get("built") == sources:
        return is_whole(record)
    return "tried" in record and record["tried"] == f"{sources} {compiler_name()}"


def build(record: Record, cmake: Callable[[], str]) -> None:
    sources, compiler = sources_stamp(), compiler_name()
    if "built" in record and (BUILD / NAME).exists() and not is_whole(record):
        say(f"{BUILD / NAME} is not as it was compiled: making it anew.")
        (BUILD / NAME).unlink()  # whatever becomes of this: to load it could end the engine
        record = {}
    tried: Record = {"tried": f"{sources} {compiler}"}
    if not compiler:
        say(
            "There is no C++ compiler: models run on the CPU with PyTorch's operations, slower "
            "than with Headrace's own. Once one is installed (Debian and Ubuntu: sudo apt-get "
            "install g++; macOS: xcode-select --install), start the same command again."
        )
        write_record(tried)
        return
    say(f"Compiling the CPU kernels with {compiler} ...")
    started = time.monotonic()
    if not record:  # half an object may lie there, newer than its source
        empty_build()
    write_record({})
    problem = compile_with(cmake())
    if problem:
        say(f"{problem}\nThe CPU kernels could not be compiled; the lines above say why.")
        say("The engine runs without them, slower, with PyTorch's operations.")
        say("When that is mended, this tries again: python3 dev.py setup")
        write_record(tried)
        return
    write_record({"built": sources, **facts_of_library()})
    say(f"The CPU kernels are compiled ({time.monotonic() - started:.0f} s).")


def is_whole(record: Record) -> bool:
    """Whether the library is, to the byte, the one that the record is of."""
    try:
        return facts_of_library().items() <= record.items()
    except FileNotFoundError:
        return False


def facts_of_library() -> Record:
    """Its loader looks at the size too: to load a file that was cut off ends the process."""
    content = (BUILD / NAME).read_bytes()
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def empty_build() -> None:
    """All but the lock, which is held."""
    for entry in BUILD.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != GUARD:
            entry.unlink()


def sources_stamp() -> str:
    """Changes with everything that the library is made from."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in [SOURCE / "CMakeLists.txt", *sorted((SOURCE / "source").rglob("*"))]:
        if file.is_file():
            digest.update(file.relative_to(SOURCE).as_posix().encode() + b"\0")
            digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()


def read_record() -> Record:
    """Empty while a compilation is at work, and after one that was cut short."""
    try:
        record = json.loads((BUILD / "record.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    # Earlier versions did not note the library's size.
    known = isinstance(record, dict) and ("tried" in record or "size" in record)
    return record if known else {}


def write_record(record: Record) -> None:
    BUILD.mkdir(exist_ok=True)
    part = BUILD / "record.part"
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(BUILD / "record.json")


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
    """What went wrong; empty if nothing did. A configuration of another place is thrown away.

    The library is made aside and takes its place whole: no half of one is ever there to be loaded,
    and an engine that has the former one keeps it.
    """
    work = BUILD / "cmake"
    cache = work / "CMakeCache.txt"
    if cache.exists() and str(work.as_posix()) not in cache.read_text(errors="replace"):
        shutil.rmtree(work)
    jobs = str(min(JOBS, os.cpu_count() or 1))
    for arguments in (
        ["-S", str(SOURCE), "-B", str(work)],
        ["--build", str(work), "--config", "Release", "--parallel", jobs],
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
    try:
        (work / NAME).replace(BUILD / NAME)
    except FileNotFoundError:
        return f"CMake made no {NAME}"
    except PermissionError as error:  # Windows, while an engine has it loaded
        return f"{error}. Is Headrace running?"
    return ""


if __name__ == "__main__":
    build_native(lambda: shutil.which("cmake") or "cmake")
