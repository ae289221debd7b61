"""The environment `.venv` of a checkout: made once, redone after an interruption.

A record in it says what it was made from (locked versions, Python, place, CPU or CUDA). Where that
is still so, a start only reads the record; where it is not, the environment is brought up to date.
Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

from installers.child import run_apart, running_apart
from installers.lock import only_one
from installers.native import build_native, forget_failure
from installers.system_libraries import Trouble, apt_install, say

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCKED = ROOT / "installers" / "requirements" / "locked.txt"
RECORD = VENV / "headrace-setup.json"
GUARD = VENV / "headrace-setup.lock"
BUILD_TOOLS = ROOT / "installers" / "requirements" / "build.txt"
TORCH_INDEX = "https://download.pytorch.org/whl/"


class KilledError(Trouble):
    """pip did not end by itself."""


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def torch_flavour() -> str:
    """`cuda` where an NVIDIA driver is installed, else `cpu`. The device itself is not woken."""
    if sys.platform == "darwin":
        return "cpu"
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return "cpu"
    return "cuda"


def wanted_stamp(flavour: str) -> str:
    """Changes with everything that a set-up depends on."""
    digest = hashlib.sha256()
    for file in (LOCKED, ROOT / "pyproject.toml"):
        digest.update(file.read_bytes() + b"\0")
    for fact in (platform.machine(), *facts_of(flavour).values()):
        digest.update(fact.encode() + b"\0")
    return digest.hexdigest()


def read_record() -> dict[str, str]:
    try:
        record = json.loads(RECORD.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def facts_of(flavour: str) -> dict[str, str]:
    """What an environment cannot change in place: another value of one of these means a new one."""
    return {"python": sys.version, "root": str(ROOT), "torch": flavour}


def write_record(state: str, stamp: str, flavour: str) -> None:
    """`installing` while files change, `failed` after pip gave up in order, then `complete`."""
    record = {"state": state, "stamp": stamp} | facts_of(flavour)
    part = RECORD.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1), encoding="utf-8")
    part.replace(RECORD)


def is_complete(stamp: str) -> bool:
    record = read_record()
    return (record.get("state"), record.get("stamp")) == ("complete", stamp) and (
        venv_python().exists()
    )


def is_unusable(record: dict[str, str], flavour: str) -> bool:
    """True for an interrupted install, another Python's environment or one that was moved.

    An environment without a record was made by hand: it is completed, never emptied.
    """
    facts = facts_of(flavour)
    return bool(record) and (
        record.get("state") == "installing"
        or any(record.get(name) != facts[name] for name in facts)
    )


def only_one_setup() -> contextlib.AbstractContextManager[None]:
    """Hold the lock of this checkout's environment; wait for another set-up to end."""
    return only_one(GUARD, "Another set-up is at work in this folder; waiting for it to end.")


def setup(*, again: bool = False) -> None:
    """Make `.venv`, install what is locked and compile the native library, as far as these are not
    there already. A compilation that failed is tried `again` only where that is asked for.

    Raises Trouble, or KeyboardInterrupt after a sentence that says what the next start does.
    """
    flavour = torch_flavour()
    stamp = wanted_stamp(flavour)
    try:
        VENV.mkdir(exist_ok=True)
        if again:
            forget_failure()
        if not is_complete(stamp):
            with only_one_setup():
                if not is_complete(stamp):
                    with compiling():
                        install(flavour, stamp)
        build_native(cmake)
    except KeyboardInterrupt:
        say("\nThe set-up is interrupted. Start it again: the next one mends what is half done.")
        raise
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise Trouble(
            f"This user may not write to {error.filename or VENV}. Copy the folder of Headrace "
            "to a place of your own, or have its owner run: python3 dev.py setup"
        ) from error


def compiling() -> contextlib.AbstractContextManager[object]:
    """Compile the native library meanwhile, where the system has a CMake for that.

    Where it has none, CMake has to be installed first, and `setup` compiles in the end.
    """
    if not shutil.which("cmake"):
        return contextlib.nullcontext()
    return running_apart([sys.executable, "-m", "installers.native"], ROOT)


def install(flavour: str, stamp: str) -> None:
    started = time.monotonic()
    if is_unusable(read_record(), flavour):
        say("The environment .venv is incomplete or was made for another set-up: making it anew.")
        empty_venv()
    write_record("installing", stamp, flavour)
    if not venv_python().exists() or not has_pip():
        make_venv()
    try:
        forget_older_metadata()
        install_torch(flavour)
        say("Installing the other locked packages ...")
        pip("--requirement", str(LOCKED))
        pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        spell_paths_in_ascii()
        check_torch(flavour)
    except KilledError:
        raise  # half of a package may lie there: the record stays at `installing`
    except Trouble:
        write_record("failed", stamp, flavour)
        raise
    write_record("complete", stamp, flavour)
    say(f"Set-up complete in {time.monotonic() - started:.0f} s.")


