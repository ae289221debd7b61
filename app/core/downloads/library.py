"""The models on disk: what is there, whether it is whole, what it takes, and deleting it.

`Library.scan`, `Library.delete` and `deletion` read and write the disk: call them in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from app.core import settings
from app.core.downloads import scan
from app.core.downloads.deletion import delete, deletion
from app.core.downloads.models import Deletion, Folder, Model, Standing
from engine import paths

__all__ = ["Deletion", "Folder", "Library", "Model", "Standing", "delete", "deletion"]

log = logging.getLogger(__name__)


class Library:
    """What lies in the folders, and a memory of those that are unavailable."""

    def __init__(self, memory: Path | None = None) -> None:
        """`memory` is the file that remembers; by default `library.json` in Headrace's folder."""
        self._memory = memory or paths.home() / "library.json"

    def scan(self, roots: Sequence[Path]) -> tuple[Folder, ...]:
        """Look through the folders. One that cannot be read is listed with what was seen last,
        and so is an empty one where another folder held models: a mount point without its drive."""
        known = self._recall()
        seen = tuple(_look(root, known.get(str(root.absolute()))) for root in roots)
        self._remember(known | {folder.path: folder for folder in seen})
        return seen

    def remembered(self, roots: Sequence[Path]) -> tuple[Folder, ...]:
        """What was seen last, at once and without looking at the folders."""
        known = self._recall()
        every = (str(root.absolute()) for root in roots)
        return tuple(known.get(path, Folder(path=path)) for path in every)

    def delete(self, model: Model) -> Deletion:
        """Delete the model's files, and remember it no more. Raises DownloadError.

        Nothing outside of its root goes, and no link is followed out of it."""
        done = delete(model)
        self.forget(model)
        return done

    def forget(self, model: Model) -> None:
        """Remember it no more, should it be gone for good."""
        known = self._recall()
        if (folder := known.get(model.root)) is not None:
            left = tuple(other for other in folder.models if other.path != model.path)
            self._remember(known | {folder.path: replace(folder, models=left)})

    def _recall(self) -> dict[str, Folder]:
        try:
            folders = msgspec.json.decode(self._memory.read_bytes(), type=list[Folder])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.warning("what models there were is forgotten: %s: %s", self._memory, error)
            return {}
        return {folder.path: folder for folder in folders}

    def _remember(self, folders: dict[str, Folder]) -> None:
        try:
            settings.write_private(self._memory, msgspec.json.encode(list(folders.values())))
        except OSError as error:
            log.warning("what models there are cannot be kept: %s", error)


def _look(root: Path, known: Folder | None) -> Folder:
    root = root.absolute()
    reason = ""
    try:
        folder = scan.scan(root)
    except FileNotFoundError:
        reason = "It is not there. Is its drive connected?"
    except OSError as error:
        reason = f"It cannot be read: {error.strerror or error}."
    else:
        held = known is not None and known.models and known.identity != folder.identity
        if folder.models or not held or any(root.iterdir()):
            return folder
        reason = "It is empty, and held models. Is its drive connected?"
    known = known or Folder(path=str(root))
    away = tuple(replace(model, standing=Standing.UNAVAILABLE) for model in known.models)
    return replace(known, available=False, reason=reason, models=away, size=0, free=0)
