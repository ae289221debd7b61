"""The runtime's two pipes: frames in, frames out, and the end of the process when they end.

Nothing heavy is imported here: the reader must run before torch is loaded.
"""

from __future__ import annotations

import logging
import os
import queue
import threading

from engine.messages import HEADER_BYTES, AnyEvent, body_length, pack

logger = logging.getLogger(__name__)

GRACE_SECONDS = 0.5
"""What the engine thread gets to end by itself once the server has closed the pipe."""


class FrameReader(threading.Thread):
    """Moves frames from the pipe into a queue, and does nothing else.

    At the end of the pipe it queues None and, after a grace, ends the process with os._exit: the
    engine thread may be deep in a step or in a load of minutes, which nothing in Python can
    interrupt, and there is nobody left to answer. The operating system takes back what it held.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(name="frames", daemon=True)
        self.frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._fd = fd

    def run(self) -> None:
        try:
            while (body := self._frame()) is not None:
                self.frames.put(body)
        except (OSError, ValueError) as error:
            logger.error("the pipe from the server broke: %s", error)
        self.frames.put(None)
        threading.Event().wait(GRACE_SECONDS)
        os._exit(0)

    def _frame(self) -> bytes | None:
        """The body of the next frame; None at the end of the pipe."""
        header = self._exactly(HEADER_BYTES)
        return None if header is None else self._exactly(body_length(header))

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            part = os.read(self._fd, min(count - len(data), 1 << 20))
            if not part:
                return None
            data += part
        return bytes(data)


class FrameWriter:
    """Writes frames. It blocks while the server does not read: that is the back-pressure."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def send(self, events: list[AnyEvent]) -> None:
        """One frame. Raises OSError when the server is gone."""
        if not events:
            return
        data = memoryview(pack(events))
        while data:
            data = data[os.write(self._fd, data) :]
