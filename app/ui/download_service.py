"""The downloads with hands: a process for each that runs, and its output to the state machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from app.core.downloads import process
from app.core.downloads.job_file import JobFile
from app.core.downloads.records import Job, Network, Request, State
from app.core.downloads.supervisor import Action, Downloads, Kill, Start, Stop
from app.ui.child import Child

TICK_MS = 250


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
        self._workers: dict[str, Child] = {}
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
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    # --- what the state machine decides ---

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(job, line):
                    self._start(job, line)
                case Stop(job):
                    if worker := self._workers.get(job):
                        worker.stop()
                case Kill(job):
                    if worker := self._workers.get(job):
                        worker.kill()
        self._publish()

    def _start(self, job_id: str, line: bytes) -> None:
        worker = Child(
            process.command(),
            lambda line: self._do(self._downloads.received(job_id, line)),
            lambda reason: self._exited(job_id, reason),
            self,
        )
        worker.process.setProcessChannelMode(QProcess.ProcessChannelMode.ForwardedErrorChannel)
        self._workers[job_id] = worker
        worker.start(line)
        self._timer.start()

    def _exited(self, job_id: str, reason: str) -> None:
        self._workers.pop(job_id).deleteLater()
        self._do(self._downloads.exited(job_id, reason))
        if not self._workers:
            self._timer.stop()

    def _publish(self) -> None:
        if self._downloads.jobs == self._shown:
            return
        self._shown = self._downloads.jobs
        self.changed.emit()
        for job in self._shown:
            if job.state is State.READY and job.id not in self._told:
                self._told.add(job.id)
                self.ready.emit(job)
