"""The keys that a running server takes, which follow their files without a restart."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable
from pathlib import Path

from engine import api_keys
from engine.api_keys import KeysUnreadable, StoredKey

log = logging.getLogger("headrace.server")

USE_NOTED_S = 60.0
"""Between two notes that a key is used."""

_Seen = tuple[int, int, int, int] | None
_UNREAD: _Seen = (0, 0, 0, 0)
"""No signature: what could not be read is tried again each time, since whatever kept it from being
read may end without a trace in the file."""


class KeyRing:
    """--api-key, the keys of `headrace keys`, and the local key."""

    def __init__(self, api_key: str = "") -> None:
        """`api_key`: of the command line; "" for none."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when keys are wanted from now on, or no longer."""
        self._api_key = api_key
        self._stored: list[StoredKey] = []
        self._unreadable = False
        self._local = ""
        self._seen_stored = self._seen_local = _UNREAD
        self._noted: dict[str, float] = {}
        self.refresh()

    @property
    def required(self) -> bool:
        """Whether clients must send a key. With keys that cannot be read they must: whoever made
        some did not want the server open to all."""
        return bool(self._api_key or self._stored or self._unreadable)

    def secrets(self) -> list[str]:
        """The keys that are known as they are, for whoever must not write them down."""
        return [key for key in (self._api_key, self._local) if key]

    def refresh(self) -> None:
        """Look at the files; two of the system's cheapest calls where they are as before."""
        before = self.required
        seen = _signature(api_keys.keys_file())
        if seen != self._seen_stored:
            self._seen_stored = seen if self._read() else _UNREAD
        seen = _signature(api_keys.local_key_file())
        if seen != self._seen_local:
            self._local = api_keys.local_key()
            self._seen_local = seen if self._local or seen is None else _UNREAD
        if self.required != before:
            self.on_change()

    def fits(self, given: str) -> bool:
        """Whether this is a key. In a time that does not tell how much of one it resembles."""
        fits = bool(self._api_key) & same_secret(given, self._api_key)
        fits |= bool(self._local) & same_secret(given, self._local)
        hashed = api_keys.digest(given.encode("latin-1"))
        found = None
        for each in self._stored:
            if same_secret(hashed, each.sha256):
                found = each
        if found is not None:
            self._note(found)
        return fits or found is not None

    def _read(self) -> bool:
        """Whether the file could be read."""
        try:
            self._stored, self._unreadable = api_keys.stored(), False
        except KeysUnreadable as error:
            if not self._unreadable:
                log.error("%s Until then no key in it is taken.", error.message)
            self._stored, self._unreadable = [], True
        return not self._unreadable

    def _note(self, key: StoredKey) -> None:
        now = time.monotonic()
        if now - self._noted.get(key.sha256, -USE_NOTED_S) >= USE_NOTED_S:
            self._noted[key.sha256] = now
            key.used()


def _signature(path: Path) -> _Seen:
    """Changes whenever the file or who may read it does; None: there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return (-1, -1, -1, -1)
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def same_secret(given: str, expected: str) -> bool:
    """Compare without telling by the time it takes how much of it was right.

    `given` comes from a header, whose bytes arrive as Latin-1; clients send a key as UTF-8.
    """
    return hmac.compare_digest(given.encode("latin-1"), expected.encode())
