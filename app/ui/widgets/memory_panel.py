"""One memory of the machine: a line of figures, the bar of its owners, the legend."""

from __future__ import annotations

from PySide6.QtWidgets import QWidget

from app.core import memory_view, units
from app.core.memory_view import Owner
from app.ui.widgets.basics import column, label, row
from app.ui.widgets.legend import Legend
from app.ui.widgets.stacked_bar import Part, StackedBar


class MemoryPanel(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = label(name, "modelName")
        self._sum = label("", "muted")
        self.bar = StackedBar(f"{name} by owner")
        self._legend = Legend(f"{name}: what the colours mean")
        self._note = label("", "hint", wrap=True)
        self._others = label("", "hint", wrap=True)
        self._others.hide()
        top = row()
        top.addWidget(self._name)
        top.addStretch()
        top.addWidget(self._sum)
        body = column(10)
        body.setContentsMargins(0, 4, 0, 0)
        body.addLayout(top)
        body.addWidget(self.bar)
        body.addWidget(self._legend)
        body.addWidget(self._others)
        body.addWidget(self._note)
        body.addStretch()
        self.setLayout(body)

    @property
    def note(self) -> str:
        """What stands in for the bar; empty where the bar is."""
        return self._note.text() if not self._note.isHidden() else ""

    def rename(self, name: str) -> None:
        self._name.setText(name)
        self.bar.setAccessibleName(f"{name} by owner")

    @property
    def others(self) -> str:
        """Other programs by name, as they are shown."""
        return self._others.text() if not self._others.isHidden() else ""

    def show_others(self, words: str) -> None:
        self._others.setText(words)
        self._others.setVisible(bool(words))

    def show_owners(self, owners: list[Owner], total: int, note: str = "") -> None:
        """With a note and nothing in use, the note stands in for bar and legend."""
        parts = [Part(owner.label, owner.key, owner.bytes) for owner in owners]
        self.bar.show_parts(parts, total)
        self._legend.show_parts(parts)
        used = memory_view.total(owners)
        shown = bool(used or total)
        self._sum.setText(f"{units.size(used)} of {units.size(max(total, used))}" if shown else "")
        self.bar.setVisible(shown)
        self._legend.setVisible(shown)
        self._note.setText(note)
        self._note.setVisible(bool(note) and not shown)
