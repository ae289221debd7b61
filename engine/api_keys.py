"""API keys: made and revoked by `headrace keys`, checked by every running server of this user.

* `api-keys.json` in Headrace's folder has the keys that the person gave names, as hashes. A key in
  it makes servers want one.
* `local-key` is one more, as it is: the app and `headrace agents` send it, so that they go on
  working whichever keys there are. Whoever can read that file is this user already.

A hash is one SHA-256. Slow hashes are for passwords, which people choose and others can guess; a
key has 256 random bits, of which a fast hash gives away as little. It is computed at each request.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
import time
from pathlib import Path

import msgspec

from engine import paths
from engine.errors import HeadraceError, InvalidRequest
from engine.private_files import locked, write_private

PREFIX = "hr-"
"""By which people, and programs that look for secrets in files, know a key of Headrace."""
SHAPE = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")
"""Every key that is made here, wherever it stands in a text."""
NAME_RULE = "a name has 1 to 64 letters, digits, dots, dashes and underscores"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LEAST_CHARS = 40
"""Of a local key: a file that was emptied must not let everybody in."""


class KeysUnreadable(HeadraceError):
    """The file of keys cannot be used; it is never overwritten."""

    code = "keys_unreadable"


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    sha256: str
    """Of the key's bytes, in hexadecimal digits."""
    created: float
    """Seconds since 1970."""

    @property
    def last_used(self) -> float | None:
        """Seconds since 1970, a minute too early at most; None: not yet."""
        try:
            return _use_file(self).stat().st_mtime
        except OSError:
            return None

    def used(self) -> None:
        """Note that it is used now. A folder that cannot be written costs the note, not access."""
        with contextlib.suppress(OSError):
            _use_file(self).parent.mkdir(parents=True, exist_ok=True)
            _use_file(self).touch(0o600)


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    keys: list[StoredKey]


def keys_file() -> Path:
    return paths.home() / "api-keys.json"


def local_key_file() -> Path:
    return paths.home() / "local-key"


def digest(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()


def stored() -> list[StoredKey]:
    """The keys that have names, oldest first. Raises KeysUnreadable."""
    try:
        return msgspec.json.decode(keys_file().read_bytes(), type=_Stored).keys
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as error:
        raise KeysUnreadable(
            f"The keys in {keys_file()} cannot be read: {error}.",
            hint="Put the file back as it was, or delete it and make new keys.",
        ) from error


def create(name: str) -> str:
    """A new key, which is kept nowhere. Raises InvalidRequest, KeysUnreadable and OSError."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is no name for a key: {NAME_RULE}.")
    key = PREFIX + secrets.token_urlsafe(32)
    with _changing():
        keys = stored()
        for each in keys:
            if each.name.lower() == name.lower():
                raise InvalidRequest(
                    f"There is a key {each.name!r} already.",
                    hint=f"Choose another name, or `headrace keys revoke {each.name}` first.",
                )
        _write([*keys, StoredKey(name=name, sha256=digest(key.encode()), created=time.time())])
    return key


def revoke(name: str) -> int:
    """Forget a key. Returns how many are left. Raises InvalidRequest, KeysUnreadable, OSError."""
    with _changing():
        keys = stored()
        kept = [each for each in keys if each.name != name]
        if len(kept) == len(keys):
            names = ", ".join(each.name for each in keys) or "none"
            raise InvalidRequest(f"There is no key {name!r}.", hint=f"The keys are: {names}.")
        _write(kept)
        for each in keys:
            if each.name == name:
                _use_file(each).unlink(missing_ok=True)
    return len(kept)


def local_key() -> str:
    """What programs of this user send to servers of this user; "" where there is none yet."""
    try:
        key = local_key_file().read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return key if len(key) >= _LEAST_CHARS else ""


def make_local_key() -> None:
    """See to it that there is one. Raises OSError."""
    with _changing():
        if not local_key():
            write_private(local_key_file(), (PREFIX + secrets.token_urlsafe(32)).encode())


def _changing() -> contextlib.AbstractContextManager[None]:
    return locked(paths.home() / "api-keys.lock")


def _write(keys: list[StoredKey]) -> None:
    body = msgspec.json.format(msgspec.json.encode(_Stored(keys=keys)), indent=2)
    write_private(keys_file(), body)


def _use_file(key: StoredKey) -> Path:
    """Its time of change is that of the last use: servers beside each other need no lock for it."""
    return paths.home() / "key-uses" / key.sha256[:16]
