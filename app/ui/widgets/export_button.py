"""Saves what the dashboard shows as a picture, and its history as a table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Signal
from PySide6.QtGui import QImage, QImageWriter
from PySide6.QtWidgets import QFileDialog, QMenu, QMessageBox, QToolButton, QWidget

from app.core.stats_history import StatsHistory
from app.ui.widgets.basics import IconButton


class ExportButton(IconButton):
    saved = Signal(str)
    """The file that was written."""
    failed = Signal(str)
    """A sentence."""

    def __init__(self, shown: QWidget, history: StatsHistory) -> None:
        """`shown`: the widget that a picture is taken of, all of it."""
        super().__init__("export", "Save what is shown")
        self._shown = shown
        self._history = history
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(self)
        menu.addAction("Save as picture…", lambda: self._ask("png", self.save_picture))
        menu.addAction("Save history as CSV…", lambda: self._ask("csv", self.save_history))
        self.setMenu(menu)
        self.failed.connect(self._tell)

    def save_picture(self, path: Path) -> None:
        """Write a PNG with as many pixels as the screen has for the widget."""
        image = self._shown.grab().toImage()
        self._write(path, lambda: _save_image(image, path))

    def save_history(self, path: Path) -> None:
        table = self._history.table()
        self._write(path, lambda: path.write_text(table.csv(), encoding="utf-8"))

    def _write(self, path: Path, write: Callable[[], object]) -> None:
        """In a thread: packing a large picture takes longer than a frame."""

        def run() -> None:
            try:
                write()
            except OSError as error:
                self.failed.emit(f"{path} was not written: {error.strerror or error}")
            else:
                self.saved.emit(str(path))

        threading.Thread(target=run, name="export").start()

    def _ask(self, suffix: str, save: Callable[[Path], None]) -> None:
        dialog = QFileDialog(self.window(), "Save", "", f"*.{suffix}")
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(suffix)
        dialog.selectFile(f"headrace-{time.strftime('%Y-%m-%d-%H%M%S')}.{suffix}")
        dialog.fileSelected.connect(lambda chosen: save(Path(chosen)))
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def _tell(self, sentence: str) -> None:
        box = QMessageBox(QMessageBox.Icon.Warning, "Headrace", sentence, parent=self.window())
        box.finished.connect(box.deleteLater)
        box.open()


def _save_image(image: QImage, path: Path) -> None:
    """Raises OSError."""
    with path.open("wb"):
        pass  # says what is wrong with a path, which Qt does not
    if not QImageWriter(str(path), b"png").write(image):
        raise OSError(f"no picture could be made of {image.width()} x {image.height()} pixels")
