"""The settings page's card for VRAM that other programs get. It is in force at once."""

from __future__ import annotations

from PySide6.QtWidgets import QLineEdit, QSpinBox, QWidget

from app.core.settings import Settings
from app.ui.settings_store import SettingsStore
from app.ui.widgets.basics import Card
from app.ui.widgets.setting_row import SettingRow


class VramCard(Card):
    def __init__(self, store: SettingsStore) -> None:
        super().__init__("VRAM FOR OTHER PROGRAMS")
        self._store = store
        self.always, self.never = QLineEdit(), QLineEdit()
        for editor in (self.always, self.never):
            editor.setPlaceholderText("None")
        self.headroom = QSpinBox()
        self.headroom.setRange(0, 64 * 1024)
        self.headroom.setSingleStep(256)
        self.headroom.setGroupSeparatorShown(True)
        self.headroom.setSuffix(" MiB")
        self.headroom.setSpecialValueText("Automatic: 8 %, at least 1 GiB")
        self.headroom.setKeyboardTracking(False)
        self.headroom.lineEdit().setTextMargins(8, 0, 8, 0)  # as the other fields have it
        rows: tuple[tuple[str, str, QWidget], ...] = (
            (
                "Room for",
                "Programs that get room as games do, with semicolons between.",
                self.always,
            ),
            ("Never for", "Programs, or games by their title, that get no room.", self.never),
            ("Keep free", "VRAM that is left for whatever comes.", self.headroom),
        )
        for row in rows:
            self.body.addWidget(SettingRow(*row))
        self._show(store.now)
        store.changed.connect(lambda _, now: self._show(now))
        self.always.editingFinished.connect(
            lambda: store.update(vram_always=entries(self.always.text()))
        )
        self.never.editingFinished.connect(
            lambda: store.update(vram_never=entries(self.never.text()))
        )
        self.headroom.valueChanged.connect(lambda mib: store.update(vram_headroom_mib=mib))

    def _show(self, settings: Settings) -> None:
        for editor, names in (
            (self.always, settings.vram_always),
            (self.never, settings.vram_never),
        ):
            if entries(editor.text()) != names:
                editor.setText("; ".join(names))
        self.headroom.setValue(settings.vram_headroom_mib)


def entries(text: str) -> tuple[str, ...]:
    """Names with semicolons between (titles have commas), each once, without space around."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(";") if name.strip()))
