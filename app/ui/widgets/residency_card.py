"""Which experts of which layers have slots now."""

from __future__ import annotations

from PySide6.QtCore import Qt

from app.core.residency_view import ResidencyView
from app.ui.widgets.basics import Card, label
from app.ui.widgets.heat_map import HeatMap

_HINT = "Rows are layers, columns their experts; coloured ones have a slot."


class ResidencyCard(Card):
    def __init__(self) -> None:
        super().__init__("RESIDENCY BY LAYER")
        self.map = HeatMap()
        self._sum = label("", "muted")
        self._words = label(_HINT, "hint", wrap=True)
        self._words.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.title_row.addWidget(self._sum)
        self.body.addWidget(self.map, 1)
        self.body.addWidget(self._words)
        self.map.focused.connect(lambda words: self._words.setText(words or _HINT))
        self.show_residency(ResidencyView())

    @property
    def words(self) -> str:
        return self._words.text()

    def show_residency(self, view: ResidencyView) -> None:
        """Hidden where no layer has slots, as on devices without a cache."""
        self.setVisible(bool(view.layers))
        self._sum.setText(view.describe().removesuffix("."))
        self.map.show_residency(view)
