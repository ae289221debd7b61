"""When downloads run, wait and end: pure decisions, no process, no clock, no network.

Its owner starts and stops workers as the actions say, and hands in every line of their output and
their end. Qt's owner has a QProcess a job; `process.py` has a plain subprocess. Times are seconds
of any clock that only goes forward. One download runs at a time: two would share one line.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from app.core.downloads.process import encode
from app.core.downloads.records import (
    Discard,
    Discarded,
    Event,
    Failed,
    Fault,
    Fetch,
    Job,
    Kept,
    Network,
    Planned,
    Progress,
    Ready,
    Request,
    State,
    Stopped,
    Waiting,
)

log = logging.getLogger(__name__)

RATE_S = 8.0
"""The rate is that of so many last seconds."""
STOP_S = 10.0
"""A worker that was asked to stop may take so long."""

_ACTIVE = frozenset({State.STARTING, State.CHECKING, State.RUNNING, State.WAITING})
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


@dataclass(frozen=True)
class Start:
    """Start a worker (`process.command()`), write `line` to its stdin and leave stdin open."""

    job: str
    line: bytes


@dataclass(frozen=True)
class Stop:
    """Close the stdin of the job's worker; it ends by itself."""

    job: str


@dataclass(frozen=True)
class Kill:
    """End the job's worker at once. Nothing is lost by it."""

    job: str


Action = Start | Stop | Kill


class Store(Protocol):
    """Where the list of downloads survives the app: `job_file.JobFile`."""

    def load(self) -> list[Kept]: ...

    def save(self, jobs: list[Kept]) -> None: ...


