"""One app per user and home folder: a second launch raises the first one's window."""

from __future__ import annotations

import getpass
import hashlib
import logging
import time
from enum import Enum

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from engine import paths

log = logging.getLogger(__name__)

_RAISE = b"raise\n"
_DONE = b"done\n"
_PATIENCE_S = 20.0
"""The first instance may still be starting, or ending together with its engine."""


class SingleInstance(QObject):
    """Claim first; where that fails, another instance runs and can be asked to show itself."""

    raised = Signal()
    """A second launch wants the window."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        home = paths.home()
        home.mkdir(parents=True, exist_ok=True)
        self._name = socket_name()
        # The lock decides who is first: it tells a dead owner by pid, which a socket file cannot.
        self._lock = QLockFile(str(home / "app.lock"))
        self._lock.setStaleLockTime(0)
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._greet)

    def claim(self) -> bool:
        """Become the one instance. False where another one is."""
        if not self._lock.tryLock(0):
            return False
        QLocalServer.removeServer(self._name)  # of an owner that crashed
        if not self._server.listen(self._name):
            log.warning("no second launch can raise this window: %s", self._server.errorString())
        return True

    def stop_listening(self) -> None:
        """This instance is ending: a launch from now on waits for the lock, to open anew."""
        self._server.close()

    def release(self) -> None:
        self._server.close()
        self._lock.unlock()

    def _greet(self) -> None:
        while (socket := self._server.nextPendingConnection()) is not None:
            self._serve(socket)

    def _serve(self, socket: QLocalSocket) -> None:
        def read() -> None:
            if socket.canReadLine() and bytes(socket.readLine().data()) == _RAISE:
                socket.write(_DONE)
                socket.flush()
                self.raised.emit()

        socket.readyRead.connect(read)
        socket.disconnected.connect(socket.deleteLater)
        read()


class Launch(Enum):
    FIRST = "first"
    """This is the one instance now."""
    RAISED = "raised"
    """Another one is, and has shown its window."""
    UNANSWERED = "unanswered"
    """Another one is, and does not answer."""


def settle(instance: SingleInstance, patience_s: float = _PATIENCE_S) -> Launch:
    """Become the one instance, or have the one that runs show itself."""
    deadline = time.monotonic() + patience_s
    while True:
        if instance.claim():
            return Launch.FIRST
        if _raise_first():
            return Launch.RAISED
        if time.monotonic() >= deadline:
            return Launch.UNANSWERED
        time.sleep(0.1)


def _raise_first() -> bool:
    socket = QLocalSocket()
    socket.connectToServer(socket_name())
    if not socket.waitForConnected(500):
        return False
    socket.write(_RAISE)
    socket.flush()
    return socket.waitForReadyRead(2000) and bytes(socket.readAll().data()) == _DONE


def socket_name() -> str:
    """The same for all launches of this user with this home, and for no others."""
    identity = f"{getpass.getuser()}\n{paths.home().resolve()}"
    return f"headrace-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
