"""Where Headrace keeps its files. Standard library; the one reader of HEADRACE_* variables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

DEBUG_PREFIX = "HEADRACE_DEBUG_"


def debug_setting(name: str, default: str = "") -> str:
    """The value of HEADRACE_DEBUG_<NAME>: for developers, never needed in use."""
    return os.environ.get(DEBUG_PREFIX + name.upper(), default)


def home() -> Path:
    """The folder of this user's settings, logs and state; HEADRACE_HOME moves it."""
    override = os.environ.get("HEADRACE_HOME")
    if override:
        return Path(override)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "Headrace"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Headrace"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "headrace"


def servers_folder() -> Path:
    """Of every running server a record `<pid>.json` (pid, start, argv, port), which the app reads,
    and `<pid>.token`, the secret that changes to that server want.
    """
    return home() / "servers"


def log_folder() -> Path:
    return home() / "logs"


def program() -> Path:
    """The folder that holds the packages `app` and `engine`."""
    return Path(__file__).resolve().parent.parent


def resources() -> Path:
    """The folder `resources` that ships with the program: beside the packages; within a wheel,
    whose files all lie in one folder with those of other projects, inside `engine`.
    """
    in_wheel = program() / "engine" / "resources"
    return in_wheel if in_wheel.is_dir() else program() / "resources"


def demo_model() -> Path:
    return resources() / "models" / "demo"
