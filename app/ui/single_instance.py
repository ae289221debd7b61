"""One app per user and home folder: a second launch raises the first one's window."""

from __future__ import annotations

import getpass
import hashlib
import logging
import time

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from engine import paths

log = logging.getLogger(__name__)

_RAISE = b"raise\n"
_DONE = b"done\n"
_PATIENCE_S = 5.0
"""The first instance may still be starting."""


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


def raise_first(patience_s: float = _PATIENCE_S) -> bool:
    """Ask the running instance to show its window. False where none answers in time."""
    deadline = time.monotonic() + patience_s
    while True:
        socket = QLocalSocket()
        socket.connectToServer(socket_name())
        if socket.waitForConnected(500):
            socket.write(_RAISE)
            socket.flush()
            if socket.waitForReadyRead(2000) and bytes(socket.readAll().data()) == _DONE:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)


def socket_name() -> str:
    """The same for all launches of this user with this home, and for no others."""
    identity = f"{getpass.getuser()}\n{paths.home().resolve()}"
    return f"headrace-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
