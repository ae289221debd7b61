"""How long the chat page keeps the event loop while a long answer streams.

    python benchmarks/chat_stream.py [--tokens 10000] [--seconds 20]

A scripted stream of prose, lists, a table and code, in pieces of a token each, goes through the
conversation into the page, off screen. A timer that is always due measures each turn of the event
loop; `busy` is the time that this thread computed in a turn, which other programs do not disturb.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
from PySide6.QtCore import QEventLoop, QTimer
from PySide6.QtWidgets import QApplication

from app.core import settings
from app.core.settings import Settings
from app.ui import window
from app.ui.application import Headrace

PARTS = (
    "The river ran past the **mill** and on, as `rivers` do, and nobody asked it why. ",
    "Some said so; others, who had [seen it](https://example.org), were not so sure.\n\n",
    "1. One thing\n2. Another *thing*, somewhat longer than the first\n3. And a third\n\n",
    "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n",
)
LEAST_S = 0.001
"""Shorter turns are only counted."""
CODE = "def step{0}(x: int) -> int:\n    # the {0}th\n    return x * {0} + len('mill')\n\n\n"


def answer(tokens: int) -> list[str]:
    """Half prose, half one block of code, as pieces of four characters, one a token."""
    prose = "".join(PARTS) * (tokens // 150 + 1)
    code = "".join(CODE.format(at) for at in range(tokens // 36 + 1))
    half = 2 * tokens
    text = f"{prose[:half]}\n\n```python\n{code[:half]}\n```\n"
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-chat-") as home:
        os.environ["HEADRACE_HOME"] = home
        settings.save(Settings(start_engine_at_launch=False))
        return run(answer(arguments.tokens), arguments.seconds)


def run(pieces: list[str], seconds: float) -> int:
    app = QApplication(["Headrace"])
    headrace = Headrace(app)
    headrace.begin(hidden=False)
    headrace.window.open_page(window.CHAT)
    page = headrace.window.chat
    for _ in range(50):
        app.processEvents(QEventLoop.ProcessEventsFlag.AllEvents, 10)
    chat = page.session.conversation
    chat.ask("Go on.")
    page.session.restructured.emit()
    before = psutil.Process().memory_info().rss
    turns: list[float] = []
    at = count = 0
    watchdog = QTimer()
    watchdog.start(0)
    began = time.monotonic()
    while at < len(pieces) or not page.transcript.settled:
        due = min(len(pieces), int(len(pieces) * (time.monotonic() - began) / seconds) + 1)
        cpu = time.thread_time()
        while at < due:
            chat.append(pieces[at])
            at += 1
            page.session.changed.emit()
        app.processEvents(QEventLoop.ProcessEventsFlag.AllEvents)
        count += 1
        busy = time.thread_time() - cpu
        if busy > LEAST_S:
            turns.append(busy)
    after = psutil.Process().memory_info().rss
    chat.finish()
    page.session.changed.emit()
    turns.sort(reverse=True)
    shown = [f"{1000 * turn:.1f}" for turn in turns[:5]]
    print(f"{len(pieces):,} tokens, {len(chat.messages[-1].text):,} characters, {count:,} turns")
    print(f"longest turns, busy: {', '.join(shown)} ms")
    print(f"{len(turns):,} turns over 1 ms, their median {1000 * turns[len(turns) // 2]:.1f} ms")
    print(f"memory: {(after - before) / 2**20:.0f} MiB more than before the answer")
    headrace.quit()
    headrace.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
