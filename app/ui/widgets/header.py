"""The line above every page: its title, the engine's state, the model, the address for agents."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QToolButton, QWidget

from app.core.supervisor import EngineView
from app.ui.widgets.basics import label, row
from app.ui.widgets.state_pill import StatePill

_COPIED_MS = 1_500


class EndpointChip(QToolButton):
    """The API's base address; a click copies it."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("chip")
        self._address = ""
        self._back = QTimer(self)
        self._back.setSingleShot(True)
        self._back.timeout.connect(self._show)
        self.clicked.connect(self.copy)
        self._show()

    @property
    def address(self) -> str:
        return self._address

    def show_endpoint(self, endpoint: str) -> None:
        self._address = f"{endpoint}/v1" if endpoint else ""
        self._show()

    def copy(self) -> None:
        if self._address:
            QGuiApplication.clipboard().setText(self._address)
            self.setText("Copied")
            self._back.start(_COPIED_MS)

    def _show(self) -> None:
        self.setText(self._address.removeprefix("http://"))
        self.setVisible(bool(self._address))
        self.setAccessibleName(f"Copy the API address {self._address}")
        self.setToolTip("Copy the API's base address for IDEs and agents")


class Header(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("header")
        self.setFixedHeight(64)
        self.title = label("", "pageTitle")
        self.model = label("", "modelName")
        self.model.setAccessibleName("Model")
        self.pill = StatePill()
        self.chip = EndpointChip()
        line = row(12)
        line.setContentsMargins(24, 0, 24, 0)
        line.addWidget(self.title)
        self._actions = row(8)
        line.addSpacing(4)
        line.addLayout(self._actions)
        line.addStretch()
        line.addWidget(self.model)
        line.addWidget(self.pill)
        line.addWidget(self.chip)
        self.setLayout(line)

    def add_action(self, widget: QWidget) -> None:
        """What a page wants beside its title."""
        self._actions.addWidget(widget)

    def show_view(self, view: EngineView) -> None:
        self.pill.show_phase(view.phase)

    def show_model(self, name: str) -> None:
        metrics = self.model.fontMetrics()
        self.model.setText(metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, 260))
        self.model.setToolTip(name)
