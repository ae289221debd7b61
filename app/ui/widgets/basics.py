"""The few plain widgets that every page is put together from."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt
from PySide6.QtWidgets import (
    QBoxLayout,
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.ui import theme


def label(text: str, kind: str = "", *, wrap: bool = False) -> QLabel:
    """`kind` is the style sheet's name for it: title, heading, section, muted, hint."""
    made = QLabel(text)
    made.setObjectName(kind)
    made.setWordWrap(wrap)
    made.setTextFormat(Qt.TextFormat.PlainText)
    return made


def column(spacing: int = theme.GRID) -> QVBoxLayout:
    made = QVBoxLayout()
    _bare(made, spacing)
    return made


def row(spacing: int = theme.GRID) -> QHBoxLayout:
    made = QHBoxLayout()
    _bare(made, spacing)
    return made


def _bare(layout: QBoxLayout, spacing: int) -> None:
    layout.setContentsMargins(0, 0, 0, 0)
    layout.setSpacing(spacing)


class Card(QFrame):
    """A rounded surface with a small title."""

    def __init__(self, title: str = "") -> None:
        super().__init__()
        self.setObjectName("card")
        self.body = QVBoxLayout(self)
        self.body.setContentsMargins(20, 16, 20, 18)
        self.body.setSpacing(theme.GRID)
        self.title = label(title, "title")
        self.title_row = row()
        if title:
            self.title_row.addWidget(self.title)
            self.title_row.addStretch()
            self.body.addLayout(self.title_row)


class IconButton(QToolButton):
    """A button that is an icon; its name is its tooltip and what a screen reader says."""

    def __init__(self, icon_name: str, name: str, colour: str = "muted", pixels: int = 18) -> None:
        super().__init__()
        self._icon_name = icon_name
        self.colour = colour
        self.setIconSize(QSize(pixels, pixels))
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.show_as(icon_name, name)

    def show_as(self, icon_name: str, name: str) -> None:
        self._icon_name = icon_name
        self.setAccessibleName(name)
        self.setToolTip(name)
        self.tint()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange:
            self.tint()

    def tint(self) -> None:
        self.setIcon(theme.icon(self._icon_name, self.colour))


def button(text: str, *, primary: bool = False) -> QPushButton:
    made = QPushButton(text)
    made.setProperty("primary", primary)
    made.setCursor(Qt.CursorShape.PointingHandCursor)
    made.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
    made.setAutoDefault(False)
    return made


def split_unit(text: str) -> tuple[str, str]:
    """`1.50 GiB` as its number and its unit."""
    number, _, unit = text.rpartition(" ")
    return (number, unit) if number else (unit, "")


def restyle(widget: QWidget, **properties: object) -> None:
    """Set properties that the style sheet asks for, and draw the widget anew by it."""
    for name, value in properties.items():
        widget.setProperty(name, value)
    widget.style().unpolish(widget)
    widget.style().polish(widget)
