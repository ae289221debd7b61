"""Starting the server as a process of its own, and saying why it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.core import log_file
from app.core.advice import in_settings
from app.core.settings import DEMO, Settings, model_path, write_private
from engine import paths


def serve_command(settings: Settings, owner_pid: int) -> list[str]:
    """The command line of the server for these settings."""
    command = [sys.executable, "-m", "engine.cli", "serve"]
    # Absolute, since the server does not run in the app's folder.
    model = model_path(settings.model)
    command += ["--model", str(model) if model else DEMO, "--port", str(settings.port)]
    command += ["--device", settings.device, "--moe-cache-rate", f"{settings.moe_cache_rate:g}"]
    if settings.context_tokens:
        command += ["--context", str(settings.context_tokens)]
    if settings.api_key:
        command += ["--api-key-file", str(key_file())]
    command += ["--owner-pid", str(owner_pid)]
    if grace := paths.debug_setting("owner_grace"):
        command += ["--owner-grace", grace]
    return command


def key_file() -> Path:
    """Holds the API key for the server: a command line can be read by every user."""
    return paths.home() / "api-key"


def write_key(settings: Settings) -> None:
    """Before a start. Raises OSError when the folder cannot be written."""
    if settings.api_key:
        write_private(key_file(), settings.api_key.encode())
    else:
        key_file().unlink(missing_ok=True)


def server_log() -> Path:
    return paths.log_folder() / "server.log"


class ServerProcess:
    """A started server. It is in no way tied to the app's life: the app may crash beneath it.

    It gets a session (on Windows: a process group) of its own, so that neither a Ctrl+C in the
    app's terminal nor the end of the app reaches it; it learns of the app's death by itself.
    Raises OSError when it cannot be started.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log_file.rotate(log)
        with log.open("ab") as output:
            self.log_start = output.seek(0, os.SEEK_END)
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=paths.program(),
                env=_environment(),
                **_detached(),
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()


@dataclass(frozen=True)
class Ending:
    """Why the server ended, as sentences."""

    reason: str
    hint: str = ""
    refused: bool = False
    """It said why it cannot run (a taken port, a model that is not there): no use to try again."""


def ending(code: int | None, log: Path, log_start: int = 0) -> Ending:
    """What an exit status (None: unknown) and the log since `log_start` tell."""
    lines = log_file.last_lines(log, start=log_start)
    said = f" It last said: {lines[-1]}" if lines else ""
    if code is not None and code > 0:
        if error := _last_after("error: ", lines):
            hint = _last_after("hint: ", lines)
            return Ending(in_settings(error), in_settings(hint), refused=True)
        return Ending(f"The engine server ended with code {code}.{said}")
    if code is not None and code < 0:
        # What it logged before somebody killed it says nothing about the reason.
        return Ending(f"The engine server was ended by {_signal_name(-code)}.")
    return Ending(f"The engine server ended{'' if code is None else ' by itself'}.{said}")


def _last_after(mark: str, lines: list[str]) -> str:
    """What follows the mark in the last line that begins with it, be it after a time."""
    begins = re.compile(rf"(?:\d\d:\d\d:\d\d )?{mark}")
    found = [line[at.end() :] for line in lines if (at := begins.match(line))]
    return found[-1] if found else ""


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    if name == "SIGKILL":
        return "SIGKILL (somebody killed it, or the system ran out of memory)"
    return name


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


def _detached() -> dict[str, Any]:
    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return {"creationflags": flags}
    return {"start_new_session": True}
