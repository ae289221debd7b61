"""Programs of our own that run beside the app, with their output on Qt's event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment

from engine import child_process

_END_MS = 2_000


class Child(QObject):
    """A process. `line` hears each line of its output, `ended` its end, with a sentence on why if
    it could not be started. Close it, whether it has ended or not, before its parent goes."""

    def __init__(
        self,
        command: Sequence[str],
        line: Callable[[bytes], None],
        ended: Callable[[str], None],
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._line, self._ended = line, ended
        self._over = False
        self.process = QProcess(self)
        environment = QProcessEnvironment()
        for name, value in child_process.environment().items():
            environment.insert(name, value)
        self.process.setProcessEnvironment(environment)
        self.process.readyReadStandardOutput.connect(self._read)
        self.process.finished.connect(lambda *_: self._end(""))
        self.process.errorOccurred.connect(self._failed)
        self.process.setProgram(command[0])
        self.process.setArguments(list(command[1:]))

    def start(self, first: bytes = b"") -> None:
        """`first` is written to its input, which stays open."""
        self.process.start()
        if first:
            self.process.write(first)

    def stop(self) -> None:
        """Close its input, at which it ends by itself."""
        self.process.closeWriteChannel()

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """End it now, unless it has ended; nothing is heard of it any more."""
        if not self._over:
            self._over = True
            self.process.closeWriteChannel()
            self.process.kill()
            self.process.waitForFinished(_END_MS)

    def _read(self) -> None:
        while not self._over and self.process.canReadLine():
            self._line(bytes(self.process.readLine().data()))

    def _failed(self, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            self._end(f"{self.process.program()} cannot be started: {self.process.errorString()}.")

    def _end(self, reason: str) -> None:
        self._read()
        if not self._over:
            self._over = True
            self._ended(reason)
