"""The child process that does one task: `python -m app.core.downloads.worker`.

A task comes as one JSON line on stdin, events leave as JSON lines on what was stdout. The line
"stop", or the end of stdin, asks it to stop. It may be killed at any moment: what is on disk is
right, or found out at the next start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import BinaryIO, TypeVar

import msgspec

from app.core.downloads import layout, store
from app.core.downloads.answers import Transient
from app.core.downloads.durable import disk_faults
from app.core.downloads.errors import DownloadError
from app.core.downloads.fetch import Fetching, Retries, Stop, Stopping, free_bytes
from app.core.downloads.hub import Hub
from app.core.downloads.meter import Meter
from app.core.downloads.records import (
    Discard,
    Discarded,
    Event,
    Failed,
    Fetch,
    LookUp,
    Pace,
    Plan,
    Planned,
    Ready,
    Request,
    Stopped,
    Task,
    Waiting,
)
from app.core.downloads.token import read_token
from engine import child_process

log = logging.getLogger("headrace.download")

REPORT_S = 0.25
_MAX_TEXT = 4 << 20
T = TypeVar("T")


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    # It logs the addresses that the hub redirects to, which hold signatures.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    read_fd, write_fd = child_process.claim_pipes()
    commands = os.fdopen(read_fd, "rb")
    worker = Worker(os.fdopen(write_fd, "wb"))
    task: Task = msgspec.json.decode(commands.readline(), type=Task)
    threading.Thread(target=worker.listen, args=(commands,), daemon=True).start()
    worker.do(task)
    # Streams may still hang in reads. Whatever they have written is safe to leave.
    os._exit(0)


class Worker:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._out_lock = threading.Lock()
        self._stop = Stopping()

    def listen(self, commands: BinaryIO) -> None:
        for line in commands:
            if line.strip() == b"stop":
                break
        self._stop.set()

    def do(self, task: Task) -> None:
        """Do the task and tell how it ended."""
        try:
            self.tell(self._result(task))
        except Stop:
            self.tell(Stopped())
        except DownloadError as error:
            self.tell(Failed(fault=error.fault))

    def tell(self, event: Event) -> None:
        with self._out_lock:
            try:
                self._out.write(msgspec.json.encode(event) + b"\n")
                self._out.flush()
            except BrokenPipeError:
                self._stop.set()  # nobody listens any more

    def _result(self, task: Task) -> Event:
        if isinstance(task, LookUp):
            return self._look_up(task)
        repository = layout.Repository.of(task.request)
        if not task.request.root:
            with disk_faults(repository.root):
                repository.root.mkdir(parents=True, exist_ok=True)
        with disk_faults(repository.root), store.claimed(repository):
            if isinstance(task, Discard):
                return _discard(repository, task.request)
            return self._fetch(repository, task)

    def _look_up(self, task: LookUp) -> Event:
        with contextlib.closing(self._hub(task)) as hub:
            plan = self._ask(hub, task.request, task.pace)
            texts = {}
            for file in plan.files:
                if file.name in task.read and file.size <= _MAX_TEXT:
                    texts[file.name] = self._retry(task.pace, partial(hub.text, plan, file))
        found = store.Store(layout.Repository.of(task.request), plan)
        there = found.repository.root.is_dir()
        return Planned(
            plan=plan,
            present=found.present() if there else 0,
            free=free_bytes(found) if there else 0,
            texts=texts,
        )

    def _fetch(self, repository: layout.Repository, task: Fetch) -> Event:
        plan = store.read_plan(repository, task.request)
        if plan is None and task.begun and not any(repository.own.glob("*.ready")):
            raise DownloadError(
                "folder_unavailable",
                f"Nothing is left in {repository.root} of what was fetched of {task.request.repo}.",
                hint="Connect its drive and resume. If it was deleted, cancel this download and "
                "begin it anew.",
            )
        with contextlib.closing(self._hub(task)) as hub:
            if plan is None:
                plan = self._ask(hub, task.request, task.pace)
            found = store.Store(repository, plan)
            found.begin()
            self.tell(Planned(plan=plan, present=found.present(), free=free_bytes(found)))
            meter = Meter(plan)
            fetching = Fetching(found, hub, task.pace, meter, self._stop)
            with _Reporter(self, meter):
                parts = fetching.check()
                fetching.require_room(parts)
                meter.checking = False
                fetching.run(parts)
        return Ready(path=str(found.make_ready()))

    def _hub(self, task: Fetch | LookUp) -> Hub:
        try:
            token = read_token()
        except OSError as error:
            raise DownloadError(
                "unauthorised", f"The hub's token cannot be read: {error}."
            ) from error
        hub = Hub(task.network, token, task.pace.stall_s)
        if hub.token_withheld:
            log.warning("no token is sent to %s: the connection is not encrypted", hub.host)
        return hub

    def _ask(self, hub: Hub, request: Request, pace: Pace) -> Plan:
        return self._retry(pace, lambda: hub.look_up(request))

    def _retry(self, pace: Pace, ask: Callable[[], T]) -> T:
        retries = Retries(pace)
        while True:
            self._stop.check()
            try:
                return ask()
            except Transient as fault:
                pause = retries.pause_after(fault)
                self.tell(Waiting(reason=fault.reason, seconds=pause))
                self._stop.sleep(pause)


class _Reporter:
    """Tells how far it is a few times a second, while it is entered."""

    def __init__(self, worker: Worker, meter: Meter) -> None:
        self._worker, self._meter = worker, meter
        self._ended = threading.Event()
        self._last: Event | None = None
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._tell()

    def _run(self) -> None:
        while not self._ended.wait(REPORT_S):
            self._tell()

    def _tell(self) -> None:
        now = self._meter.report()
        if isinstance(now, Waiting):
            # Told once a wait, not again while the time that was told runs down.
            until = time.monotonic() + now.seconds
            if abs(until - self._until) < 2 * REPORT_S:
                return
            self._until = until
        elif now == self._last:
            return
        self._worker.tell(now)
        self._last = now


def _discard(repository: layout.Repository, request: Request) -> Event:
    plan = store.read_plan(repository, request)
    freed = store.Store(repository, plan).discard() if plan is not None else 0
    return Discarded(freed=freed)


if __name__ == "__main__":
    sys.exit(main())
