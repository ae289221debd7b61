"""Whether a model fits, in words and with a sign, so that colour alone says nothing."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from app.core.fit_words import Badge
from app.ui import theme
from app.ui.widgets.basics import label, restyle, row

_SIGNS = {"good": "check", "warn": "warning", "bad": "warning"}
_PIXELS = 16


class FitBadge(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._kind = ""
        self._sign = QLabel()
        self._sign.setFixedWidth(_PIXELS)
        self._words = label("", "fit", wrap=True)
        self._words.setProperty("kind", "")
        body = row(6)
        body.addWidget(self._sign, 0, Qt.AlignmentFlag.AlignTop)
        body.addWidget(self._words, 1)
        self.setLayout(body)
        self.setAccessibleName("Estimate")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)

    @property
    def text(self) -> str:
        return self._words.text()

    def show_badge(self, badge: Badge) -> None:
        self._show(badge.kind, badge.text)

    def show_words(self, words: str) -> None:
        """Where there is no estimate: why."""
        self._show("", words)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:
            self._tint()

    def _show(self, kind: str, words: str) -> None:
        self._kind = kind
        self._words.setText(words)
        restyle(self._words, kind=kind)
        self.setAccessibleDescription(words)
        self.setVisible(bool(words))
        self._tint()

    def _tint(self) -> None:
        sign = _SIGNS.get(self._kind)
        self._sign.setVisible(sign is not None)
        if sign is not None:
            self._sign.setPixmap(theme.icon(sign, self._kind).pixmap(_PIXELS, _PIXELS))
