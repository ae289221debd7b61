"""The conversation that is open: sends, receives, stops, tries again, goes on, and is kept."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, QTimer, Signal

from app.core import units
from app.core.advice import in_settings
from app.core.attachments import Attachment
from app.core.chats.records import Snapshot
from app.core.completion import (
    END_OF_STREAM,
    Delta,
    parse_efforts,
    parse_event,
    request_body,
)
from app.core.conversation import ChatSettings, Conversation, Message
from app.core.supervisor import EngineView, Phase
from app.ui.chat_archive import ChatArchive
from app.ui.engine_service import EngineService
from app.ui.http import Answer, EventStream
from app.ui.settings_store import SettingsStore
from engine.errors import told

_COMING = frozenset(
    {Phase.STARTING, Phase.LOADING, Phase.RESTARTING, Phase.BACKING_OFF, Phase.SILENT}
)
"""Phases after which the model may be ready without anybody's doing."""


_RATED_TOKENS, _RATED_S = 5, 0.05
"""Fewer tokens, or all of them in a shorter time, came in one burst: no rate of the engine's."""
KEEP_MS = 250
"""So often an answer is written to disk while it comes; a killed app loses no more."""


class ChatSession(QObject):
    changed = Signal()
    """The last message grew or ended."""
    restructured = Signal()
    """Messages came or went, or the conversation is another one."""

    def __init__(
        self,
        engine: EngineService,
        store: SettingsStore,
        archive: ChatArchive,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._engine = engine
        self._store = store
        self._archive = archive
        engine.view_changed.connect(self._go_or_wait)
        engine.view_changed.connect(self._ask_for_efforts)
        archive.loaded.connect(self._show)
        self.conversation = Conversation()
        self.temporary = False
        """Whether this conversation is not to be kept, whatever the settings say."""
        self._efforts_of = ""
        """The server that was asked for them."""
        self.efforts: tuple[str, ...] = ()
        """How much the model can be told to think; empty where it is not known to."""
        self._kept: bool | None = None
        """Whether it is kept; None while it has no turn that could be."""
        self._keep_soon = QTimer(self)
        self._keep_soon.setSingleShot(True)
        self._keep_soon.setInterval(KEEP_MS)
        self._keep_soon.timeout.connect(self._keep_answer)
        self._stream: EventStream | None = None
        self._awaited = ""
        self._last = Delta()
        self._tokens = 0
        self._sent_at = self._first_at = self._last_at = self._thought_at = 0.0

    @property
    def busy(self) -> bool:
        return self.conversation.answer is not None

    @property
    def kept(self) -> bool:
        """Whether this conversation is, or will be, kept on disk."""
        if self._kept is None:
            return self._store.now.keep_conversations and not self.temporary
        return self._kept

    def ask(self, text: str, files: list[Attachment] | None = None) -> None:
        """Send the person's message. Raises ValueError where it is empty or out of turn."""
        self.conversation.ask(text, files)
        self._send()

    def edit(self, message: Message, text: str, files: list[Attachment]) -> None:
        """Say it otherwise and go on from there; what followed stays as another version."""
        self.conversation.edit(message, text, files)
        self._send()

    def retry(self) -> None:
        self.conversation.retry()
        self._send()

    def go_on(self) -> None:
        """Let an answer that ended early be written on."""
        self.conversation.go_on()
        self._send()

    def choose(self, message: Message) -> None:
        """Show another version of a turn."""
        if not self.busy:
            self.conversation.choose(message)
            self._keep([])
            self.restructured.emit()

    def use_settings(self, settings: ChatSettings) -> None:
        self.conversation.settings = settings
        if self.conversation.messages:
            self._keep([])

    def stop(self) -> None:
        """End the answer where it is; the engine sees the connection go and stops its work."""
        self._close()
        self.conversation.stop()
        self._keep_end()

    def new_chat(self) -> None:
        self._leave()
        self._awaited = ""
        self.conversation, self.temporary, self._kept = Conversation(), False, None
        self.restructured.emit()

    def open(self, id_: str) -> None:
        """Show a kept conversation once it is read."""
        if id_ != self.conversation.id:
            self._awaited = id_
            self._archive.load(id_)

    def close(self) -> None:
        """Break off whatever streams, without a word: the app ends. What came is kept."""
        self._leave()

    def _leave(self) -> None:
        if self.busy:
            self._close()
            self.conversation.stop()
            self._keep_answer()
        self._keep_soon.stop()

    def _show(self, chat: Conversation) -> None:
        if chat.id == self._awaited:
            self._leave()
            self._awaited = ""
            self.conversation, self.temporary, self._kept = chat, False, True
            self.restructured.emit()

    def _send(self) -> None:
        self._tokens = 0
        self._last = Delta()
        if self._kept is None:
            self._kept = self.kept
        self._keep(self.conversation.messages[-2:], relist=True)
        self.restructured.emit()
        self._go_or_wait(self._engine.view)

    def _go_or_wait(self, view: EngineView) -> None:
        """Send the waiting message once the model answers, or say why it never will."""
        answer = self.conversation.answer
        if answer is None or self._stream is not None:
            return
        if view.phase is Phase.READY and self._engine.endpoint:
            answer.note = ""
            self._request()
        elif view.phase in _COMING:
            answer.note = "Waiting for the model…"
            self.changed.emit()
        else:
            reason = view.reason or "The engine is not running."
            self._fail(told(reason, view.hint or "Start it, then try again."))

    def _request(self) -> None:
        self._sent_at, self._first_at, self._thought_at = time.monotonic(), 0.0, 0.0
        chat = self.conversation
        begun = chat.answer is not None and chat.answer.text != ""
        body = request_body(self._engine.model, chat.for_request(), chat.settings, go_on=begun)
        url = f"{self._engine.endpoint}/v1/chat/completions"
        self._stream = self._engine.http.stream(url, body)
        self._stream.arrived.connect(self._take)
        self._stream.ended.connect(self._ended)
        self._stream.failed.connect(self._fail)

    def _take(self, data: str) -> None:
        if data == END_OF_STREAM:
            return
        try:
            delta = parse_event(data)
        except ValueError as error:
            self._fail(str(error))
            return
        if delta.error:
            self._fail(delta.error)
            return
        self._tokens = delta.completion_tokens or self._tokens
        if delta.finish_reason:
            self._last = delta
        if delta.text or delta.reasoning or delta.calls:
            self._last_at = time.monotonic()
            self._first_at = self._first_at or self._last_at
            self._add(delta)
            if not self._keep_soon.isActive():
                self._keep_soon.start()
            self.changed.emit()

    def _add(self, delta: Delta) -> None:
        self.conversation.append(delta.text, delta.reasoning)
        for piece in delta.calls:
            self.conversation.append_call(piece.index, piece.name, piece.arguments)
        answer = self.conversation.answer
        if answer is not None and delta.reasoning:
            self._thought_at = self._thought_at or self._last_at
            answer.thinking_s = self._last_at - self._thought_at

    def _ended(self) -> None:
        self._stream = None
        if not self._last.finish_reason:
            self._fail("The engine's answer broke off before its end.")
            return
        self.conversation.finish(self._note(), cut=self._last.finish_reason == "length")
        self._keep_end()

    def _fail(self, sentence: str) -> None:
        self._close()
        if self._engine.view.ours:
            sentence = in_settings(sentence)
        self.conversation.fail(sentence)
        self._keep_end()

    def _note(self) -> str:
        parts = []
        if self._last.finish_reason == "length":
            parts.append("Cut at the length limit")
        if self._tokens and self._first_at:
            parts.append(units.counted(self._tokens, "token"))
            seconds = self._last_at - self._first_at
            if self._tokens >= _RATED_TOKENS and seconds >= _RATED_S:
                parts.append(f"{units.speed((self._tokens - 1) / seconds)} tok/s")
            parts.append(f"first one after {units.duration(self._first_at - self._sent_at)}")
        return "  ·  ".join(parts)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _ask_for_efforts(self, view: EngineView) -> None:
        if view.phase is not Phase.READY or not self._engine.endpoint:
            self._efforts_of = ""
        elif self._efforts_of != self._engine.endpoint:
            self._efforts_of = self._engine.endpoint

            def heard(answer: Answer) -> None:
                self.efforts = parse_efforts(answer.body) if answer.ok else ()

            self._engine.http.get(f"{self._engine.endpoint}/v1/models", heard)

    # --- keeping ---

    def _keep_end(self) -> None:
        self._keep_soon.stop()
        self._keep(self.conversation.messages[-1:], relist=True)
        self.changed.emit()

    def _keep_answer(self) -> None:
        self._keep(self.conversation.messages[-1:])

    def _keep(self, messages: list[Message], *, relist: bool = False) -> None:
        if self._kept and self.conversation.messages:
            self._archive.save(Snapshot.of(self.conversation, messages), relist=relist)
