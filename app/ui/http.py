"""HTTP to the engine's server, on Qt's event loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, QObject, QUrl, Signal
from PySide6.QtNetwork import (
    QNetworkAccessManager,
    QNetworkProxy,
    QNetworkReply,
    QNetworkRequest,
)

from app.core.completion import error_message
from app.core.sse import EventParser

ANSWER_MS = 4_000
"""Health, stats and control answers come from a process that does nothing else."""

UNAUTHORISED = 401


@dataclass(frozen=True)
class Answer:
    """What came back. `status` is 0 where nothing did, and then `error` says why."""

    status: int
    body: bytes
    error: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


OnAnswer = Callable[[Answer], None]


class HttpClient(QObject):
    """Requests to a server on this machine: never through a proxy, whatever the system says."""

    def __init__(self, key: Callable[[], str], parent: QObject | None = None) -> None:
        """`key` is what goes with every request that has no token of its own; it may be empty."""
        super().__init__(parent)
        self._key = key
        self._network = QNetworkAccessManager(self)
        self._network.setProxy(QNetworkProxy(QNetworkProxy.ProxyType.NoProxy))

    def get(self, url: str, on_answer: OnAnswer, *, token: str = "") -> None:
        request = self._request(url, token)
        request.setTransferTimeout(ANSWER_MS)
        self._answer(self._network.get(request), on_answer)

    def post(self, url: str, body: bytes, on_answer: OnAnswer, *, token: str = "") -> None:
        request = self._request(url, token)
        request.setTransferTimeout(ANSWER_MS)
        self._answer(self._network.post(request, body), on_answer)

    def stream(self, url: str, body: bytes | None = None, *, token: str = "") -> EventStream:
        """Server-sent events: of a GET, or of a POST with this JSON body. No time limit."""
        request = self._request(url, token)
        request.setRawHeader(b"Accept", b"text/event-stream")
        if body is None:
            return EventStream(self._network.get(request), self)
        return EventStream(self._network.post(request, body), self)

    def _request(self, url: str, token: str = "") -> QNetworkRequest:
        request = QNetworkRequest(QUrl(url))
        request.setHeader(QNetworkRequest.KnownHeaders.ContentTypeHeader, "application/json")
        if secret := token or self._key():
            request.setRawHeader(b"Authorization", f"Bearer {secret}".encode())
        return request

    def _answer(self, reply: QNetworkReply, on_answer: OnAnswer) -> None:
        def finished() -> None:
            answer = Answer(_status(reply), _bytes(reply.readAll()), reply.errorString())
            reply.deleteLater()
            on_answer(answer)

        reply.finished.connect(finished)


class EventStream(QObject):
    """One stream of events. It ends with one of `ended` and `failed`, or in silence by close()."""

    arrived = Signal(str)
    """The data of one event."""
    ended = Signal()
    failed = Signal(str)
    """A sentence."""

    def __init__(self, reply: QNetworkReply, parent: QObject) -> None:
        super().__init__(parent)
        self._parser = EventParser()
        self._reply = reply
        self._open = True
        reply.setParent(self)
        reply.readyRead.connect(self._read)
        reply.finished.connect(self._finished)

    def close(self) -> None:
        """Break the connection; the server sees its client go. Nothing is signalled any more."""
        if not self._open:
            return
        self._open = False
        self._reply.abort()
        self.deleteLater()

    def _read(self) -> None:
        if not self._open or _status(self._reply) >= 400:
            return  # an error's body is read as a whole, at its end
        try:
            events = self._parser.feed(_bytes(self._reply.readAll()))
        except ValueError as error:
            self._fail(str(error))
            return
        for event in events:
            if self._open:
                self.arrived.emit(event.data)

    def _finished(self) -> None:
        if not self._open:
            return
        status = _status(self._reply)
        if status >= 400:
            body = _bytes(self._reply.readAll())
            if status == UNAUTHORISED:
                self._fail("This engine wants its API key. Enter it in the settings.")
                return
            self._fail(error_message(body, f"The engine answered with status {status}."))
        elif self._reply.error() != QNetworkReply.NetworkError.NoError:
            self._fail(f"The connection to the engine broke: {self._reply.errorString()}.")
        else:
            self._read()
            self._open = False
            self.ended.emit()
            self.deleteLater()

    def _fail(self, sentence: str) -> None:
        self._open = False
        self._reply.abort()
        self.failed.emit(sentence)
        self.deleteLater()


def _status(reply: QNetworkReply) -> int:
    return reply.attribute(QNetworkRequest.Attribute.HttpStatusCodeAttribute) or 0


def _bytes(data: QByteArray) -> bytes:
    return bytes(data.data())
