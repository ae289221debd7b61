"""The runtime process: `python -m engine.runtime.process`, started and watched by the server.

One thread owns the model; it takes commands between steps. Frames of engine.messages come in on
stdin and leave on stdout, the log is on stderr. The process ends when stdin closes.
"""

from __future__ import annotations

import faulthandler
import logging
import queue
import signal
import sys
import time
from typing import TYPE_CHECKING

import msgspec

from engine.child_process import claim_pipes, die_with_parent
from engine.errors import DeviceFault, ErrorRecord, HeadraceError, IntegrityError
from engine.messages import (
    AnyCommand,
    AnyEvent,
    Cancel,
    Configure,
    Fatal,
    Progress,
    ReportResidency,
    Shutdown,
    StatsReport,
    StopAt,
    Submit,
    UseVocabulary,
    unpack_commands,
)
from engine.runtime.openmp import wait_without_spinning
from engine.runtime.pipes import FrameReader, FrameWriter

if TYPE_CHECKING:
    from engine.runtime.engine import Engine

logger = logging.getLogger(__name__)

BUSY_STATS_SECONDS = 0.25
IDLE_STATS_SECONDS = 1.0
PROGRESS_SECONDS = 0.1


class ProtocolError(HeadraceError):
    """The server sent something that this runtime does not understand."""

    code = "protocol"


class PipeClosed(Exception):
    """The server is gone."""


class ProgressReporter:
    """Sends a phase's first and last record, and few between."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._phase = ""
        self._sent = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        new_phase, complete = progress.phase != self._phase, progress.done >= progress.total
        if new_phase or complete or now - self._sent >= PROGRESS_SECONDS:
            self._phase, self._sent = progress.phase, now
            self._writer.send([progress])


class RuntimeProcess:
    """The engine thread's loop."""

    def __init__(self, reader: FrameReader, writer: FrameWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._stats_sent = 0.0
        self._stopping = False

    def run(self) -> None:
        """Load, then serve until Shutdown. Raises PipeClosed, or what ends the process."""
        engine = self._load()
        self._writer.send([engine.ready])
        while True:
            self._take_commands(engine)
            if self._stopping:
                return
            if engine.has_work:
                self._writer.send(engine.step(before_forward=self._writer.send))
            self._report(engine)

    def _load(self) -> Engine:
        frame = self._reader.frames.get()
        if frame is None:
            raise PipeClosed
        commands = _unpack(frame)
        if len(commands) != 1 or not isinstance(commands[0], Configure):
            raise ProtocolError(f"The first frame holds {commands!r}, not one Configure.")
        report = ProgressReporter(self._writer)
        report(Progress(phase="starting"))
        # Not at the top: torch takes a second to import, and by now the reader watches the pipe.
        from engine.runtime.engine import Engine

        return Engine.load(commands[0].options, report)

    def _take_commands(self, engine: Engine) -> None:
        """Obey every command that waits; with nothing to compute, wait until stats are due."""
        patience = 0.0 if engine.has_work else self._stats_due(engine)
        while not self._stopping:
            try:
                if patience > 0:
                    frame = self._reader.frames.get(timeout=patience)
                else:
                    frame = self._reader.frames.get_nowait()
            except queue.Empty:
                return
            if frame is None:
                raise PipeClosed
            for command in _unpack(frame):
                self._obey(engine, command)
            patience = 0.0

    def _obey(self, engine: Engine, command: AnyCommand) -> None:
        match command:
            case UseVocabulary():
                engine.use_vocabulary(command)
            case Submit():
                engine.submit(command)
            case Cancel():
                engine.cancel(command.request)
            case StopAt():
                engine.stop_at(command.request, command.keep)
            case ReportResidency():
                self._writer.send([engine.residency()])
            case Shutdown():
                self._stopping = True
            case Configure():
                raise ProtocolError("Configure came a second time.")

    def _stats_due(self, engine: Engine) -> float:
        interval = BUSY_STATS_SECONDS if engine.has_work else IDLE_STATS_SECONDS
        return max(0.0, self._stats_sent + interval - time.monotonic())

    def _report(self, engine: Engine) -> None:
        if self._stats_due(engine) <= 0:
            self._stats_sent = time.monotonic()
            self._writer.send([StatsReport(stats=engine.stats())])


def _unpack(frame: bytes) -> list[AnyCommand]:
    try:
        return unpack_commands(frame)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"A frame of {len(frame)} bytes cannot be read: {error}") from error


def _record(error: Exception) -> ErrorRecord:
    if "torch" in sys.modules:
        from engine.runtime import faults

        # Between steps too, and while a model loads, a call may tell of an earlier kernel's fault.
        if faults.is_device_fault(error):
            error = faults.device_fault(error)
    if isinstance(error, HeadraceError):
        return error.record()
    return ErrorRecord(
        code="internal_error",
        message=f"The runtime ended with {type(error).__name__}: {error}",
        hint="The log has the traceback.",
    )


def _serve(reader: FrameReader, writer: FrameWriter) -> int:
    """Exit status: 0 for an end that was asked for, 1 after Fatal."""
    try:
        RuntimeProcess(reader, writer).run()
    except (PipeClosed, BrokenPipeError):
        logger.info("the server closed the pipe")
    except Exception as error:
        if isinstance(error, HeadraceError) and not isinstance(error, DeviceFault | IntegrityError):
            # Told to whoever waits: by the server, from the record below.
            logger.info("the runtime ends: %s", error.message)
        else:
            logger.error("the runtime ends", exc_info=error)
        fatal: list[AnyEvent] = [Fatal(error=_record(error))]
        try:
            writer.send(fatal)
        except OSError:
            logger.error("the server is gone and cannot be told")
        return 1
    return 0


def main() -> int:
    wait_without_spinning()
    read_fd, write_fd = claim_pipes()
    logging.basicConfig(
        # The server reads the level, and writes the time before it.
        stream=sys.stderr,
        level=logging.INFO,
        format="%(levelname)s %(message)s",
    )
    faulthandler.enable()
    # Ctrl-C goes to the whole terminal group; the server decides what it means and closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    reader = FrameReader(read_fd)
    reader.start()
    return _serve(reader, FrameWriter(write_fd))


if __name__ == "__main__":
    sys.exit(main())
