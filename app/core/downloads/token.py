"""The hub's access token: where it is kept, and which one counts.

It lies in a file that only its user can read, as API keys do, beside which the hub's own programs
keep theirs the same way. A keyring would add four packages on Linux, and none answers where there
is no desktop session. Tokens go into no log, no argument, no record: the worker reads the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.core.downloads import layout
from engine import paths
from engine.private_files import write_private


def token_file() -> Path:
    return paths.home() / "hub-token"


def save_token(token: str) -> None:
    """Keep it; an empty one forgets what was kept. Raises OSError."""
    if token.strip():
        write_private(token_file(), token.strip().encode())
    else:
        token_file().unlink(missing_ok=True)


def read_token() -> str:
    """HF_TOKEN, else the one kept by Headrace, else the one that the hub's programs keep; or "".

    Raises OSError where a file is there and cannot be read.
    """
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    hubs = os.environ.get("HF_TOKEN_PATH") or layout.hub_home() / "token"
    for file in (token_file(), Path(hubs).expanduser()):
        if file.is_file() and (token := file.read_text("utf-8", "replace").strip()):
            return token
    return ""
