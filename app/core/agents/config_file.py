"""One configuration file: what would change in it, and writing it whole or not at all."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from app.core.agents.agent import AgentError, ConfigEdit, Endpoint

_HIDDEN = "(the server's API key)"


@dataclass(frozen=True)
class Change:
    path: Path
    """Where the agent looks."""
    target: Path
    """Where the file lies: elsewhere, if `path` is a link."""
    before: bytes | None
    """None where there is no file."""
    after: bytes
    mode: int
    """Of the file as it is to be: nobody else may read one that holds a key."""

    def diff(self, endpoint: Endpoint) -> str:
        """Both versions compared line by line, without the key; "" where they are equal."""
        old = [] if self.before is None else _lines(self.before)
        lines = difflib.unified_diff(
            old, _lines(self.after), str(self.path), str(self.path), "now", "then"
        )
        text = "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
        for spelling in (json.dumps(endpoint.key, ensure_ascii=False)[1:-1], endpoint.key):
            text = text.replace(spelling, _HIDDEN) if spelling else text
        return text


def change(edit: ConfigEdit, endpoint: Endpoint, original: bytes | None, mode: int) -> Change:
    """What an edit makes of a file that had these bytes and this mode (None, 0: no file).

    Raises AgentError that names the file where it cannot be edited.
    """
    try:
        text = "" if original is None else original.decode("utf-8")
        after = edit.edit(text).encode("utf-8")
    except UnicodeDecodeError as error:
        raise AgentError(f"{edit.path} cannot be changed: it is not UTF-8.") from error
    except AgentError as error:
        raise AgentError(
            f"{edit.path} cannot be changed: {error.message}", hint=error.hint
        ) from error
    kept = mode if original is not None else 0o600
    private = kept & 0o700 if endpoint.key else kept
    return Change(edit.path, target_of(edit.path), original, after, private)


def target_of(path: Path) -> Path:
    return Path(os.path.realpath(path))


def read(path: Path) -> tuple[bytes | None, int]:
    """The bytes and the mode of a file; (None, 0) where there is none. Raises OSError."""
    try:
        return path.read_bytes(), path.stat().st_mode & 0o7777
    except FileNotFoundError:
        return None, 0


def write(path: Path, body: bytes, mode: int) -> None:
    """Whole or not at all; the file has its mode before it has its name. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        new.chmod(mode)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> list[Path]:
    """Returns the folders that had to be made, the outermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing[::-1]


def _lines(body: bytes) -> list[str]:
    # A line that only ends otherwise must be seen to differ, so line ends are kept.
    return body.decode("utf-8", errors="replace").splitlines(keepends=True)
