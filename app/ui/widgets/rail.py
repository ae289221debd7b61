"""The left edge: the name, the pages, and the machine's memory at a glance."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QButtonGroup,
    QFrame,
    QLabel,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.core import memory_view, units
from app.ui import icons
from app.ui.widgets.basics import IconButton, column, label, restyle, row
from app.ui.widgets.stacked_bar import Part, StackedBar
from engine.messages import Stats


class NavButton(IconButton):
    """One page: icon and name; in the accent's colour while its page is open."""

    def __init__(self, icon_name: str, text: str) -> None:
        super().__init__(icon_name, text, pixels=20)
        self.setObjectName("nav")
        self.setText(f"  {text}")
        self.setCheckable(True)
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.toggled.connect(self._light)

    def set_narrow(self, narrow: bool) -> None:
        style = Qt.ToolButtonStyle
        wide = style.ToolButtonTextBesideIcon
        self.setToolButtonStyle(style.ToolButtonIconOnly if narrow else wide)
        restyle(self, narrow=narrow)

    def _light(self, on: bool) -> None:
        self.colour = "accent" if on else "muted"
        self.tint()


class _Meter(QWidget):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._words = label("", "hint")
        self._bar = StackedBar(f"{name} in use", height=6)
        top = row()
        top.addWidget(label(name, "hint"))
        top.addStretch()
        top.addWidget(self._words)
        body = column(4)
        body.addLayout(top)
        body.addWidget(self._bar)
        self.setLayout(body)

    def show_parts(self, parts: list[Part], total: int) -> None:
        self._bar.show_parts(parts, total)
        used = sum(part.amount for part in parts)
        self._words.setText(f"{units.size(used)} / {units.size(total)}" if total else "–")


class Rail(QFrame):
    """Wide with names and meters, or narrow with icons alone, for windows without room."""

    chosen = Signal(int)

    def __init__(self, pages: list[tuple[str, str]]) -> None:
        """`pages`: icon and name of each, in order."""
        super().__init__()
        self.setObjectName("rail")
        self.setAccessibleName("Navigation")
        mark = QLabel()
        mark.setPixmap(icons.app_icon().pixmap(30, 30))
        top = row(10)
        top.setContentsMargins(8, 0, 0, 0)
        top.addWidget(mark)
        self._name = label("Headrace", "brand")
        top.addWidget(self._name)
        top.addStretch()
        body = QVBoxLayout(self)
        body.setContentsMargins(12, 18, 12, 20)
        body.setSpacing(4)
        body.addLayout(top)
        body.addSpacing(20)
        self._group = QButtonGroup(self)
        for at, (icon_name, name) in enumerate(pages):
            nav = NavButton(icon_name, name)
            nav.setToolTip(f"{name} (Ctrl+{at + 1})")
            self._group.addButton(nav, at)
            body.addWidget(nav)
            QShortcut(QKeySequence(f"Ctrl+{at + 1}"), self, nav.click)
        self._group.idClicked.connect(self.chosen)
        body.addStretch()
        self._vram, self._ram = _Meter("VRAM"), _Meter("RAM")
        for meter in (self._vram, self._ram):
            meter.setContentsMargins(8, 0, 8, 0)
            body.addWidget(meter)
            body.addSpacing(6)
        self._narrow = False
        self._has_vram = False
        self.set_narrow(False)

    def set_narrow(self, narrow: bool) -> None:
        self._narrow = narrow
        self.setFixedWidth(64 if narrow else 216)
        self._name.setVisible(not narrow)
        for nav in self._group.buttons():
            if isinstance(nav, NavButton):
                nav.set_narrow(narrow)
        self._show_meters()

    def choose(self, index: int) -> None:
        self._group.button(index).setChecked(True)

    def show_stats(self, stats: Stats) -> None:
        self._has_vram = memory_view.has_device_memory(stats)
        self._show_meters()
        for meter, owners, total in (
            (self._vram, memory_view.device_memory(stats), stats.vram_total_bytes),
            (self._ram, memory_view.host_memory(stats), stats.ram_total_bytes),
        ):
            own = sum(owner.bytes for owner in owners if owner.key != "other")
            others = sum(owner.bytes for owner in owners if owner.key == "other")
            meter.show_parts(
                [Part("Headrace", "accent", own), Part("Other programs", "other", others)],
                max(total, own + others),
            )

    def _show_meters(self) -> None:
        self._vram.setVisible(self._has_vram and not self._narrow)
        self._ram.setVisible(not self._narrow)
