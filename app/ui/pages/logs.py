"""The logs page: the engine's log, live."""

from __future__ import annotations

from collections import deque

from PySide6.QtCore import QTimer, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QHideEvent, QShowEvent
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPlainTextEdit, QWidget

from app.core import launch, units
from app.core.log_file import LogTail
from app.ui import theme
from app.ui.widgets.basics import button, column, label, row
from engine import paths

KEPT_LINES = 5_000
_ENGINE = 0
"""The first of the logs to choose from."""
_ELSEWHERE = (
    "The engine that runs now was started outside the app: it logs where it was started. "
    "Lines here are of engines that the app has started."
)
_LOOK_MS = 500


class LogsPage(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAccessibleName("Logs")
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._tail = LogTail(launch.server_log())
        self.view = QPlainTextEdit()
        self.view.setObjectName("logView")
        self.view.setReadOnly(True)
        self.view.setMaximumBlockCount(KEPT_LINES)
        self.view.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.view.setAccessibleName("Log lines")
        self._timer = QTimer(self)
        self._timer.setInterval(_LOOK_MS)
        self._timer.timeout.connect(self.refresh)
        self._status = label("", "hint")
        self._elsewhere = False
        self._note = label(_ELSEWHERE, "muted", wrap=True)
        self._make_layout()
        self._show_status()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()
        self._timer.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._timer.stop()

    def show_elsewhere(self, elsewhere: bool) -> None:
        """Whether the engine of now writes its log to another place."""
        self._elsewhere = elsewhere
        self._show_status()

    def refresh(self) -> None:
        """Take in what was written since the last time."""
        lines, began_anew = self._tail.read_new()
        if began_anew:
            self._lines.append("— the log was rotated —")
        self._lines.extend(lines)
        if lines:
            self._append([line for line in lines if self._passes(line)])
        self._show_status()

    def _make_layout(self) -> None:
        self.source = QComboBox()
        self.source.addItem("Engine", launch.server_log())
        self.source.addItem("App", paths.log_folder() / "app.log")
        self.source.setAccessibleName("Which log")
        self.source.currentIndexChanged.connect(self._change_source)
        self.filter = QLineEdit()
        self.filter.setPlaceholderText("Filter lines")
        self.filter.setAccessibleName("Filter lines")
        self.filter.setClearButtonEnabled(True)
        self.filter.addAction(
            theme.icon("search", "muted"), QLineEdit.ActionPosition.LeadingPosition
        )
        self.filter.textChanged.connect(self._refill)
        self.follow = QCheckBox("Follow")
        self.follow.setChecked(True)
        copy = button("Copy")
        copy.clicked.connect(self._copy)
        folder = button("Open folder")
        folder.clicked.connect(_open_folder)
        top = row(12)
        top.addWidget(self.source)
        top.addWidget(self.filter, 1)
        top.addWidget(self.follow)
        top.addWidget(copy)
        top.addWidget(folder)
        body = column(12)
        body.setContentsMargins(24, 20, 24, 16)
        body.addLayout(top)
        body.addWidget(self._note)
        body.addWidget(self.view, 1)
        body.addWidget(self._status)
        self.setLayout(body)

    def _change_source(self) -> None:
        self._tail = LogTail(self.source.currentData())
        self._lines.clear()
        self._refill()
        self.refresh()

    def _passes(self, line: str) -> bool:
        return self.filter.text().lower() in line.lower()

    def _refill(self) -> None:
        self.view.clear()
        self._append([line for line in self._lines if self._passes(line)])
        self._show_status()

    def _append(self, lines: list[str]) -> None:
        if not lines:
            return
        bar = self.view.verticalScrollBar()
        place = bar.value()
        self.view.appendPlainText("\n".join(lines))
        bar.setValue(bar.maximum() if self.follow.isChecked() else place)

    def _show_status(self) -> None:
        shown = 0 if self.view.document().isEmpty() else self.view.blockCount()
        words = units.counted(shown, "matching line" if self.filter.text() else "line")
        self._status.setText(f"{words}   ·   {self._tail.path}")
        self._note.setVisible(self._elsewhere and self.source.currentIndex() == _ENGINE)
        if self._lines:
            nothing = f"No line contains “{self.filter.text()}”."
        else:
            nothing = "Nothing has been logged here yet."
        self.view.setPlaceholderText(nothing)

    def _copy(self) -> None:
        """The selection, or all that is shown."""
        chosen = self.view.textCursor().selectedText().replace("\u2029", "\n")
        QGuiApplication.clipboard().setText(chosen or self.view.toPlainText())


def _open_folder() -> None:
    paths.log_folder().mkdir(parents=True, exist_ok=True)
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(paths.log_folder())))
