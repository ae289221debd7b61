"""What one conversation asks of the model. It is kept with the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QComboBox,
    QDialog,
    QDoubleSpinBox,
    QHBoxLayout,
    QPlainTextEdit,
    QSpinBox,
    QWidget,
)

from app.core.conversation import ChatSettings
from app.ui.widgets.basics import button, column, label, row
from app.ui.widgets.setting_row import SettingRow

_OWN = "The model's own"
_EFFORTS = {
    "": _OWN,
    "none": "Off",
    "minimal": "Minimal",
    "low": "Low",
    "medium": "Medium",
    "high": "High",
    "xhigh": "Very high",
    "max": "As much as it can",
}


class ChatSettingsDialog(QDialog):
    chosen = Signal(object)
    """ChatSettings."""

    def __init__(self, parent: QWidget, now: ChatSettings, efforts: Sequence[str]) -> None:
        """`efforts`: words for how much the model can think; empty where it cannot."""
        super().__init__(parent)
        self.setWindowTitle("Settings of this conversation")
        self.system = QPlainTextEdit(now.system)
        self.system.setObjectName("systemPrompt")
        self.system.setPlaceholderText("How the model shall answer, whom it speaks for …")
        self.system.setTabChangesFocus(True)
        self.system.setFixedHeight(120)
        self.system.setAccessibleName("System prompt")
        self.temperature = _share(now.temperature, 2.0)
        self.top_p = _share(now.top_p, 1.0)
        self.most = QSpinBox()
        self.most.setRange(0, 1_000_000)
        self.most.setSingleStep(256)
        self.most.setGroupSeparatorShown(True)
        self.most.setSuffix(" tokens")
        self.most.setSpecialValueText("No limit")
        self.most.setValue(now.max_tokens or 0)
        self.effort = QComboBox()
        known = ["", *efforts]
        if now.effort and now.effort not in known:
            known.append(now.effort)  # it was another model's
        switch = known == ["", "none", "high"]
        for effort in known:
            words = "On" if switch and effort == "high" else _EFFORTS.get(effort, effort)
            self.effort.addItem(words, effort)
        self.effort.setCurrentIndex(self.effort.findData(now.effort))
        for spin in (self.temperature, self.top_p, self.most):
            spin.lineEdit().setTextMargins(8, 0, 8, 0)
        body = column(4)
        body.setContentsMargins(24, 20, 24, 18)
        body.addWidget(label("Settings of this conversation", "section"))
        body.addSpacing(6)
        body.addWidget(label("System prompt"))
        body.addWidget(self.system)
        for name, hint, editor in (
            (
                "Temperature",
                "Lower is more predictable; 0 always takes the likeliest.",
                self.temperature,
            ),
            ("Top-p", "Only the likeliest tokens that together have this share.", self.top_p),
            ("Longest answer", "Thinking counts too.", self.most),
        ):
            body.addWidget(SettingRow(name, hint, editor))
        self.thinking = SettingRow("Thinking", "Before the answer.", self.effort)
        self.thinking.setVisible(len(known) > 1)
        body.addWidget(self.thinking)
        body.addSpacing(8)
        body.addLayout(self._make_buttons())
        self.setLayout(body)
        self.setFixedWidth(520)

    @property
    def settings(self) -> ChatSettings:
        """What the fields say now."""
        return ChatSettings(
            system=self.system.toPlainText().strip(),
            temperature=_value(self.temperature),
            top_p=_value(self.top_p),
            max_tokens=self.most.value() or None,
            effort=self.effort.currentData() or "",
        )

    def accept(self) -> None:
        self.chosen.emit(self.settings)
        super().accept()

    def _make_buttons(self) -> QHBoxLayout:
        reset, cancel = button("Reset"), button("Cancel")
        self.save = button("Save", primary=True)
        self.save.setDefault(True)
        reset.setToolTip("Back to the model's own")
        reset.clicked.connect(self._reset)
        cancel.clicked.connect(self.reject)
        self.save.clicked.connect(self.accept)
        line = row(8)
        line.addWidget(reset)
        line.addStretch()
        line.addWidget(cancel)
        line.addWidget(self.save)
        return line

    def _reset(self) -> None:
        self.system.clear()
        for spin in (self.temperature, self.top_p):
            spin.setValue(spin.minimum())
        self.most.setValue(0)
        self.effort.setCurrentIndex(0)


def _share(value: float | None, most: float) -> QDoubleSpinBox:
    """A number from 0 on; the step below it stands for the model's own."""
    spin = QDoubleSpinBox()
    spin.setRange(-0.05, most)
    spin.setSingleStep(0.05)
    spin.setDecimals(2)
    spin.setSpecialValueText(_OWN)
    spin.setValue(spin.minimum() if value is None else value)
    return spin


def _value(spin: QDoubleSpinBox) -> float | None:
    return None if spin.value() <= spin.minimum() else round(max(0.0, spin.value()), 2)
