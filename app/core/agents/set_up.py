"""Setting an agent up, and putting everything back as it was.

What was there before is kept in a folder of Headrace's own, with a record of what was written.
The record is written first: whatever happens then, undoing finds what it needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from app.core.agents import config_file
from app.core.agents.agent import AgentError, ConfigEdit, Endpoint
from app.core.agents.config_file import Change
from app.core.settings import write_private
from engine import paths

State = Literal["no", "yes", "changed"]


class SavedFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    target: str
    existed: bool
    mode: int = 0
    written: str
    """SHA-256 of what Headrace wrote."""
    made_folders: list[str] = []


class Record(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    model: str
    files: list[SavedFile]


def record(name: str) -> Record | None:
    """Of an agent that is set up. Raises AgentError where it cannot be read."""
    path = _folder(name) / "record.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise AgentError(f"{path} is damaged: {error}.") from error


def state(name: str) -> State:
    """Whether an agent is set up, and whether somebody changed its files since."""
    saved = record(name)
    if saved is None:
        return "no"
    return "changed" if _changed_since(name, saved) else "yes"


def changes(name: str, edits: Sequence[ConfigEdit], endpoint: Endpoint) -> list[Change]:
    """What setting up would write. An agent that is set up already starts from what was before."""
    saved = record(name)
    if saved is None:
        return [
            config_file.change(each, endpoint, *config_file.read(config_file.target_of(each.path)))
            for each in edits
        ]
    _refuse_changed(name, saved)
    if [str(each.path) for each in edits] != [file.path for file in saved.files]:
        raise AgentError(
            f"{name} is set up, and looks for its configuration elsewhere now.",
            hint=f"Run `headrace agents undo {name}` first.",
        )
    before = [_original(name, number, file) for number, file in enumerate(saved.files)]
    return [
        config_file.change(each, endpoint, original, file.mode)
        for each, original, file in zip(edits, before, saved.files, strict=True)
    ]


def apply(name: str, planned: Sequence[Change], endpoint: Endpoint) -> Path:
    """Write the changes. Returns the folder with what was there before.

    Raises AgentError where a file is no longer what the change was made for, and OSError.
    """
    saved = record(name)
    files = []
    for number, change in enumerate(planned):
        now, mode = config_file.read(change.target)
        if saved is None:
            if now != change.before:
                raise AgentError(f"{change.path} was changed in the meantime.", hint="Try again.")
            if now is not None:
                write_private(_backup(name, number), now)
            made = [str(each) for each in config_file.make_folder(change.target.parent)]
        else:
            mode, made = saved.files[number].mode, saved.files[number].made_folders
        files.append(
            SavedFile(
                path=str(change.path),
                target=str(change.target),
                existed=change.before is not None,
                mode=mode,
                written=_digest(change.after),
                made_folders=made,
            )
        )
    new = Record(url=endpoint.url, model=endpoint.model, files=files)
    write_private(_folder(name) / "record.json", msgspec.json.encode(new))
    try:
        for change in planned:
            config_file.write(change.target, change.after, change.mode)
    except OSError:
        # Not one file without the other.
        undo(name, force=True)
        raise
    return _folder(name)


def undo(name: str, *, force: bool = False) -> list[Path]:
    """Put every file back, byte for byte; what Headrace made is removed. Returns the files.

    Raises AgentError where the agent is not set up or, without `force`, where a file was changed
    since. With `force` the changed file is kept beside the backups.
    """
    saved = record(name)
    if saved is None:
        raise AgentError(f"{name} is not set up, so there is nothing to undo.")
    if not force:
        _refuse_changed(name, saved)
    originals = [_original(name, number, file) for number, file in enumerate(saved.files)]
    for file, original in zip(saved.files, originals, strict=True):
        target = Path(file.target)
        now, _ = config_file.read(target)
        if now is not None and now != original and _digest(now) != file.written:
            write_private(_kept(name, target), now)
        if original is not None:
            config_file.make_folder(target.parent)
            config_file.write(target, original, file.mode)
        else:
            target.unlink(missing_ok=True)
    for folder in (each for file in saved.files for each in reversed(file.made_folders)):
        with contextlib.suppress(OSError):  # somebody else's files are in it by now
            Path(folder).rmdir()
    shutil.rmtree(_folder(name))
    return [Path(file.path) for file in saved.files]


def _refuse_changed(name: str, saved: Record) -> None:
    if changed := _changed_since(name, saved):
        raise AgentError(
            f"{' and '.join(changed)} was changed since it was set up.",
            hint=f"`headrace agents undo {name} --force` puts back what was there before that, "
            f"and keeps a copy of the changed file in {_folder(name).parent}.",
        )


def _changed_since(name: str, saved: Record) -> list[str]:
    """Paths whose file is neither what Headrace wrote nor what was there before."""
    found = []
    for number, file in enumerate(saved.files):
        now, _ = config_file.read(Path(file.target))
        original = _original(name, number, file)
        as_written = now is not None and _digest(now) == file.written
        moved = str(config_file.target_of(Path(file.path))) != file.target
        if moved or not (as_written or now == original):
            found.append(file.path)
    return found


def _original(name: str, number: int, file: SavedFile) -> bytes | None:
    return _backup(name, number).read_bytes() if file.existed else None


def _folder(name: str) -> Path:
    return paths.home() / "agents" / name


def _backup(name: str, number: int) -> Path:
    return _folder(name) / f"before-{number}"


def _kept(name: str, target: Path) -> Path:
    return _folder(name).parent / f"{name}-{target.name}.changed-{time.time_ns()}"


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