class Downloads:
    """All downloads. Every method that changes something returns what is to be done, in order."""

    def __init__(
        self,
        clock: Callable[[], float],
        store: Store,
        network: Network = Network(),  # noqa: B008  (frozen)
    ) -> None:
        """Loads the stored downloads; `begin` starts those that were not paused."""
        self._clock = clock
        self._store = store
        self._network = network
        self._jobs: dict[str, Job] = {}
        self._workers: dict[str, type[Fetch] | type[Discard]] = {}
        self._deadlines: dict[str, float] = {}
        self._samples: dict[str, deque[tuple[float, int]]] = {}
        self._begun: set[str] = set()
        for kept in store.load():
            state = State.PAUSED if kept.paused else State.QUEUED
            self._jobs[kept.request.id] = Job(request=kept.request, state=state)
            if kept.begun:
                self._begun.add(kept.request.id)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """In the order in which they were added."""
        return tuple(self._jobs.values())

    def job(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    # --- what the person wants ---

    def begin(self) -> list[Action]:
        """Go on with what ran when the app ended."""
        return self._start_next()

    def set_network(self, network: Network) -> None:
        """For workers that start from now on."""
        self._network = network

    def add(self, request: Request) -> list[Action]:
        """Fetch this. A request that is there already is resumed."""
        if request.id in self._jobs:
            return self.resume(request.id)
        self._jobs[request.id] = Job(request=request)
        self._save()
        return self._start_next()

    def pause(self, job_id: str) -> list[Action]:
        job = self._jobs.get(job_id)
        if job is None or job.state not in _ACTIVE | {State.QUEUED}:
            return []
        if job_id not in self._workers:
            self._change(job_id, state=State.PAUSED)
            self._save()
            return []
        self._change(job_id, state=State.PAUSING, rate=0.0, left_s=None, reason="", retry_at=None)
        self._save()
        return self._stop(job_id)

    def resume(self, job_id: str) -> list[Action]:
        """Queue a paused or failed download again, or a ready one, should its files be gone."""
        job = self._jobs.get(job_id)
        if job is None or job.state not in {
            State.PAUSING,
            State.PAUSED,
            State.FAILED,
            State.READY,
        }:
            return []
        # A worker that is still ending is waited for: the model's folder has one owner.
        self._change(job_id, state=State.QUEUED, fault=None)
        self._save()
        return self._start_next()

    def cancel(self, job_id: str) -> list[Action]:
        """End the download and delete what it has fetched. A ready one only leaves the list."""
        job = self._jobs.get(job_id)
        if job is None or job.state is State.CANCELLING:
            return []
        if job.state is State.READY and job_id not in self._workers:
            self._forget(job_id)
            return self._start_next()
        self._change(job_id, state=State.CANCELLING, rate=0.0, left_s=None)
        self._save()
        return self._stop(job_id) if job_id in self._workers else self._discard(job_id)

    def forget(self, job_id: str) -> list[Action]:
        """Drop a download that does not run from the list. What it has fetched stays on disk, as
        where its drive is gone for good."""
        if job_id in self._jobs and job_id not in self._workers:
            self._forget(job_id)
        return self._start_next()

    def shut_down(self) -> list[Action]:
        """The app ends: every worker is asked to stop. What ran goes on at the next `begin`."""
        return [action for job_id in self._workers for action in self._stop(job_id)]

    # --- what happened ---

    def received(self, job_id: str, line: bytes) -> list[Action]:
        """A line of the worker's stdout."""
        if job_id not in self._jobs or job_id not in self._workers:
            return []
        try:
            event = _events.decode(line)
        except msgspec.DecodeError as error:
            log.warning("download %s: a line that is no event (%s)", job_id, error)
            return []
        job = self._jobs[job_id]
        if self._workers[job_id] is Discard:
            self._discarding(job_id, event)
        elif job.state in _ACTIVE:
            self._take(job_id, event)
        elif isinstance(event, Ready) and job.state is not State.CANCELLING:
            self._ready(job_id, event)  # it was quicker than the pause
        return []

    def exited(self, job_id: str, reason: str = "") -> list[Action]:
        """The worker has ended or could not be started; `reason` is a sentence for the person."""
        kind = self._workers.pop(job_id, None)
        self._deadlines.pop(job_id, None)
        job = self._jobs.get(job_id)
        if job is None or kind is None:
            return self._start_next()
        if kind is Discard:
            if job.state is State.CANCELLING:
                message = reason or "What was fetched could not be deleted."
                self._fail(job_id, Fault(code="worker_died", message=message))
        elif job.state is State.CANCELLING:
            return self._discard(job_id)
        elif job.state is State.PAUSING:
            self._change(job_id, state=State.PAUSED)
        elif job.state in _ACTIVE:
            message = reason or "The download's process ended."
            hint = "Resume: what was fetched is kept."
            self._fail(job_id, Fault(code="worker_died", message=message, hint=hint))
        return self._start_next()

    def tick(self) -> list[Action]:
        """Call this a few times a second."""
        now = self._clock()
        actions: list[Action] = []
        for job_id, deadline in self._deadlines.items():
            if now >= deadline:
                self._deadlines[job_id] = now + STOP_S  # again, should it not work
                actions.append(Kill(job_id))
        for job_id, job in self._jobs.items():
            if job.state is State.RUNNING:
                self._measure(job_id, job.done)
        return actions

    # --- inside ---

    def _take(self, job_id: str, event: Event) -> None:
        match event:
            case Planned():
                self._change(job_id, plan=event.plan, total=event.plan.total)
                if job_id not in self._begun:
                    self._begun.add(job_id)
                    self._save()
            case Progress():
                self._progress(job_id, event)
            case Waiting():
                self._change(
                    job_id,
                    state=State.WAITING,
                    reason=event.reason,
                    retry_at=self._clock() + event.seconds,
                    rate=0.0,
                    left_s=None,
                )
            case Ready():
                self._ready(job_id, event)
            case Failed():
                self._fail(job_id, event.fault)
            case Stopped():
                self._change(job_id, state=State.PAUSED)
            case _:
                pass

    def _discarding(self, job_id: str, event: Event) -> None:
        if isinstance(event, Discarded):
            self._forget(job_id)
        elif isinstance(event, Failed):
            self._fail(job_id, event.fault)

    def _progress(self, job_id: str, event: Progress) -> None:
        job = self._jobs[job_id]
        files = {**job.files, **{file.name: file for file in event.files}}
        state = State.CHECKING if event.checking else State.RUNNING
        if state is not job.state:
            self._samples.pop(job_id, None)  # what is read from disk says nothing of the line
        self._change(
            job_id,
            state=state,
            done=event.done,
            total=event.total,
            files=files,
            reason="",
            retry_at=None,
        )
        if state is State.RUNNING:
            self._measure(job_id, event.done)

    def _measure(self, job_id: str, done: int) -> None:
        now = self._clock()
        samples = self._samples.setdefault(job_id, deque())
        samples.append((now, done))
        while len(samples) > 2 and samples[1][0] <= now - RATE_S:
            samples.popleft()
        began, first = samples[0]
        rate = max(0.0, (done - first) / (now - began)) if now > began else 0.0
        left = self._jobs[job_id].total - done
        self._change(job_id, rate=rate, left_s=left / rate if rate else None)

    def _ready(self, job_id: str, event: Ready) -> None:
        total = self._jobs[job_id].total
        self._begun.discard(job_id)  # should it be deleted, it may be begun anew
        self._change(job_id, state=State.READY, path=event.path, done=total, rate=0.0, left_s=None)
        self._save()

    def _fail(self, job_id: str, fault: Fault) -> None:
        self._change(
            job_id, state=State.FAILED, fault=fault, rate=0.0, left_s=None, reason="", retry_at=None
        )

    def _change(self, job_id: str, **fields: Any) -> None:
        self._jobs[job_id] = replace(self._jobs[job_id], **fields)

    def _start_next(self) -> list[Action]:
        if self._workers:
            return []
        for job in self._jobs.values():
            if job.state is State.QUEUED:
                self._change(job.id, state=State.STARTING)
                begun = job.id in self._begun
                task = Fetch(request=job.request, network=self._network, begun=begun)
                return self._start(job.id, task)
        return []

    def _discard(self, job_id: str) -> list[Action]:
        return self._start(job_id, Discard(request=self._jobs[job_id].request))

    def _start(self, job_id: str, task: Fetch | Discard) -> list[Action]:
        self._workers[job_id] = type(task)
        self._samples.pop(job_id, None)
        return [Start(job_id, encode(task))]

    def _stop(self, job_id: str) -> list[Action]:
        self._deadlines.setdefault(job_id, self._clock() + STOP_S)
        return [Stop(job_id)]

    def _forget(self, job_id: str) -> None:
        del self._jobs[job_id]
        self._begun.discard(job_id)
        self._samples.pop(job_id, None)
        self._save()

    def _save(self) -> None:
        unfinished = [job for job in self._jobs.values() if job.state is not State.READY]
        paused = {State.PAUSING, State.PAUSED, State.CANCELLING}
        self._store.save(
            [
                Kept(request=job.request, paused=job.state in paused, begun=job.id in self._begun)
                for job in unfinished
            ]
        )
