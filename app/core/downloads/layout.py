"""The hub's cache layout, and what Headrace keeps in it.

    ROOT/models--org--name/blobs/DIGEST            a file's bytes, checked
                           snapshots/COMMIT/NAME   a link to its blob
                           refs/BRANCH             the commit that a branch was
                           .headrace/ID.plan       a download that is not ready
                           .headrace/ID.ready      written last: a download that is
                           .headrace/DIGEST.part   bytes of a file that is not complete
                           .headrace/DIGEST.sums   their checksums

Nothing under `.headrace` can be taken for a model's file, by other programs neither.
"""

from __future__ import annotations

import os
from pathlib import Path

from app.core.downloads.records import Request

OWN = ".headrace"


def hub_home() -> Path:
    """Where the hub's own programs keep their files: HF_HOME, else in the user's caches."""
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface"


def hub_cache() -> Path:
    """Where the hub's own programs keep models: HF_HUB_CACHE, else `hub` in their folder."""
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(cache).expanduser() if cache else hub_home() / "hub"


def root_of(request: Request) -> Path:
    return Path(request.root).expanduser().absolute() if request.root else hub_cache()
