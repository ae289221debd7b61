"""How a line of the list of conversations is drawn."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QRectF, QSize, Qt
from PySide6.QtGui import QFont, QPainter
from PySide6.QtWidgets import QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from app.ui import theme

_HEIGHT = 34
_Index = QModelIndex | QPersistentModelIndex


class ConversationDelegate(QStyledItemDelegate):
    """Headings are small and muted; the open conversation has a ground of the accent's tint."""

    def sizeHint(self, option: QStyleOptionViewItem, index: _Index) -> QSize:  # noqa: ARG002
        return QSize(80, _HEIGHT)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        is_heading = not index.flags() & Qt.ItemFlag.ItemIsSelectable
        state = option.state
        rect = option.rect
        chosen = bool(state & QStyle.StateFlag.State_Selected)
        hovered = bool(state & QStyle.StateFlag.State_MouseOver) and not is_heading
        focused = bool(state & QStyle.StateFlag.State_HasFocus) and chosen
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(rect).adjusted(0.5, 1.5, -0.5, -1.5)
        if chosen or hovered:
            painter.setPen(theme.colour("accent") if focused else Qt.PenStyle.NoPen)
            painter.setBrush(theme.colour("accent_soft" if chosen else "raised"))
            painter.drawRoundedRect(box, 8, 8)
        font = QFont(option.font)
        font.setPixelSize(11 if is_heading else 13)
        font.setWeight(QFont.Weight.DemiBold if is_heading else QFont.Weight.Normal)
        painter.setFont(font)
        painter.setPen(theme.colour("muted" if is_heading else "text"))
        place = box.adjusted(10, 8 if is_heading else 0, -8, 0)
        text = painter.fontMetrics().elidedText(
            str(index.data()), Qt.TextElideMode.ElideRight, int(place.width())
        )
        painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, text)
        painter.restore()

    def updateEditorGeometry(
        self,
        editor: QWidget,
        option: QStyleOptionViewItem,
        index: _Index,  # noqa: ARG002
    ) -> None:
        editor.setAccessibleName("New name")
        editor.setGeometry(option.rect)
