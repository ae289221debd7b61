"""One message of the chat."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QSizePolicy, QToolButton, QWidget

from app.core import units
from app.core.conversation import Message, MessageState
from app.core.excerpt import beginning
from app.core.markdown import Code, Markdown, Piece, Prose
from app.ui import icons, theme
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import IconButton, column, label, row
from app.ui.widgets.code_block import CodeBlock
from app.ui.widgets.copy_button import CopyButton
from app.ui.widgets.prose import ProseView

_MOST_CHARS, _MOST_LINES = 2_000, 40
"""Of a message: more is laid out too slowly, and hides the conversation."""


def markdown_for_theme() -> Markdown:
    colours = theme.active()
    return Markdown(
        style=colours.code_style,
        inline_code=colours.accent,
        muted=colours.muted,
        rule=colours.border,
    )


class UserMessage(QWidget):
    """The person's words, as typed, in a bubble at the right; of a long text its beginning."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message
        shown, left_out = beginning(message.text, _MOST_CHARS, _MOST_LINES)
        text = label(shown, wrap=True)
        text.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        text.setAccessibleName("You said")
        text.setAccessibleDescription(shown)
        bubble = QFrame()
        bubble.setObjectName("bubble")
        inner = column()
        inner.setContentsMargins(16, 10, 16, 10)
        inner.addWidget(text)
        if left_out:
            inner.addLayout(self._make_rest(left_out))
        bubble.setLayout(inner)
        widest = max(text.fontMetrics().horizontalAdvance(line) for line in shown.split("\n"))
        bubble.setMinimumWidth(min(widest + 36, 480))
        bubble.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        body = row()
        body.setContentsMargins(64, 0, 0, 0)
        body.addStretch()
        body.addWidget(bubble)
        self.setLayout(body)

    def _make_rest(self, left_out: int) -> QHBoxLayout:
        line = row(4)
        line.addWidget(label(f"… and {units.counted(left_out, 'more character')}", "hint"))
        line.addWidget(CopyButton("Copy the whole message", self._copy))
        line.addStretch()
        return line

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.message.text)


class AssistantMessage(QWidget):
    """The answer: prose and code blocks, what it was thinking, and what went wrong."""

    retry = Signal()

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message
        self._shown: list[Piece] = []
        self._views: list[ProseView | CodeBlock] = []
        self._markdown = markdown_for_theme()
        self._avatar = QLabel()
        self._avatar.setAccessibleName("Headrace answers")
        self._thoughts_toggle = QToolButton()
        self._thoughts_toggle.setCheckable(True)
        self._thoughts_toggle.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        self._thoughts = label("", "muted", wrap=True)
        self._thoughts_toggle.toggled.connect(self._thoughts.setVisible)
        self._pieces = column(10)
        self._stand_in = label("", "muted", wrap=True)
        self._banner = Banner()
        self._banner.add_button("Try again").clicked.connect(self.retry)
        self._foot = self._make_foot()
        content = column(6)
        for widget in (self._thoughts_toggle, self._thoughts):
            widget.hide()
            content.addWidget(widget)
        content.addLayout(self._pieces)
        content.addWidget(self._stand_in)
        content.addWidget(self._banner)
        content.addWidget(self._foot)
        body = row(14)
        body.addWidget(self._avatar, 0, Qt.AlignmentFlag.AlignTop)
        body.addLayout(content, 1)
        self.setLayout(body)
        self._tint()
        self.show_message()

    @property
    def views(self) -> list[ProseView | CodeBlock]:
        return self._views

    @property
    def stand_in(self) -> str:
        """What stands where the text would be, while there is none to be seen."""
        return self._stand_in.text()

    @property
    def error(self) -> str:
        return self._banner.text if not self._banner.isHidden() else ""

    def show_message(self) -> None:
        """Draw what changed since the last time: earlier paragraphs and blocks stay as they are."""
        message = self.message
        self._show_pieces(self._markdown.pieces(message.text))
        streaming = message.state is MessageState.STREAMING
        self._stand_in.setText(_instead_of_text(message))
        self._stand_in.setVisible(bool(self._stand_in.text()))
        self._show_thoughts(streaming)
        self._banner.show_problem(message.error)
        self._foot.setVisible(not streaming)
        self._note.setText(message.note)
        self._copy.setVisible(not message.blank)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange and hasattr(self, "_foot"):
            self._markdown = markdown_for_theme()
            self._tint()
            self._shown = []
            self.show_message()

    def _make_foot(self) -> QWidget:
        foot = QWidget()
        line = row(4)
        self._copy = CopyButton("Copy message", self._copy_text)
        again = IconButton("retry", "Write the answer again", pixels=16)
        again.clicked.connect(self.retry)
        self._note = label("", "hint")
        line.addWidget(self._copy)
        line.addWidget(again)
        line.addSpacing(6)
        line.addWidget(self._note)
        line.addStretch()
        foot.setLayout(line)
        self.again = again
        return foot

    def _show_pieces(self, pieces: list[Piece]) -> None:
        for at, piece in enumerate(pieces):
            if at < len(self._shown) and self._shown[at] == piece:
                continue
            if at < len(self._views) and not _fits(self._views[at], piece):
                self._drop_from(at)
            if at == len(self._views):
                self._add(piece)
            _fill(self._views[at], piece)
        self._drop_from(len(pieces))
        self._shown = pieces

    def _add(self, piece: Piece) -> None:
        view = CodeBlock() if isinstance(piece, Code) else ProseView("Answer")
        self._views.append(view)
        self._pieces.addWidget(view)

    def _drop_from(self, at: int) -> None:
        for view in self._views[at:]:
            self._pieces.removeWidget(view)
            view.hide()
            view.deleteLater()
        del self._views[at:]

    def _show_thoughts(self, streaming: bool) -> None:
        there = bool(self.message.reasoning.strip())
        self._thoughts_toggle.setVisible(there)
        self._thoughts.setText(self.message.reasoning.strip())
        thinking = streaming and self.message.blank
        self._thoughts_toggle.setText("Thinking…" if thinking else "Thoughts")
        self._thoughts_toggle.setAccessibleName("Show what the model was thinking")

    def _tint(self) -> None:
        self._avatar.setPixmap(icons.app_icon().pixmap(28, 28))
        self._thoughts_toggle.setIcon(theme.icon("down", "muted"))

    def _copy_text(self) -> None:
        QGuiApplication.clipboard().setText(self.message.text)


def _instead_of_text(message: Message) -> str:
    if not message.blank:
        return ""
    if message.state is MessageState.STREAMING:
        return message.note or ("Thinking…" if message.reasoning else "Reading the prompt…")
    if message.state is MessageState.DONE:
        what = "is blank: white space alone" if message.text else "has no text"
        return f"The model's answer {what}."
    return ""


def _fits(view: ProseView | CodeBlock, piece: Piece) -> bool:
    return isinstance(view, CodeBlock) == isinstance(piece, Code)


def _fill(view: ProseView | CodeBlock, piece: Piece) -> None:
    if isinstance(view, CodeBlock) and isinstance(piece, Code):
        view.show_code(piece)
    elif isinstance(view, ProseView) and isinstance(piece, Prose):
        view.show_html(piece.html)
