"""The chat page: the list of conversations, the one that is open, and where the person writes."""

from __future__ import annotations

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.core.attachments import Attachment
from app.core.chats.records import Entry
from app.core.conversation import Message
from app.core.supervisor import EngineView, Phase
from app.ui import icons
from app.ui.chat_archive import ChatArchive
from app.ui.chat_session import ChatSession
from app.ui.chat_settings_dialog import ChatSettingsDialog
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import IconButton, button, column, label, row
from app.ui.widgets.composer import Composer
from app.ui.widgets.conversation_list import ConversationList
from app.ui.widgets.transcript import COLUMN_WIDTH, Transcript, View

_LIST_WIDTH = 248
_WIDE = 860
"""From here on the list has room beside the conversation."""


class ChatPage(QWidget):
    model_asked = Signal()
    """The person wants another model."""

    def __init__(self, session: ChatSession, archive: ChatArchive) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAccessibleName("Chat")
        self.session = session
        self._archive = archive
        self._edited: Message | None = None
        self._warm = False
        self._wide: bool | None = None
        """Whether the list has room; None before there is a size."""
        self.composer = Composer()
        self.transcript = Transcript()
        self.scroller = self.transcript
        self.list = ConversationList()
        self.list.setFixedWidth(_LIST_WIDTH)
        self.banner = Banner()
        self.banner.add_button("Dismiss").clicked.connect(self.banner.hide)
        self._make_actions()
        self._make_layout()
        self._connect()
        self._make_shortcuts()
        self._rebuild()
        archive.begin()

    @property
    def views(self) -> list[View]:
        return self.transcript.views

    def show_view(self, view: EngineView) -> None:
        self._state.setText("" if view.phase is Phase.READY else _WAITING.get(view.phase, ""))
        self._state.setVisible(bool(self._state.text()))

    def close_chats(self) -> None:
        """The app ends: what streams is broken off, and everything written."""
        self.session.close()
        self.composer.close_files()
        self._archive.close()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._warm:
            self._warm = True
            QTimer.singleShot(0, self.transcript.warm)
        self.composer.editor.setFocus()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        wide = self.width() >= _WIDE
        if wide != self._wide:
            self._wide = wide
            self._show_list(wide)

    # --- layout ---

    def _make_actions(self) -> None:
        """What stands beside the page's title."""
        self.new_button = button("New chat")
        self.new_button.setToolTip("New chat (Ctrl+N)")
        self.list_button = IconButton("sidebar", "Hide the conversations")
        self.temporary = IconButton("temporary", "Temporary chat: nothing of it is kept")
        self.temporary.setCheckable(True)
        self.tune = IconButton("tune", "Settings of this conversation")
        line = row(4)
        for widget in (self.list_button, self.new_button, self.temporary, self.tune):
            line.addWidget(widget)
        self.title_actions = QWidget()
        self.title_actions.setLayout(line)

    def _make_layout(self) -> None:
        self._empty = self._make_empty()
        talk = column(0)
        notice = row(0)
        notice.setContentsMargins(24, 8, 24, 0)
        notice.addWidget(self.banner)
        talk.addLayout(notice)
        talk.addWidget(self._empty, 1)
        talk.addWidget(self.transcript, 1)
        talk.addLayout(self._make_foot())
        whole = row(0)
        whole.addWidget(self.list)
        whole.addLayout(talk, 1)
        self.setLayout(whole)

    def _make_empty(self) -> QWidget:
        empty = QWidget()
        mark = label("")
        mark.setPixmap(icons.app_icon().pixmap(56, 56))
        title = label("Ask the model anything", "heading")
        self._promise = label("", "muted")
        add = button("Choose a model…")
        add.clicked.connect(self.model_asked)
        inside = column(10)
        inside.addStretch()
        for widget in (mark, title, self._promise, add):
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
        middle: QHBoxLayout = row(0)
        middle.addStretch(1)
        middle.addWidget(framed, 100)
        middle.addStretch(1)
        foot = column(0)
        foot.setContentsMargins(24, 8, 24, 20)
        foot.addLayout(middle)
        return foot

    def _connect(self) -> None:
        session, archive, transcript = self.session, self._archive, self.transcript
        self.composer.sent.connect(self._send)
        self.composer.stopped.connect(session.stop)
        self.composer.edit_ended.connect(self._end_edit)
        self.composer.edit_last_asked.connect(self._edit_last)
        session.changed.connect(self._answer_changed)
        session.restructured.connect(self._rebuild)
        transcript.retry.connect(self._retry)
        transcript.go_on.connect(self._go_on)
        transcript.edit_asked.connect(self._edit)
        transcript.chosen.connect(session.choose)
        self.new_button.clicked.connect(self._new_chat)
        self.list_button.clicked.connect(lambda: self._show_list(self.list.isHidden()))
        self.temporary.toggled.connect(self._set_temporary)
        self.tune.clicked.connect(self.open_settings)
        self.list.searched.connect(archive.search)
        self.list.opened.connect(self._open)
        self.list.renamed.connect(self._rename)
        self.list.deleted.connect(self._delete)
        self.list.restored.connect(archive.restore)
        self.list.erased.connect(archive.erase)
        archive.listed.connect(self._show_entries)
        archive.problem_changed.connect(self.list.show_kept)
        archive.said.connect(self.banner.show_problem)

    def _make_shortcuts(self) -> None:
        QShortcut(QKeySequence.StandardKey.New, self, self._new_chat)
        QShortcut(QKeySequence.StandardKey.Find, self, self._search)
        # Ctrl+E and Ctrl+K are the text field's own on Linux.
        QShortcut(QKeySequence("Ctrl+Shift+E"), self, self._edit_last)
        QShortcut(QKeySequence(Qt.Key.Key_Escape), self, self._escape)

    # --- the conversation ---

    def _send(self, text: str, files: list[Attachment]) -> None:
        self.transcript.follow()
        edited, self._edited = self._edited, None
        if edited is not None and any(m is edited for m in self.session.conversation.messages):
            self.session.edit(edited, text, files)
        else:
            self.session.ask(text, files)

    def _retry(self) -> None:
        if not self.session.busy:
            self.transcript.follow()
            self.session.retry()

    def _go_on(self) -> None:
        if not self.session.busy:
            self.transcript.follow()
            self.session.go_on()

    def _edit(self, message: Message) -> None:
        if not self.session.busy:
            self._edited = message
            self.composer.begin_edit(message.text, message.files)

    def _edit_last(self) -> None:
        said = [m for m in self.session.conversation.messages if m.role == "user"]
        if said:
            self._edit(said[-1])

    def _end_edit(self) -> None:
        self._edited = None
        self.composer.editor.setFocus()

    def _new_chat(self) -> None:
        self._leave()
        self.session.new_chat()
        self.composer.editor.setFocus()

    def _open(self, id_: str) -> None:
        if id_ != self.session.conversation.id:
            self._leave()
            self.session.open(id_)
            if self.width() < _WIDE:
                self._show_list(False)

    def _leave(self) -> None:
        """What was about to be edited belongs to the conversation that is left."""
        if self._edited is not None:
            self._edited = None
            self.composer.clear()

    def _escape(self) -> None:
        if self.session.busy:
            self.session.stop()
        elif self._edited is not None:
            self.composer.clear()
            self._end_edit()

    def open_settings(self) -> ChatSettingsDialog:
        dialog = ChatSettingsDialog(self, self.session.conversation.settings, self.session.efforts)
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.chosen.connect(self.session.use_settings)
        dialog.open()
        return dialog

    def _set_temporary(self, on: bool) -> None:
        self.session.temporary = on
        self._show_kept()

    # --- the list ---

    def _show_list(self, shown: bool) -> None:
        self.list.setVisible(shown)
        words = "Hide the conversations" if shown else "Show the conversations"
        self.list_button.show_as("sidebar", words)

    def _search(self) -> None:
        self._show_list(True)
        self.list.search.setFocus()
        self.list.search.selectAll()

    def _show_entries(self, entries: list[Entry]) -> None:
        self.list.show_entries(entries)

    def _rename(self, id_: str, title: str) -> None:
        if id_ == self.session.conversation.id:
            self.session.conversation.title = title
        self._archive.rename(id_, title)

    def _delete(self, id_: str) -> None:
        if id_ == self.session.conversation.id:
            self._leave()
            self.session.new_chat()
        self._archive.delete(id_)

    # --- what is shown ---

    def _rebuild(self) -> None:
        chat = self.session.conversation
        self.transcript.show_chat(chat, busy=self.session.busy)
        self._empty.setVisible(not chat.messages)
        self.transcript.setVisible(bool(chat.messages))
        self.list.show_current(chat.id)
        self._show_busy()
        self._show_kept()

    def _answer_changed(self) -> None:
        self.transcript.answer_changed(busy=self.session.busy)
        self._show_busy()

    def _show_busy(self) -> None:
        self.composer.set_busy(self.session.busy)
        self.new_button.setEnabled(bool(self.session.conversation.messages))

    def _show_kept(self) -> None:
        session = self.session
        begun = bool(session.conversation.messages)
        self.temporary.setEnabled(not begun)
        self.temporary.blockSignals(True)
        self.temporary.setChecked(session.temporary)
        self.temporary.blockSignals(False)
        kept = "Nothing leaves this machine." if session.kept else "Nothing of this chat is kept."
        self._promise.setText(kept)


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
