"""`headrace download`: fetches a model without a window. Run again, it goes on."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from app.core import units
from app.core.downloads import layout
from app.core.downloads.process import Worker
from app.core.downloads.records import Fault, Job, Kept, Request, State
from app.core.downloads.supervisor import Action, Downloads, Kill, Start, Stop

EXIT_ERROR, EXIT_INTERRUPTED = 1, 130

_DESCRIPTION = """\
Fetches a model from the hub and checks every byte of it. Run again after any end, it goes on where
it was. The last line on stdout is the path to load."""
_EPILOG = """\
HF_ENDPOINT names a mirror, HF_TOKEN a token for models that want one, HTTPS_PROXY a proxy and
SSL_CERT_FILE certificates to trust.

Example: headrace download Qwen/Qwen3-30B-A3B-FP8
         headrace download unsloth/gpt-oss-20b-GGUF --files '*Q4_K_M*' --to /mnt/models
"""
_PAUSE_S = 0.5
_LINE_S = 10.0
"""Where nobody watches a terminal, a line so often."""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 failed, 2 usage, 130 Ctrl-C."""
    options = parser().parse_args(argv)
    try:
        if options.to is not None:
            options.to.mkdir(parents=True, exist_ok=True)
        return _Run(_request(options)).run()
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR


def parser() -> argparse.ArgumentParser:
    own = argparse.ArgumentParser(
        prog="headrace download",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    own.add_argument("repo", metavar="REPO", help="organisation/name on the hub")
    own.add_argument(
        "--files",
        metavar="PATTERN",
        action="append",
        default=[],
        help="only files that fit, such as '*Q4_K_M*'; may be given several times "
        "(default: what it takes to run the model)",
    )
    own.add_argument(
        "--revision", default="main", metavar="NAME", help="branch, tag or commit (default: main)"
    )
    own.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="folder for models, in the layout of the hub's cache (default: that cache, "
        f"{layout.hub_cache()})",
    )
    return own


def _request(options: argparse.Namespace) -> Request:
    return Request(
        repo=options.repo,
        revision=options.revision,
        files=tuple(options.files),
        root=str(options.to.absolute()) if options.to is not None else "",
    )


class _Nothing:
    """The command's own list of downloads: what is on disk is enough to go on."""

    def load(self) -> list[Kept]:
        return []

    def save(self, jobs: list[Kept]) -> None:
        pass


class _Run:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._downloads = Downloads(time.monotonic, _Nothing())
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._worker: Worker | None = None
        self._screen = _Screen()

    def run(self) -> int:
        self._act(self._downloads.add(self._request))
        interrupted = False
        while True:
            try:
                if self._step():
                    break
            except KeyboardInterrupt:
                if interrupted:
                    self._act([Kill(self._request.id)])
                interrupted = True
                self._act(self._downloads.pause(self._request.id))
        return self._ended(self._job())

    def _job(self) -> Job:
        job = self._downloads.job(self._request.id)
        assert job is not None
        return job

    def _step(self) -> bool:
        """Whether the worker has ended."""
        try:
            line = self._lines.get(timeout=_PAUSE_S)
        except queue.Empty:
            self._act(self._downloads.tick())
        else:
            if not line:
                status = self._worker.wait() if self._worker is not None else 0
                reason = f"The download's process ended with {status}." if status else ""
                self._downloads.exited(self._request.id, reason)
                return True
            self._act(self._downloads.received(self._request.id, line))
        self._screen.show(_told(self._job()))
        return False

    def _act(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                self._worker = Worker(action.line)
                threading.Thread(target=self._read, args=(self._worker,), daemon=True).start()
            elif self._worker is not None:
                self._worker.stop() if isinstance(action, Stop) else self._worker.kill()

    def _read(self, worker: Worker) -> None:
        while line := worker.line():
            self._lines.put(line)
        self._lines.put(b"")

    def _ended(self, job: Job) -> int:
        self._screen.end()
        if job.state is State.READY:
            print(job.path)
            return 0
        if job.state is State.PAUSED:
            print("Stopped. The same command goes on where it was.", file=sys.stderr)
            return EXIT_INTERRUPTED
        fault = job.fault or Fault(code="worker_died", message="The download ended.")
        print(f"error: {fault.message}", file=sys.stderr)
        for choice in fault.choices:
            print(f"  --files '{choice.name}'  {units.size(choice.size)}", file=sys.stderr)
        if fault.hint and not fault.choices:
            print(f"hint: {fault.hint}", file=sys.stderr)
        return EXIT_ERROR


def _told(job: Job) -> str:
    """One line on how far it is."""
    so_far = f"{units.percent(job.share)}  {units.size(job.done)} of {units.size(job.total)}"
    if job.state is State.STARTING:
        return f"Asking for {job.request.repo}"
    if job.state is State.CHECKING:
        return f"Checking what is there: {so_far}"
    if job.state is State.WAITING:
        return f"{so_far}  waiting: {job.reason}"
    left = f"  {units.uptime(job.left_s)} left" if job.left_s is not None else ""
    return f"{so_far}  {units.rate(job.rate)}{left}"


class _Screen:
    """A line on stderr that is written over; where that is no terminal, a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._width = 0
        self._written = 0.0

    def show(self, text: str) -> None:
        now = time.monotonic()
        if self._terminal:
            print(f"\r{text:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif not self._written or now - self._written >= _LINE_S:
            self._written = now
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal and self._width:
            print(file=sys.stderr)
