"""Where the person writes: grows with the text; Enter sends, Shift+Enter starts a line."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal
from PySide6.QtWidgets import QFrame, QWidget

from app.ui.widgets.basics import IconButton, column, label, restyle, row
from app.ui.widgets.message_editor import MessageEditor

MOST_CHARS = 2_000_000
"""In one message: more than the longest context of any model takes."""
_MOST_LINES = 8


class Composer(QFrame):
    sent = Signal(str)
    stopped = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("composer")
        self._busy = False
        self._attached: list[str] = []
        self.editor = MessageEditor()
        self.editor.setPlaceholderText(
            "Ask the model…   Enter sends, Shift+Enter starts a new line"
        )
        self.editor.setAccessibleName("Message to the model")
        self.editor.setTabChangesFocus(True)
        self.editor.setFrameShape(QFrame.Shape.NoFrame)
        self.editor.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.editor.document().setDocumentMargin(6)
        self.send = IconButton("send", "Send", colour="accent_text", pixels=20)
        self.send.setObjectName("send")
        writing = row(8)
        writing.addWidget(self.editor, 1)
        writing.addWidget(self.send, 0, Qt.AlignmentFlag.AlignBottom)
        body = column(2)
        body.setContentsMargins(14, 8, 8, 8)
        body.addWidget(self._make_attachment())
        body.addLayout(writing)
        self.setLayout(body)
        self.editor.submitted.connect(self._submit)
        self.editor.overflowed.connect(self.attach)
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

    def set_busy(self, busy: bool) -> None:
        """While an answer is written the button stops it."""
        if busy != self._busy:
            self._busy = busy
            self.send.show_as("stop" if busy else "send", "Stop" if busy else "Send")
        self._text_changed()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange and hasattr(self, "editor"):
            self._text_changed()

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
        if text.strip() and not self._busy:
            self.editor.clear()
            self._detach()
            self.sent.emit(text)

    def _text_changed(self) -> None:
        written = self._attached or self.editor.toPlainText().strip()
        self.send.setEnabled(self._busy or bool(written))
        lines = min(_MOST_LINES, max(1, int(self.editor.document().size().height())))
        height = lines * self.editor.fontMetrics().lineSpacing() + 12
        self.editor.setFixedHeight(max(height, 32))

    def sizeHint(self) -> QSize:
        return QSize(480, 50)
