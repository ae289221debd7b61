"""The kept conversations, as the interface sees them: all work with the disk is done elsewhere.

Where something cannot be written, it is tried again with whatever is written next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from PySide6.QtCore import QObject, Signal

from app.core.chats.errors import BrokenConversation, NewerStore
from app.core.chats.records import Entry, Snapshot
from app.core.chats.store import ConversationStore
from app.core.conversation import Conversation
from app.ui.background import Serial
from engine.errors import HeadraceError, told

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class ChatArchive(QObject):
    listed = Signal(object)
    """list[Entry], as the search wants them."""
    loaded = Signal(object)
    """A Conversation that was asked for."""
    problem_changed = Signal(str)
    """Why nothing is kept now; empty once it is again."""
    said = Signal(str)
    """Something the person should hear once."""

    def __init__(self, store: ConversationStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store = store
        self._serial = Serial(self)
        self._unwritten: dict[str, Snapshot] = {}
        """What could not be written, by conversation. The thread's."""
        self._wanted = ""
        self.problem = ""

    def begin(self) -> None:
        """Open the database and list what is in it."""
        self.refresh()

    def search(self, wanted: str) -> None:
        self._wanted = wanted
        self.refresh()

    def refresh(self) -> None:
        wanted = self._wanted

        def show(entries: list[Entry]) -> None:
            if wanted == self._wanted:
                self.listed.emit(entries)

        self._run(lambda: self._store.entries(wanted), show)

    def load(self, id_: str) -> None:
        self._run(lambda: self._store.load(id_), self._hand_over)

    def save(self, snapshot: Snapshot, *, relist: bool) -> None:
        """`relist`: what the list shows of it has changed."""

        def write() -> None:
            before = self._unwritten.get(snapshot.id)
            self._unwritten[snapshot.id] = snapshot.after(before) if before else snapshot
            self._open()
            self._store.save(list(self._unwritten.values()))
            self._unwritten.clear()

        self._run(write, lambda _: None, opens=False)
        if relist:
            self.refresh()

    def rename(self, id_: str, title: str) -> None:
        self._change(lambda: self._store.rename(id_, title))

    def delete(self, id_: str) -> None:
        self._change(lambda: self._store.delete(id_))

    def restore(self, id_: str) -> None:
        self._change(lambda: self._store.restore(id_))

    def erase(self, id_: str) -> None:
        """Remove for good what was deleted."""
        self._run(lambda: self._store.erase(id_), lambda _: None)

    def close(self) -> None:
        """Finish writing, then close the database."""
        self._run(self._store.close, lambda _: None, opens=False)
        self._serial.close()

    def _change(self, work: Callable[[], None]) -> None:
        self._run(work, lambda _: None)
        self.refresh()

    def _hand_over(self, chat: Conversation) -> None:
        self.loaded.emit(chat)

    def _run(
        self,
        work: Callable[[], Result],
        done: Callable[[Result], None],
        *,
        opens: bool = True,
    ) -> None:
        def worked() -> Result:
            if opens:
                self._open()
            return work()

        def well(result: Result) -> None:
            self._tell("")
            done(result)

        self._serial.run(worked, well, self._failed)

    def _open(self) -> None:
        """In the thread. What cannot be opened is tried again at the next work."""
        if not self._store.is_open:
            damage = self._store.open()
            if damage:
                self.said.emit(damage)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, BrokenConversation):
            self.said.emit(error.message)
            self.refresh()
        elif isinstance(error, HeadraceError):
            if isinstance(error, NewerStore):
                self._unwritten.clear()
            self._tell(told(error.message, error.hint))
        else:
            log.error("unexpected error in the conversations", exc_info=error)
            self._tell(f"Conversations are not being kept: {error}.")

    def _tell(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("%s", problem or "conversations are kept again")
            self.problem = problem
            self.problem_changed.emit(problem)
