"""A download: how far it is, how fast, what went wrong, and the buttons that change that."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QProgressBar, QWidget

from app.core import units
from app.core.downloads.records import Job, State
from app.ui.widgets.basics import button, column, label, row

_PAUSABLE = (State.QUEUED, State.STARTING, State.CHECKING, State.RUNNING, State.WAITING)
_RESUMABLE = (State.PAUSED, State.FAILED)


class DownloadRow(QWidget):
    pause_asked = Signal(str)
    resume_asked = Signal(str)
    cancel_asked = Signal(str)
    choose_asked = Signal(object)
    """The Request that needs a choice, a token or another folder."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        repo = job.request.repo
        self.setAccessibleName(f"Download of {repo}")
        self._state = label("", "muted")
        self.bar = QProgressBar()
        self.bar.setRange(0, 1000)
        self.bar.setTextVisible(False)
        self.bar.setFixedHeight(6)
        self.bar.setAccessibleName(f"Progress of {repo}")
        self._words = label("", "muted", wrap=True)
        self._problem = label("", "fieldProblem", wrap=True)
        self.pause = button("Pause")
        self.resume = button("Resume")
        self.cancel = button("Cancel")
        self.fix = button("")
        self.pause.clicked.connect(lambda: self.pause_asked.emit(self._job.id))
        self.resume.clicked.connect(lambda: self.resume_asked.emit(self._job.id))
        self.cancel.clicked.connect(lambda: self.cancel_asked.emit(self._job.id))
        self.fix.clicked.connect(lambda: self.choose_asked.emit(self._job.request))
        top = row(8)
        top.addWidget(label(repo, "modelName"))
        top.addStretch()
        top.addWidget(self._state)
        left = column(6)
        left.addLayout(top)
        left.addWidget(self.bar)
        left.addWidget(self._words)
        left.addWidget(self._problem)
        body = row(16)
        body.setContentsMargins(0, 8, 0, 8)
        body.addLayout(left, 1)
        buttons = row(8)
        body.addLayout(buttons)
        for each in (self.fix, self.pause, self.resume, self.cancel):
            each.setAccessibleName(f"{each.text()}: {repo}")
            buttons.addWidget(each)
        self.setLayout(body)
        self.show_job(job)

    @property
    def words(self) -> str:
        return self._words.text()

    @property
    def problem(self) -> str:
        return self._problem.text()

    @property
    def state(self) -> str:
        return self._state.text()

    def show_job(self, job: Job) -> None:
        self._job = job
        self._state.setText(_STATES[job.state])
        busy = job.state in (State.STARTING, State.CANCELLING) and not job.total
        self.bar.setRange(0, 0 if busy else 1000)
        self.bar.setValue(round(1000 * job.share))
        self._words.setText(progress_words(job))
        fault = job.fault
        self._problem.setText(f"{fault.message} {fault.hint}".strip() if fault is not None else "")
        self._problem.setVisible(fault is not None)
        self._state.setVisible(fault is None)  # the problem says more, and wants the room
        focused = self.pause.hasFocus() or self.resume.hasFocus()
        self.pause.setVisible(job.state in _PAUSABLE)
        self.resume.setVisible(job.state in _RESUMABLE)
        self.cancel.setEnabled(job.state is not State.CANCELLING)
        fix = _FIXES.get(fault.code, "") if fault is not None else ""
        self.fix.setText(fix)
        self.fix.setAccessibleName(f"{fix}: {job.request.repo}")
        self.fix.setVisible(bool(fix))
        if focused:  # one takes the other's place, for the keyboard too
            (self.pause if job.state in _PAUSABLE else self.resume).setFocus()


def progress_words(job: Job) -> str:
    """`8.20 GB of 22.0 GB (37.3 %)  ·  45.0 MB/s  ·  5 min 7 s left`."""
    if not job.total:
        return ""
    share = units.percent(job.share)
    parts = [f"{units.storage(job.done)} of {units.storage(job.total)} ({share})"]
    if job.state is State.RUNNING and job.rate:
        parts.append(units.rate(job.rate))
    if job.state is State.RUNNING and job.left_s is not None:
        parts.append(f"{units.uptime(job.left_s)} left")
    if job.state is State.WAITING and job.reason:
        parts.append(job.reason)
    return "  ·  ".join(parts)


_STATES = {
    State.QUEUED: "Waits for its turn",
    State.STARTING: "Starting",
    State.CHECKING: "Checking what is there",
    State.RUNNING: "Downloading",
    State.WAITING: "Waits for the network",
    State.PAUSING: "Pausing",
    State.PAUSED: "Paused",
    State.READY: "Ready",
    State.FAILED: "Stopped",
    State.CANCELLING: "Cancelling",
}
_FIXES = {
    "choose_files": "Choose a file…",
    "unauthorised": "Enter a token…",
    "gated": "Enter a token…",
    "disk_full": "Other folder…",
    "folder_unavailable": "Other folder…",
}
"""Faults that the dialog for adding a model can do something about, and what."""
