"""The settings in use: read once, changed through here, saved at once."""

from __future__ import annotations

import logging

import msgspec
from PySide6.QtCore import QObject, Signal

from app.core import settings as stored
from app.core.settings import Settings

log = logging.getLogger(__name__)


class SettingsStore(QObject):
    changed = Signal(object, object)
    """Settings before, Settings now."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._now, self.lost = stored.read()
        """`lost` has a sentence on each setting that could not be read."""

    @property
    def now(self) -> Settings:
        return self._now

    def update(self, **changes: object) -> None:
        """Change fields by name. What cannot be saved still holds until the app ends."""
        before = self._now
        self._now = msgspec.structs.replace(before, **changes)
        if self._now == before:
            return
        try:
            stored.save(self._now)
        except OSError as error:
            log.warning("the settings cannot be saved: %s", error)
        self.changed.emit(before, self._now)
