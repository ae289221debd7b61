"""One conversation with the engine: sends, receives, stops, tries again."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, Signal

from app.core import units
from app.core.advice import in_settings
from app.core.completion import END_OF_STREAM, Delta, parse_event, request_body
from app.core.conversation import Conversation
from app.core.supervisor import EngineView, Phase
from app.ui.engine_service import EngineService
from app.ui.http import EventStream
from engine.errors import told

_COMING = frozenset(
    {Phase.STARTING, Phase.LOADING, Phase.RESTARTING, Phase.BACKING_OFF, Phase.SILENT}
)
"""Phases after which the model may be ready without anybody's doing."""


_RATED_TOKENS, _RATED_S = 5, 0.05
"""Fewer tokens, or all of them in a shorter time, came in one burst: no rate of the engine's."""


class ChatSession(QObject):
    changed = Signal()
    """The last message grew or ended."""
    restructured = Signal()
    """Messages came or went."""

    def __init__(self, engine: EngineService, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._engine = engine
        engine.view_changed.connect(self._go_or_wait)
        self.conversation = Conversation()
        self._stream: EventStream | None = None
        self._last = Delta()
        self._tokens = 0
        self._sent_at = self._first_at = self._last_at = 0.0

    @property
    def busy(self) -> bool:
        return self.conversation.answer is not None

    def ask(self, text: str) -> None:
        """Send the person's message. Raises ValueError where it is empty or out of turn."""
        self.conversation.ask(text)
        self._send()

    def retry(self) -> None:
        self.conversation.retry()
        self._send()

    def stop(self) -> None:
        """End the answer where it is; the engine sees the connection go and stops its work."""
        self._close()
        self.conversation.stop()
        self.changed.emit()

    def new_chat(self) -> None:
        self._close()
        self.conversation.clear()
        self.restructured.emit()

    def close(self) -> None:
        """Break off whatever streams, without a word: the app ends."""
        self._close()

    def _send(self) -> None:
        self._tokens = 0
        self._last = Delta()
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
        self._sent_at, self._first_at = time.monotonic(), 0.0
        body = request_body(self._engine.model, self.conversation.for_request())
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
        if delta.text or delta.reasoning:
            self._last_at = time.monotonic()
            self._first_at = self._first_at or self._last_at
            self.conversation.append(delta.text, delta.reasoning)
            self.changed.emit()

    def _ended(self) -> None:
        self._stream = None
        if not self._last.finish_reason:
            self._fail("The engine's answer broke off before its end.")
            return
        self.conversation.finish(self._note())
        self.changed.emit()

    def _fail(self, sentence: str) -> None:
        self._close()
        if self._engine.view.ours:
            sentence = in_settings(sentence)
        self.conversation.fail(sentence)
        self.changed.emit()

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
