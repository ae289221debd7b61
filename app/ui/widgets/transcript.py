"""The turns of a conversation, in a column that scrolls.

However long it is, no single turn of the event loop has much to do: views are made a few at a time
from the end, answers are drawn piece by piece, and of a long conversation only the newest turns
have a view until the person wants to see more.
"""

from __future__ import annotations

import time

from PySide6.QtCore import QEvent, Qt, QTimer, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.core.conversation import Conversation, Message
from app.core.markdown import Code
from app.ui.widgets.basics import button, row
from app.ui.widgets.code_block import CodeBlock
from app.ui.widgets.message_view import AssistantMessage
from app.ui.widgets.prose import ProseView
from app.ui.widgets.user_message import UserMessage

FRAME_MS = 66
"""About 15 draws a second while an answer streams."""
MOST_SHARE = 0.25
"""Drawing may take this share of the time; long answers are drawn less often."""
COLUMN_WIDTH = 780
MOST_VIEWS = 40
"""So many turns are shown at first, and so many more each time they are asked for."""
_AT_BOTTOM = 24
_MARGIN = 24
_AT_ONCE = 2
"""A question and its answer."""

View = UserMessage | AssistantMessage


class Transcript(QScrollArea):
    retry = Signal()
    go_on = Signal()
    edit_asked = Signal(object)
    chosen = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._chat = Conversation()
        self._busy = False
        self._follow = True
        self._draw_seconds = 0.0
        self._most = MOST_VIEWS
        self._above = 0
        """How many messages have no view: those before the first that has."""
        self._undrawn: list[AssistantMessage] = []
        self.views: list[View] = []
        self._redraw = QTimer(self)
        self._redraw.setSingleShot(True)
        self._redraw.timeout.connect(self._draw)
        self._column = QWidget()
        self._column.setMaximumWidth(COLUMN_WIDTH)
        self._messages = QVBoxLayout(self._column)
        self._messages.setContentsMargins(0, 24, 0, 24)
        self._messages.setSpacing(20)
        self.earlier = button("Show earlier messages")
        self.earlier.clicked.connect(self._show_earlier)
        self._messages.addWidget(self.earlier, 0, Qt.AlignmentFlag.AlignHCenter)
        self._messages.addStretch()
        content = QWidget()
        content.setObjectName("scrolled")
        middle = row(0)
        middle.setContentsMargins(_MARGIN, 0, _MARGIN, 0)
        middle.addStretch(1)
        middle.addWidget(self._column, 100)
        middle.addStretch(1)
        content.setLayout(middle)
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Conversation")
        self.setWidget(content)
        bar = self.verticalScrollBar()
        bar.rangeChanged.connect(self._range_changed)
        bar.valueChanged.connect(self._scrolled)

    def warm(self) -> None:
        """Load fonts and what highlights code, so that the first answer does not wait for it."""
        prose, code = ProseView("Answer"), CodeBlock()
        prose.show_html("<h1>a</h1><p>a <b>b</b> <i>i</i> <code>c</code></p><ol><li>a</ol>")
        code.show_code(Code('def f():  # c\n    return "s"', "python"))
        for widget in (prose, code):
            widget.grab()
            widget.deleteLater()

    def follow(self) -> None:
        """Stay at the end from now on, until the person scrolls away from it."""
        self._follow = True

    def show_chat(self, chat: Conversation, *, busy: bool) -> None:
        """Bring the views in line with the messages; those that stay keep their view."""
        if chat is not self._chat:
            self._chat, self._most, self._follow = chat, MOST_VIEWS, True
        self._busy = busy
        messages = chat.messages
        begin, count = self._matching(messages)
        if len(messages) - begin - count > _AT_ONCE:
            begin, count = len(messages), 0
        self._drop(count)
        for message in messages[begin + count :]:
            self._insert(len(self.views), message)
        self._above = begin
        self._make_above()
        self._show_places()

    def answer_changed(self, *, busy: bool) -> None:
        """The last message grew or ended."""
        if busy != self._busy:
            self._busy = busy
            self._show_places()
        if not busy:
            self._draw()
        elif not self._redraw.isActive():
            self._redraw.start(max(FRAME_MS, int(1000 * self._draw_seconds / MOST_SHARE)))

    @property
    def settled(self) -> bool:
        """Whether everything that is to be shown is drawn."""
        return not self._redraw.isActive()

    def resizeEvent(self, event: QResizeEvent) -> None:
        for view in self.views:
            if isinstance(view, UserMessage):
                view.set_room(self._room)
        super().resizeEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange and hasattr(self, "_redraw"):
            self._undrawn = [v for v in reversed(self.views) if isinstance(v, AssistantMessage)]
            if self._undrawn:
                self._redraw.start(0)

    @property
    def _room(self) -> int:
        return self.viewport().width() - 2 * _MARGIN

    # --- views ---

    def _matching(self, messages: list[Message]) -> tuple[int, int]:
        """Where the views stand among the messages, and how many of them still do."""
        if not self.views:
            return len(messages), 0
        first = self.views[0].message
        begin = next((at for at, m in enumerate(messages) if m is first), len(messages))
        count = 0
        for message, view in zip(messages[begin:], self.views, strict=False):
            if view.message is not message:
                break
            count += 1
        return begin, count

    def _drop(self, at: int) -> None:
        for view in self.views[at:]:
            self._messages.removeWidget(view)
            view.hide()
            view.deleteLater()
        del self.views[at:]

    def _insert(self, at: int, message: Message) -> None:
        view: View
        if message.role == "user":
            view = UserMessage(message)
            view.edit_asked.connect(self.edit_asked)
            view.set_room(self._room)
        else:
            view = AssistantMessage(message)
            view.retry.connect(self.retry)
            view.go_on.connect(self.go_on)
            self._undrawn.append(view)
        view.chosen.connect(self.chosen)
        self.views.insert(at, view)
        self._messages.insertWidget(at + 1, view)  # behind the button

    def _make_above(self) -> None:
        """One more view above those that there are, and the rest in further turns of the loop."""
        if self._above and len(self.views) < self._most:
            self._above -= 1
            self._insert(0, self._chat.messages[self._above])
        self.earlier.setVisible(self._above > 0 and len(self.views) >= self._most)
        if self._unfinished:
            self._redraw.start(0)

    def _show_earlier(self) -> None:
        self._most += MOST_VIEWS
        self._make_above()
        self._show_places()

    def _show_places(self) -> None:
        for view in self.views:
            self._show_place(view)

    def _show_place(self, view: View) -> None:
        versions = self._chat.versions(view.message)
        if isinstance(view, AssistantMessage):
            view.show_place(versions, last=view is self.views[-1], busy=self._busy)
        else:
            view.show_place(versions, busy=self._busy)

    # --- drawing ---

    @property
    def _unfinished(self) -> bool:
        return bool(self._undrawn) or (self._above > 0 and len(self.views) < self._most)

    def _draw(self) -> None:
        """One piece: of the answer that streams, else of what is not drawn yet, from the end."""
        began = time.monotonic()
        last = self.views[-1] if self.views else None
        if isinstance(last, AssistantMessage):
            last.show_message()
        else:
            last = None
        self._undrawn = [v for v in self._undrawn if v in self.views and v.pending]
        if self._undrawn and self._undrawn[0] is not last:
            self._undrawn[0].show_message()
        elif not self._undrawn and self._unfinished:
            self._make_above()
            self._show_place(self.views[0])
        if last is not None and last.pending and last not in self._undrawn:
            self._undrawn.insert(0, last)
        self._draw_seconds = time.monotonic() - began
        if self._unfinished:
            self._redraw.start(0)

    # --- scrolling: follow the answer only for a reader who is at its end ---

    def _scrolled(self, value: int) -> None:
        self._follow = value >= self.verticalScrollBar().maximum() - _AT_BOTTOM

    def _range_changed(self, _: int, most: int) -> None:
        if self._follow:
            self.verticalScrollBar().setValue(most)
