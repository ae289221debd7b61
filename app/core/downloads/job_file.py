"""The list of downloads that are not ready: it survives the app, and any end of it."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from app.core import settings
from app.core.downloads.records import Kept
from engine import paths

log = logging.getLogger(__name__)


class JobFile:
    """`downloads.json` in Headrace's folder."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or paths.home() / "downloads.json"

    def load(self) -> list[Kept]:
        """Empty where there is none. One that cannot be read is set aside, and the log says so:
        the downloads themselves are on disk, and the library lists them."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[Kept])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the list of downloads is lost: %s: %s", self._path, error)
            try:
                self._path.replace(self._path.with_name(f"{self._path.name}.corrupt"))
            except OSError as why:
                log.warning("%s cannot be set aside: %s", self._path, why)
            return []

    def save(self, jobs: list[Kept]) -> None:
        """A full disk must not end the app: the log says that the list is not kept."""
        try:
            settings.write_private(self._path, msgspec.json.encode(jobs))
        except OSError as error:
            log.warning("the list of downloads cannot be kept: %s", error)
