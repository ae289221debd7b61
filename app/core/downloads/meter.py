"""How far a fetch is: bytes of each file and of all, and which streams wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from app.core.downloads.records import FileProgress, Plan, Progress, RemoteFile, Waiting


class Meter:
    """Streams tell it what they do; the worker's main thread reads it. Safe for threads."""

    def __init__(self, plan: Plan) -> None:
        self._lock = threading.Lock()
        self._total = plan.total
        self._names: dict[str, list[str]] = {}
        for file in plan.files:
            self._names.setdefault(file.digest, []).append(file.name)
        self._sizes = {file.digest: file.size for file in plan.files}
        self._done = dict.fromkeys(self._sizes, 0)
        self._fetched = 0
        self._changed: set[str] = set(self._sizes)
        self._busy = 0
        self._waits: dict[str, Waiting] = {}
        self._until: dict[str, float] = {}
        self.checking = True

    def checked(self, file: RemoteFile, count: int) -> None:
        """Bytes that lay on disk count; a negative number takes back what did not hold."""
        with self._lock:
            self._done[file.digest] += count
            self._changed.add(file.digest)

    def fetched(self, file: RemoteFile, count: int) -> None:
        """Bytes from the hub are on disk."""
        with self._lock:
            self._done[file.digest] += count
            self._fetched += count
            self._changed.add(file.digest)

    def restarted(self, file: RemoteFile) -> None:
        with self._lock:
            self._done[file.digest] = 0
            self._changed.add(file.digest)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        with self._lock:
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    @contextmanager
    def waiting(self, file: RemoteFile, reason: str, seconds: float) -> Iterator[None]:
        with self._lock:
            self._waits[file.digest] = Waiting(reason=reason, seconds=seconds)
            self._until[file.digest] = time.monotonic() + seconds
        try:
            yield
        finally:
            with self._lock:
                del self._waits[file.digest], self._until[file.digest]

    def report(self) -> Progress | Waiting:
        """What there is to say: that all streams wait, or how far they are."""
        with self._lock:
            if self._waits and len(self._waits) == self._busy:
                digest = min(self._until, key=lambda key: self._until[key])
                left = max(0.0, self._until[digest] - time.monotonic())
                return Waiting(reason=self._waits[digest].reason, seconds=left)
            files = tuple(
                FileProgress(name=name, size=self._sizes[digest], done=self._done[digest])
                for digest in sorted(self._changed)
                for name in self._names[digest]
            )
            self._changed.clear()
            return Progress(
                done=sum(self._done.values()),
                total=self._total,
                fetched=self._fetched,
                checking=self.checking,
                files=files,
            )
