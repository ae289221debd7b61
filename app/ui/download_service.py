"""The downloads with hands: a process for each that runs, and its output to the state machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, QTimer, Signal

from app.core.downloads import process
from app.core.downloads.job_file import JobFile
from app.core.downloads.records import Job, Network, Request, State
from app.core.downloads.supervisor import Action, Downloads, Kill, Start, Stop
from engine import child_process

log = logging.getLogger(__name__)

TICK_MS = 250
_END_MS = 2_000


class DownloadService(QObject):
    """The one place in the app that starts and ends the processes of downloads."""

    changed = Signal()
    """`jobs` are others than before."""
    ready = Signal(object)
    """A Job whose model is checked and in place."""

    def __init__(
        self,
        network: Network | None = None,
        clock: Callable[[], float] = time.monotonic,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._downloads = Downloads(clock, JobFile(), network or Network())
        self.network = network or Network()
        self._processes: dict[str, QProcess] = {}
        self._shown: tuple[Job, ...] = ()
        self._told: set[str] = set()
        self._timer = QTimer(self)
        self._timer.setInterval(TICK_MS)
        self._timer.timeout.connect(lambda: self._do(self._downloads.tick()))

    @property
    def jobs(self) -> tuple[Job, ...]:
        return self._downloads.jobs

    def begin(self) -> None:
        """Go on with what ran when the app ended."""
        self._do(self._downloads.begin())

    def add(self, request: Request) -> None:
        self._told.discard(request.id)
        self._do(self._downloads.add(request))

    def pause(self, job_id: str) -> None:
        self._do(self._downloads.pause(job_id))

    def resume(self, job_id: str) -> None:
        self._told.discard(job_id)
        self._do(self._downloads.resume(job_id))

    def cancel(self, job_id: str) -> None:
        self._do(self._downloads.cancel(job_id))

    def close(self) -> None:
        """End every process; each goes on at the next start from what is on disk."""
        self._timer.stop()
        self._downloads.shut_down()
        for worker in self._processes.values():
            worker.blockSignals(True)
            worker.closeWriteChannel()
        for worker in self._processes.values():
            if not worker.waitForFinished(_END_MS):
                worker.kill()
                worker.waitForFinished(_END_MS)
        self._processes.clear()

    # --- what the state machine decides ---

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(job, line):
                    self._start(job, line)
                case Stop(job):
                    if worker := self._processes.get(job):
                        worker.closeWriteChannel()
                case Kill(job):
                    if worker := self._processes.get(job):
                        worker.kill()
        self._publish()

    def _start(self, job_id: str, line: bytes) -> None:
        worker = QProcess(self)
        environment = QProcessEnvironment()
        for name, value in child_process.environment().items():
            environment.insert(name, value)
        worker.setProcessEnvironment(environment)
        worker.setProcessChannelMode(QProcess.ProcessChannelMode.ForwardedErrorChannel)
        worker.readyReadStandardOutput.connect(lambda: self._read(job_id, worker))
        worker.finished.connect(lambda *_: self._exited(job_id, worker))
        worker.errorOccurred.connect(lambda error: self._not_started(job_id, worker, error))
        self._processes[job_id] = worker
        program, *arguments = process.command()
        worker.start(program, arguments)
        worker.write(line)
        self._timer.start()

    def _read(self, job_id: str, worker: QProcess) -> None:
        while worker.canReadLine():
            line = bytes(worker.readLine().data())
            self._do(self._downloads.received(job_id, line))

    def _exited(self, job_id: str, worker: QProcess, reason: str = "") -> None:
        if self._processes.get(job_id) is not worker:
            return
        self._read(job_id, worker)
        del self._processes[job_id]
        worker.deleteLater()
        self._do(self._downloads.exited(job_id, reason))
        if not self._processes:
            self._timer.stop()

    def _not_started(self, job_id: str, worker: QProcess, error: QProcess.ProcessError) -> None:
        if error is QProcess.ProcessError.FailedToStart:
            said = worker.errorString()
            self._exited(job_id, worker, f"The download's process cannot be started: {said}.")

    def _publish(self) -> None:
        if self._downloads.jobs == self._shown:
            return
        self._shown = self._downloads.jobs
        self.changed.emit()
        for job in self._shown:
            if job.state is State.READY and job.id not in self._told:
                self._told.add(job.id)
                self.ready.emit(job)
