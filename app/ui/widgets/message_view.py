"""An answer in the chat."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel, QWidget

from app.core.conversation import Message, MessageState
from app.core.growing_markdown import GrowingMarkdown
from app.core.markdown import Code, Markdown, Piece, Prose
from app.ui import icons, theme
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import IconButton, button, column, label, row
from app.ui.widgets.code_block import CodeBlock
from app.ui.widgets.copy_button import CopyButton
from app.ui.widgets.prose import ProseView
from app.ui.widgets.thoughts import Thoughts
from app.ui.widgets.tool_call_view import ToolCallView
from app.ui.widgets.user_message import UserMessage
from app.ui.widgets.version_switch import VersionSwitch

__all__ = ["AssistantMessage", "UserMessage"]


def markdown_for_theme() -> Markdown:
    colours = theme.active()
    return Markdown(
        style=colours.code_style,
        inline_code=colours.accent,
        muted=colours.muted,
        rule=colours.border,
    )


class AssistantMessage(QWidget):
    """The answer: prose and code blocks, what it was thinking, and what went wrong."""

    retry = Signal()
    chosen = Signal(object)
    """The version of it, a Message, that is to be shown instead."""
    go_on = Signal()

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message
        self._views: list[ProseView | CodeBlock] = []
        self._calls: list[ToolCallView] = []
        self._colours = theme.active()
        self._growing = GrowingMarkdown(markdown_for_theme())
        self._avatar = QLabel()
        self._avatar.setAccessibleName("Headrace answers")
        self.thoughts = Thoughts()
        self._pieces = column(10)
        self._call_column = column(8)
        self._stand_in = label("", "muted", wrap=True)
        self._banner = Banner()
        self._banner.add_button("Try again").clicked.connect(self.retry)
        self._foot = self._make_foot()
        content = column(6)
        content.addWidget(self.thoughts)
        content.addLayout(self._pieces)
        content.addLayout(self._call_column)
        for widget in (self._stand_in, self._banner, self._foot):
            content.addWidget(widget)
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

    @property
    def pending(self) -> bool:
        """Whether there is more of the message than has been drawn."""
        return self._growing.taken < len(self.message.text) or self.thoughts.pending

    def show_message(self) -> None:
        """Draw what changed since the last time, and of much only a part: see `pending`."""
        message = self.message
        streaming = message.state is MessageState.STREAMING
        fresh = self._growing.grow(message.text)
        self._show_pieces(self._growing.pieces, fresh)
        self._show_calls(whole=not streaming)
        self._stand_in.setText(_instead_of_text(message))
        self._stand_in.setVisible(bool(self._stand_in.text()))
        self.thoughts.show_message(message, thinking=streaming and message.blank)
        self._banner.show_problem(message.error)
        self._foot.setVisible(not streaming)
        self._note.setText(message.note)
        self._note.setVisible(bool(message.note))
        self._copy.setVisible(not message.blank)

    def show_place(self, versions: list[Message], *, last: bool, busy: bool) -> None:
        """`versions`: this answer among those that can stand here. Only the last one on the path is
        written again or on."""
        self.versions.show_versions(versions, self.message)
        self.again.setVisible(last and not busy)
        self.on.setVisible(last and not busy and self.message.continuable)
        self.versions.setEnabled(not busy)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange and hasattr(self, "_foot"):
            self._tint()
            if theme.active() is not self._colours:
                self._draw_anew()

    def _draw_anew(self) -> None:
        """In the colours of now; of a long message only the beginning, see `pending`."""
        self._colours = theme.active()
        self._growing = GrowingMarkdown(markdown_for_theme())
        for view in self._views:
            if isinstance(view, CodeBlock):
                view.tint()
        for call in self._calls:
            call.tint()
        self.show_message()

    def _make_foot(self) -> QWidget:
        foot = QWidget()
        line = row(4)
        self.versions = VersionSwitch()
        self.versions.chosen.connect(self.chosen)
        self._copy = CopyButton("Copy message", self._copy_text)
        self.again = IconButton("retry", "Write the answer again", pixels=16)
        self.again.clicked.connect(self.retry)
        self.on = button("Continue")
        self.on.clicked.connect(self.go_on)
        self._note = label("", "hint")
        for widget in (self.versions, self._copy, self.again, self._note):
            line.addWidget(widget)
        line.addStretch()
        line.addWidget(self.on)
        foot.setLayout(line)
        return foot

    def _show_pieces(self, pieces: list[Piece], fresh: int) -> None:
        """Those before `fresh` are shown already."""
        for at, piece in enumerate(pieces[fresh:], fresh):
            if at < len(self._views) and not _fits(self._views[at], piece):
                self._drop_from(at)
            if at == len(self._views):
                self._add(piece)
            _fill(self._views[at], piece)
        self._drop_from(len(pieces))

    def _show_calls(self, *, whole: bool) -> None:
        while len(self._calls) < len(self.message.calls):
            view = ToolCallView()
            self._calls.append(view)
            self._call_column.addWidget(view)
        for view, call in zip(self._calls, self.message.calls, strict=True):
            view.show_call(call, whole=whole)

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

    def _tint(self) -> None:
        self._avatar.setPixmap(icons.app_icon().pixmap(28, 28))
        self.thoughts.tint()

    def _copy_text(self) -> None:
        QGuiApplication.clipboard().setText(self.message.text)


def _instead_of_text(message: Message) -> str:
    if not message.blank:
        return ""
    if message.state is MessageState.STREAMING:
        return message.note or ("Thinking…" if message.reasoning else "Reading the prompt…")
    if message.state is MessageState.DONE and not message.calls:
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
