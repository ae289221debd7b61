"""The chat page."""

from __future__ import annotations

import time

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QShortcut, QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QVBoxLayout, QWidget

from app.core.conversation import Message
from app.core.supervisor import EngineView, Phase
from app.ui import icons
from app.ui.chat_session import ChatSession
from app.ui.widgets.basics import button, column, label, row
from app.ui.widgets.composer import Composer
from app.ui.widgets.message_view import AssistantMessage, UserMessage

FRAME_MS = 66
"""About 15 draws a second while an answer streams."""
MOST_SHARE = 0.25
"""Drawing may take this share of the time; long answers are drawn less often."""
COLUMN_WIDTH = 780
_AT_BOTTOM = 24


class ChatPage(QWidget):
    model_asked = Signal()
    """The person wants another model."""

    def __init__(self, session: ChatSession) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAccessibleName("Chat")
        self.session = session
        self._follow = True
        self._draw_seconds = 0.0
        self._views: list[UserMessage | AssistantMessage] = []
        self.composer = Composer()
        self.composer.sent.connect(self._send)
        self.composer.stopped.connect(session.stop)
        self.new_button = button("New chat")
        self.new_button.clicked.connect(self._new_chat)
        self._redraw = QTimer(self)
        self._redraw.setSingleShot(True)
        self._redraw.timeout.connect(self._draw_answer)
        session.changed.connect(self._answer_changed)
        session.restructured.connect(self._rebuild)
        self._make_layout()
        QShortcut(QKeySequence.StandardKey.New, self, self._new_chat)
        QShortcut(QKeySequence(Qt.Key.Key_Escape), self, self._escape)
        self._rebuild()

    @property
    def views(self) -> list[UserMessage | AssistantMessage]:
        return self._views

    def show_view(self, view: EngineView) -> None:
        self._state.setText("" if view.phase is Phase.READY else _WAITING.get(view.phase, ""))
        self._state.setVisible(bool(self._state.text()))

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.composer.editor.setFocus()

    # --- layout ---

    def _make_layout(self) -> None:
        self._column = QWidget()
        self._column.setMaximumWidth(COLUMN_WIDTH)
        self._messages = QVBoxLayout(self._column)
        self._messages.setContentsMargins(0, 24, 0, 24)
        self._messages.setSpacing(24)
        self._messages.addStretch()
        content = QWidget()
        content.setObjectName("scrolled")
        middle = row(0)
        middle.setContentsMargins(24, 0, 24, 0)
        middle.addStretch(1)
        middle.addWidget(self._column, 100)
        middle.addStretch(1)
        content.setLayout(middle)
        self.scroller = QScrollArea()
        self.scroller.setWidgetResizable(True)
        self.scroller.setFrameShape(QFrame.Shape.NoFrame)
        self.scroller.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.scroller.setAccessibleName("Conversation")
        self.scroller.setWidget(content)
        bar = self.scroller.verticalScrollBar()
        bar.rangeChanged.connect(self._range_changed)
        bar.valueChanged.connect(self._scrolled)
        self._empty = self._make_empty()
        body = column(0)
        body.addWidget(self._empty, 1)
        body.addWidget(self.scroller, 1)
        body.addLayout(self._make_foot())
        self.setLayout(body)

    def _make_empty(self) -> QWidget:
        empty = QWidget()
        mark = label("")
        mark.setPixmap(icons.app_icon().pixmap(56, 56))
        title = label("Ask the model anything", "heading")
        hint = label("Nothing leaves this machine.", "muted")
        add = button("Choose a model…")
        add.clicked.connect(self.model_asked)
        inside = column(10)
        inside.addStretch()
        for widget in (mark, title, hint, add):
            inside.addWidget(widget, 0, Qt.AlignmentFlag.AlignHCenter)
        inside.addStretch()
        empty.setLayout(inside)
        return empty

    def _make_foot(self) -> QVBoxLayout:
        self._state = label("", "hint")
        framed = QWidget()
        framed.setMaximumWidth(COLUMN_WIDTH)
        inside = column(6)
        inside.addWidget(self._state)
        inside.addWidget(self.composer)
        framed.setLayout(inside)
        middle = row(0)
        middle.addStretch(1)
        middle.addWidget(framed, 100)
        middle.addStretch(1)
        foot = column(0)
        foot.setContentsMargins(24, 8, 24, 20)
        foot.addLayout(middle)
        return foot

    # --- the conversation ---

    def _send(self, text: str) -> None:
        self._follow = True
        self.session.ask(text)

    def _retry(self) -> None:
        if not self.session.busy:
            self._follow = True
            self.session.retry()

    def _new_chat(self) -> None:
        self.session.new_chat()
        self.composer.editor.setFocus()

    def _escape(self) -> None:
        if self.session.busy:
            self.session.stop()

    def _rebuild(self) -> None:
        """Bring the views in line with the messages; those that stay keep their view."""
        messages = self.session.conversation.messages
        keep = 0
        while (
            keep < min(len(messages), len(self._views))
            and self._views[keep].message is messages[keep]
        ):
            keep += 1
        for view in self._views[keep:]:
            self._messages.removeWidget(view)
            view.hide()
            view.deleteLater()
        del self._views[keep:]
        for message in messages[keep:]:
            view = self._make_view(message)
            self._views.append(view)
            self._messages.insertWidget(self._messages.count() - 1, view)
        self._empty.setVisible(not messages)
        self.scroller.setVisible(bool(messages))
        self._show_busy()

    def _make_view(self, message: Message) -> UserMessage | AssistantMessage:
        if message.role == "user":
            return UserMessage(message)
        view = AssistantMessage(message)
        view.retry.connect(self._retry)
        return view

    def _answer_changed(self) -> None:
        if not self.session.busy:
            self._redraw.stop()
            self._draw_answer()
            self._show_busy()
        elif not self._redraw.isActive():
            self._redraw.start(max(FRAME_MS, int(1000 * self._draw_seconds / MOST_SHARE)))

    def _draw_answer(self) -> None:
        if not self._views or not isinstance(self._views[-1], AssistantMessage):
            return
        began = time.monotonic()
        self._views[-1].show_message()
        self._draw_seconds = time.monotonic() - began

    def _show_busy(self) -> None:
        busy = self.session.busy
        self.composer.set_busy(busy)
        self.new_button.setEnabled(bool(self._views))
        answers = [view for view in self._views if isinstance(view, AssistantMessage)]
        for view in answers:
            view.again.setVisible(not busy and view is answers[-1])

    # --- scrolling: follow the answer only for a reader who is at its end ---

    def _scrolled(self, value: int) -> None:
        self._follow = value >= self.scroller.verticalScrollBar().maximum() - _AT_BOTTOM

    def _range_changed(self, _: int, most: int) -> None:
        if self._follow:
            self.scroller.verticalScrollBar().setValue(most)


_WAITING = {
    Phase.STOPPED: "The engine is stopped.",
    Phase.STARTING: "The engine is starting…",
    Phase.LOADING: "The model is loading; a message sent now waits for it.",
    Phase.RESTARTING: "The engine is restarting…",
    Phase.FAILED: "The model could not be loaded: see the dashboard.",
    Phase.SILENT: "The engine does not respond.",
    Phase.BACKING_OFF: "The engine crashed and is about to restart.",
    Phase.GAVE_UP: "The engine cannot run: see the dashboard.",
    Phase.STOPPING: "The engine is stopping…",
}
