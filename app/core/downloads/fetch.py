"""Fetching a plan: several files at once, each until its bytes are right or a fault ends it."""

from __future__ import annotations

import shutil
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from app.core import units
from app.core.downloads import durable
from app.core.downloads.answers import Transient, WrongBytes
from app.core.downloads.errors import DownloadError
from app.core.downloads.hub import Hub
from app.core.downloads.meter import Meter
from app.core.downloads.part import Part, wrong_bytes
from app.core.downloads.records import Pace, RemoteFile
from app.core.downloads.store import Store

_MAX_PAUSE_S = 60.0
_LOOK_S = 0.2
_END_S = 1.0


class Stop(Exception):
    """The task was asked to stop."""


class Stopping:
    """Set once by whoever wants the task to end; looked at by every loop of it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def check(self) -> None:
        """Raises Stop."""
        if self._event.is_set():
            raise Stop

    def sleep(self, seconds: float) -> None:
        """Raises Stop, early if need be."""
        if self._event.wait(seconds):
            raise Stop


class Retries:
    """Pauses between tries of one thing, which double until something comes of it."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failed = 0

    def succeeded(self) -> None:
        self._failed = 0

    def pause_after(self, fault: Transient) -> float:
        """Raises DownloadError when it has been tried often enough."""
        self._failed += 1
        if self._failed >= self._pace.tries:
            raise DownloadError(
                "network",
                f"It was tried {units.times(self._failed)}: {fault.reason}.",
                hint="Resume when the connection is back: what was fetched is kept.",
            ) from fault
        if fault.pause_s is not None:
            return fault.pause_s
        return min(_MAX_PAUSE_S, self._pace.retry_s * 2.0 ** (self._failed - 1))


class Fetching:
    """One run: check what is there, make sure that there is room, fetch the rest."""

    def __init__(self, store: Store, hub: Hub, pace: Pace, meter: Meter, stop: Stopping) -> None:
        self._store, self._hub, self._pace = store, hub, pace
        self._meter, self._stop = meter, stop
        self._failed = threading.Event()

    def check(self) -> list[Part]:
        """What has to be fetched, each with what is there of it. Raises DownloadError and Stop."""
        missing = []
        for file in {file.digest: file for file in self._store.plan.files}.values():

            def read(count: int, file: RemoteFile = file) -> None:
                self._stop.check()
                self._meter.checked(file, count)

            if not self._store.find(file, read):
                part = self._store.part(file)
                part.recover(read)
                missing.append(part)
        return missing

    def require_room(self, parts: list[Part]) -> None:
        """Raises DownloadError where the disk cannot take what is missing."""
        root = self._store.repository.root
        needed = sum(part.file.size - part.size for part in parts)
        free = free_bytes(self._store)
        if parts and free - needed < self._pace.keep_free:
            raise DownloadError(
                "disk_full",
                f"{units.size(needed)} are still to come, and {root} has {units.size(free)} free, "
                f"of which {units.size(self._pace.keep_free)} stay free.",
                hint="Make room, or choose a folder on another disk.",
            )

    def run(self, parts: list[Part]) -> None:
        """Fetch them. Raises the first DownloadError of any, or Stop; the others then stop too."""
        # Small ones first: a fault of access or a wrong mirror shows before hours have gone by.
        order = sorted(parts, key=lambda part: (part.file.size > 1 << 20, part.file.name))
        pool = ThreadPoolExecutor(self._pace.streams, thread_name_prefix="stream")
        streams = [pool.submit(self._fetch, part) for part in order]
        try:
            self._watch(streams)
        finally:
            self._failed.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # A stream may hang in a read until that is given up as stalled: it writes no more, and
            # nobody waits for it. One that is writing ends well within this.
            wait(streams, timeout=_END_S)

    def _watch(self, streams: list[Future[None]]) -> None:
        left = set(streams)
        while left:
            done, left = wait(left, timeout=_LOOK_S, return_when=FIRST_EXCEPTION)
            for stream in done:
                stream.result()
            self._stop.check()
            # Room was enough at the start, to the byte; so that what the file system itself needs
            # does not end a download in its last seconds, half of the reserve may go.
            if left and free_bytes(self._store) < self._pace.keep_free // 2:
                raise DownloadError(
                    "disk_full",
                    f"The disk of {self._store.repository.root} is nearly full.",
                    hint="Make room and resume: what was fetched is kept.",
                )

    def _fetch(self, part: Part) -> None:
        try:
            with self._meter.streaming():
                self._fetch_all(part)
            self._store.finish(part)
        finally:
            part.close()

    def _fetch_all(self, part: Part) -> None:
        retries = Retries(self._pace)
        anew = False
        while not part.complete or not part.right():
            before = part.size
            try:
                if part.complete:
                    raise WrongBytes("the checksum does not fit")
                self._stream(part)
                if not part.complete:
                    raise Transient("the connection ended early")
            except WrongBytes:
                if anew:
                    part.discard()
                    raise wrong_bytes(part.file) from None
                anew = True
                part.discard()
                self._meter.restarted(part.file)
            except Transient as fault:
                if part.size > before:
                    retries.succeeded()
                pause = retries.pause_after(fault)
                with self._meter.waiting(part.file, fault.reason, pause):
                    self._sleep(pause)

    def _stream(self, part: Part) -> None:
        """Raises DownloadError, Transient, WrongBytes and Stop."""
        plan = self._store.plan
        if part.file.size == 0:
            return
        with self._hub.body(plan, part.file, part.size) as pieces:
            for piece in pieces:
                if self._failed.is_set():
                    raise Stop
                self._stop.check()
                part.append(piece)
                self._meter.fetched(part.file, len(piece))

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._failed.is_set():
                raise Stop
            self._stop.sleep(min(left, _LOOK_S))


def free_bytes(store: Store) -> int:
    root = store.repository.root
    with durable.disk_faults(root):
        return shutil.disk_usage(root).free
