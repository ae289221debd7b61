"""A list to choose a model from: name and size on one line, whether it fits on the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRect, QSize, Qt
from PySide6.QtGui import QFont, QFontMetrics, QPainter
from PySide6.QtWidgets import (
    QListWidget,
    QListWidgetItem,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
)

from app.ui import theme

_ROLE = Qt.ItemDataRole.UserRole
_MARGIN = 10
_GAP = 3
_SIGNS = {"good": "check", "warn": "warning", "bad": "warning"}


@dataclass(frozen=True)
class Choice:
    key: str
    name: str
    size: str
    words: str
    kind: str
    """Of the words: good, warn, bad, or muted."""


class ModelList(QListWidget):
    def __init__(self) -> None:
        super().__init__()
        self.setItemDelegate(_Lines(self))
        self.setVerticalScrollMode(QListWidget.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    @property
    def key(self) -> str:
        """Of the chosen one; empty where none is."""
        return str(self.currentItem().data(_ROLE).key) if self.currentRow() >= 0 else ""

    def show_choices(self, choices: Iterable[Choice]) -> None:
        """The chosen one stays so."""
        key = self.key
        self.blockSignals(True)
        self.clear()
        for choice in choices:
            item = QListWidgetItem(f"{choice.name}, {choice.size}. {choice.words}")
            item.setData(_ROLE, choice)
            self.addItem(item)
            if choice.key == key:
                self.setCurrentItem(item)
        self.blockSignals(False)


class _Lines(QStyledItemDelegate):
    def sizeHint(
        self, option: QStyleOptionViewItem, _: QModelIndex | QPersistentModelIndex
    ) -> QSize:
        return QSize(200, 2 * option.fontMetrics.height() + _GAP + 2 * _MARGIN)

    def paint(
        self,
        painter: QPainter,
        option: QStyleOptionViewItem,
        index: QModelIndex | QPersistentModelIndex,
    ) -> None:
        choice: Choice = index.data(_ROLE)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = option.rect.adjusted(4, 2, -4, -2)
        chosen = bool(option.state & QStyle.StateFlag.State_Selected)
        if chosen or option.state & QStyle.StateFlag.State_MouseOver:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("accent_soft" if chosen else "surface"))
            painter.drawRoundedRect(box, 8, 8)
        inside = box.adjusted(_MARGIN, _MARGIN - 2, -_MARGIN, 2 - _MARGIN)
        line = option.fontMetrics.height()
        top = QRect(inside.left(), inside.top(), inside.width(), line)
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.setFont(option.font)
        painter.setPen(theme.colour("muted"))
        painter.drawText(top, right, choice.size)
        bold = QFont(option.font)
        bold.setWeight(QFont.Weight.DemiBold)
        painter.setFont(bold)
        painter.setPen(theme.colour("text"))
        room = top.width() - option.fontMetrics.horizontalAdvance(choice.size) - 16
        name = QFontMetrics(bold).elidedText(choice.name, Qt.TextElideMode.ElideRight, room)
        painter.drawText(top, Qt.AlignmentFlag.AlignVCenter, name)
        self._second(painter, option, choice, top.translated(0, line + _GAP))
        painter.restore()

    def _second(
        self, painter: QPainter, option: QStyleOptionViewItem, choice: Choice, line: QRect
    ) -> None:
        if sign := _SIGNS.get(choice.kind):
            side = 14
            place = QRect(line.left(), line.center().y() - side // 2, side, side)
            theme.icon(sign, choice.kind).paint(painter, place)
            line = line.adjusted(side + 6, 0, 0, 0)
        painter.setFont(option.font)
        painter.setPen(theme.colour(choice.kind))
        words = option.fontMetrics.elidedText(
            choice.words, Qt.TextElideMode.ElideRight, line.width()
        )
        painter.drawText(line, Qt.AlignmentFlag.AlignVCenter, words)
