"""Widgets in a line, and in further lines where there is no room, as words are."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtWidgets import QLayout, QLayoutItem, QWidget


class FlowLayout(QLayout):
    def __init__(self, spacing: int = 8, line_spacing: int = 4) -> None:
        super().__init__()
        self._items: list[QLayoutItem] = []
        self._line_spacing = line_spacing
        self.setSpacing(spacing)
        self.setContentsMargins(0, 0, 0, 0)

    def add(self, *widgets: QWidget) -> None:
        for widget in widgets:
            self.addWidget(widget)

    def addItem(self, item: QLayoutItem) -> None:
        self._items.append(item)

    def count(self) -> int:
        return len(self._items)

    def itemAt(self, index: int) -> QLayoutItem | None:
        return self._items[index] if 0 <= index < len(self._items) else None

    def takeAt(self, index: int) -> QLayoutItem | None:
        return self._items.pop(index) if 0 <= index < len(self._items) else None

    def expandingDirections(self) -> Qt.Orientation:
        return Qt.Orientation(0)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        return self._arrange(QRect(0, 0, width, 0), place=False)

    def setGeometry(self, rect: QRect) -> None:
        super().setGeometry(rect)
        self._arrange(rect, place=True)

    def sizeHint(self) -> QSize:
        hints = [item.sizeHint() for item in self._items]
        width = sum(hint.width() for hint in hints) + self.spacing() * max(0, len(hints) - 1)
        return QSize(width, max((hint.height() for hint in hints), default=0))

    def minimumSize(self) -> QSize:
        least = QSize()
        for item in self._items:
            least = least.expandedTo(item.minimumSize())
        return least

    def _arrange(self, rect: QRect, *, place: bool) -> int:
        """Lines from the top; returns the height that they take."""
        lines: list[list[QLayoutItem]] = []
        room = 0
        for item in self._items:
            width = item.sizeHint().width()
            if not lines or width > room:
                lines.append([])
                room = rect.width()
            lines[-1].append(item)
            room -= width + self.spacing()
        top = rect.top()
        for line in lines:
            height = max(item.sizeHint().height() for item in line)
            left = rect.left()
            for item in line:
                size = item.sizeHint()
                if place:
                    middle = top + (height - size.height()) // 2
                    item.setGeometry(QRect(QPoint(left, middle), size))
                left += size.width() + self.spacing()
            top += height + self._line_spacing
        return max(0, top - self._line_spacing - rect.top())