def spell_paths_in_ascii() -> None:
    """Write the checkout's folder into the environment so that every Python finds it.

    Before 3.13 Python reads .pth files in the locale's encoding: a folder with an umlaut stops
    every start under LC_ALL=C, and on a Windows whose code page is not UTF-8. A line that begins
    with `import` is executed, and may escape what is not ASCII.
    """
    for folder in ("lib/python*/site-packages", "Lib/site-packages"):
        for file in VENV.glob(f"{folder}/_editable_skbc_headrace.pth"):
            text = file.read_text(encoding="utf-8")
            if not text.isascii():
                lines = [line for line in dict.fromkeys(text.splitlines()) if line.strip()]
                paths = [line for line in lines if not line.startswith("import ")]
                executed = [line for line in lines if line.startswith("import ")]
                executed.append(f"import sys; sys.path += {paths!a}")
                file.write_text("\n".join(executed) + "\n", encoding="ascii")


def empty_venv() -> None:
    """All but the record, which says that the environment is unusable until this has ended."""
    for entry in VENV.iterdir():
        if entry in (GUARD, RECORD):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def make_venv() -> None:
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        apt_install([package], "This Python lacks the module ensurepip, which environments need.")
    say("Making the environment .venv ...")
    if run_apart([sys.executable, "-m", "venv", str(VENV)], ROOT):
        raise Trouble("Python could not make the environment .venv; the lines above say why.")


def has_pip() -> bool:
    """False for an environment whose making was cut short."""
    command = [str(venv_python()), "-m", "pip", "--version"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def pip(*arguments: str, index: str | None = None) -> None:
    # Most modules are never imported here: Python compiles those that are, when they are.
    options = ["--disable-pip-version-check", "--no-compile"]
    command = [str(venv_python()), "-m", "pip", "install", *options]
    if not sys.stdout.isatty():
        command.append("--quiet")
    if index:
        command += ["--index-url", index]
    code = run_apart([*command, *arguments], ROOT)
    if code < 0:
        raise KilledError(f"pip was ended by signal {-code}; start the command again.")
    if code:
        raise Trouble(
            "pip could not install what Headrace needs; the lines above say why. "
            "When that is mended, start the same command again: it goes on from there."
        )


def cmake() -> str:
    """The path of CMake: the system's, or one that pip puts into the environment."""
    if found := shutil.which("cmake"):
        return found
    own = venv_python().with_name("cmake.exe" if os.name == "nt" else "cmake")
    if not own.exists():
        pip("--requirement", str(BUILD_TOOLS))
    return str(own)


def forget_older_metadata() -> None:
    """Uninstall the project itself, or pip would complain that its old ranges are not met."""
    command = [str(venv_python()), "-m", "pip", "uninstall", "--yes", "headrace"]
    subprocess.run(command, check=False, capture_output=True)


def locked_version(name: str) -> str:
    for line in LOCKED.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}=="):
            return line.split(";")[0].strip().removeprefix(f"{name}==")
    raise Trouble(f"{LOCKED} does not name a version of {name}.")


def reachable(url: str, seconds: float = 6.0) -> bool:
    """Whether the address answers. A resolver that hangs is not waited for."""
    answers: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(OSError, ValueError):
            request = urllib.request.Request(url, method="HEAD")
            with urllib.request.urlopen(request, timeout=seconds):
                answers.append(True)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return bool(answers)


def torch_index(flavour: str) -> str | None:
    """PyTorch's own index with this flavour; None where pip's default has it."""
    if flavour == "cuda":
        return TORCH_INDEX + "cu130"
    return TORCH_INDEX + "cpu" if sys.platform == "linux" else None


def install_torch(flavour: str) -> None:
    version = locked_version("torch")
    index = torch_index(flavour)
    if index and not reachable(f"{index}/torch/"):
        say(f"{index} cannot be reached: taking the PyTorch build that pip's own index has.")
        if sys.platform == "linux" and flavour == "cpu":
            say("On Linux that can be the CUDA build of several gigabytes. It runs on the CPU too.")
        index = None
    say(f"Installing PyTorch {version} ...")
    # From its own index torch comes alone: what it needs comes from pip's index, with the rest.
    pip(f"torch=={version}", *(["--no-deps"] if index else []), index=index)


def check_torch(flavour: str) -> None:
    """Say which build there is. Raises Trouble where it does not load."""
    facts = "import torch; print(torch.__version__, torch.version.cuda)"
    outcome = subprocess.run(
        [str(venv_python()), "-c", facts], capture_output=True, text=True, check=False
    )
    if outcome.returncode:
        raise Trouble(f"PyTorch is installed but does not load:\n{outcome.stderr.strip()}")
    build, cuda = outcome.stdout.split()
    say(f"PyTorch {build} is installed, " + ("for the CPU." if cuda == "None" else f"CUDA {cuda}."))
    if flavour == "cuda" and cuda == "None":
        say("There is an NVIDIA driver, but this build cannot use it: the engine runs on the CPU.")
