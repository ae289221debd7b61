"""Where the person writes: grows with the text; Enter sends, Shift+Enter starts a line.

Text files come by a button or are dropped; they are read in a thread and shown as chips.
"""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtGui import QDragEnterEvent, QDropEvent, QResizeEvent, QTextCursor
from PySide6.QtWidgets import QFileDialog, QFrame, QWidget

from app.core.attachments import MOST_FILES, Attachment, read_attachment
from app.ui.background import Background
from app.ui.widgets.basics import IconButton, column, label, restyle, row
from app.ui.widgets.file_chip import FileChip
from app.ui.widgets.flow_layout import FlowLayout
from app.ui.widgets.message_editor import MOST_CHARS as EDITOR_CHARS
from app.ui.widgets.message_editor import MessageEditor, local_files

MOST_CHARS = 2_000_000
"""In one message: more than the longest context of any model takes."""
_MOST_LINES = 8


class Composer(QFrame):
    sent = Signal(str, object)
    """The text, and the list of files that go with it."""
    stopped = Signal()
    edit_ended = Signal()
    """An earlier message is not to be said otherwise after all."""
    edit_last_asked = Signal()
    """Up, where nothing is written."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("composer")
        self._busy = False
        self._attached: list[str] = []
        self._background = Background(self)
        self.chips: list[FileChip] = []
        self.editing = False
        self.setAcceptDrops(True)
        self.editor = MessageEditor()
        self.editor.setAccessibleName("Message to the model")
        self.editor.setTabChangesFocus(True)
        self.editor.setFrameShape(QFrame.Shape.NoFrame)
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.editor.document().setDocumentMargin(6)
        self.send = IconButton("send", "Send", colour="accent_text", pixels=20)
        self.send.setObjectName("send")
        self.attach_button = IconButton("attach", "Attach text files", pixels=20)
        self.attach_button.clicked.connect(self._choose_files)
        writing = row(8)
        writing.addWidget(self.attach_button, 0, Qt.AlignmentFlag.AlignBottom)
        writing.addWidget(self.editor, 1)
        writing.addWidget(self.send, 0, Qt.AlignmentFlag.AlignBottom)
        body = column(2)
        body.setContentsMargins(8, 8, 8, 8)
        body.addWidget(self._make_editing())
        body.addWidget(self._make_attachment())
        body.addWidget(self._make_files())
        body.addLayout(writing)
        self.setLayout(body)
        self.editor.submitted.connect(self._submit)
        self.editor.overflowed.connect(self.attach)
        self.editor.files_dropped.connect(self.attach_files)
        self.editor.up_pressed.connect(self.edit_last_asked)
        self.editor.focus_changed.connect(lambda focused: restyle(self, focused=focused))
        self.editor.textChanged.connect(self._text_changed)
        self.send.clicked.connect(self._clicked)
        self._text_changed()

    @property
    def attachment(self) -> str:
        """What is said of the long texts that go with the message."""
        return self._about.text()

    def attach(self, text: str) -> None:
        """Let a long text go with the message, before what is written. One too long is refused."""
        total = sum(map(len, self._attached)) + len(text)
        if total > MOST_CHARS:
            self._say(f"A message takes {MOST_CHARS:,} characters; this text would make {total:,}.")
            return
        self._attached.append(text)
        what = "Pasted text" if len(self._attached) == 1 else f"{len(self._attached)} pasted texts"
        self._say(f"{what}: {total:,} characters, sent before what you write")

    def attach_files(self, paths: list[Path]) -> None:
        """Read these files and let them go with the message; what cannot be read is told."""
        room = MOST_FILES - len(self.chips)
        if len(paths) > room:
            self._say(f"A message takes {MOST_FILES} files; {len(paths)} more are too many.")
            return
        for path in paths:
            self._background.run(
                lambda path=path: read_attachment(path),  # type: ignore[misc]
                self.add_file,
                lambda error: self._say(str(error)),
            )

    def add_file(self, file: Attachment) -> None:
        total = sum(len(other.text) for other in self.files) + len(file.text)
        if total > MOST_CHARS:
            self._say(f"A message takes {MOST_CHARS:,} characters; this file would make {total:,}.")
            return
        chip = FileChip(file, removable=True)
        chip.removed.connect(lambda: self._remove(chip))
        self.chips.append(chip)
        self._flow.add(chip)
        self._show_files()

    @property
    def files(self) -> list[Attachment]:
        return [chip.file for chip in self.chips]

    def begin_edit(self, text: str, files: list[Attachment]) -> None:
        """Let the person say an earlier message otherwise."""
        self.clear()
        self.editing = True
        self._editing.show()
        for file in files:
            self.add_file(file)
        if len(text) > EDITOR_CHARS:
            self.attach(text)
        else:
            self.editor.setPlainText(text)
            self.editor.moveCursor(QTextCursor.MoveOperation.End)
        self.editor.setFocus()

    def clear(self) -> None:
        """Away with what is written, attached or edited."""
        self.editor.clear()
        for chip in list(self.chips):
            self._remove(chip)
        self.editing = False
        self._editing.hide()
        self._detach()

    def close_files(self) -> None:
        """Files that are still being read are not waited for."""
        self._background.close()

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        if event.mimeData().hasUrls():
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        self.attach_files(local_files(event.mimeData()))
        event.acceptProposedAction()

    def set_busy(self, busy: bool) -> None:
        """While an answer is written the button stops it."""
        if busy != self._busy:
            self._busy = busy
            self.send.show_as("stop" if busy else "send", "Stop" if busy else "Send")
        self._text_changed()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        keys = "   Enter sends, Shift+Enter starts a new line" if self.width() > 560 else ""
        self.editor.setPlaceholderText(f"Ask the model…{keys}")

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "editor"):
            self._text_changed()

    def _make_editing(self) -> QWidget:
        stop = IconButton("close", "Do not edit", pixels=14)
        stop.clicked.connect(self._end_edit)
        line = row(4)
        line.setContentsMargins(6, 0, 0, 0)
        line.addWidget(label("Editing an earlier message; what followed it stays", "hint"), 1)
        line.addWidget(stop)
        self._editing = QWidget()
        self._editing.setLayout(line)
        self._editing.hide()
        return self._editing

    def _make_files(self) -> QWidget:
        self._flow = FlowLayout(6, 6)
        self._flow.setContentsMargins(6, 2, 6, 4)
        self._files = QWidget()
        self._files.setLayout(self._flow)
        self._files.hide()
        return self._files

    def _show_files(self) -> None:
        self._files.setVisible(bool(self.chips))
        self._text_changed()

    def _remove(self, chip: FileChip) -> None:
        self.chips.remove(chip)
        self._flow.removeWidget(chip)
        chip.hide()
        chip.deleteLater()
        self._show_files()

    def _end_edit(self) -> None:
        self.clear()
        self.edit_ended.emit()

    def _choose_files(self) -> None:
        chosen, _ = QFileDialog.getOpenFileNames(self, "Attach text files")
        self.attach_files([Path(name) for name in chosen])

    def _make_attachment(self) -> QWidget:
        self._about = label("", "hint", wrap=True)
        self._about.setAccessibleName("Attached")
        remove = IconButton("close", "Remove the pasted text", pixels=14)
        remove.clicked.connect(self._detach)
        line = row(4)
        line.setContentsMargins(6, 0, 0, 0)
        line.addWidget(self._about, 1)
        line.addWidget(remove)
        self._attachment = QWidget()
        self._attachment.setLayout(line)
        self._attachment.hide()
        return self._attachment

    def _say(self, sentence: str) -> None:
        self._about.setText(sentence)
        self._attachment.setVisible(bool(sentence))
        self._text_changed()

    def _detach(self) -> None:
        self._attached.clear()
        self._say("")
        self.editor.setFocus()

    def _clicked(self) -> None:
        if self._busy:
            self.stopped.emit()
        else:
            self._submit()

    def _submit(self) -> None:
        text = "\n\n".join([*self._attached, self.editor.text()])
        files = self.files
        if (text.strip() or files) and not self._busy:
            self.editor.clear()
            self.sent.emit(text, files)
            self.clear()

    def _text_changed(self) -> None:
        written = self._attached or self.chips or self.editor.toPlainText().strip()
        self.send.setEnabled(self._busy or bool(written))
        lines = min(_MOST_LINES, max(1, int(self.editor.document().size().height())))
        height = lines * self.editor.fontMetrics().lineSpacing() + 12
        self.editor.setFixedHeight(max(height, 32))

    def sizeHint(self) -> QSize:
        return QSize(480, 50)
