"""The rates that were measured on this PC, kept in its user's folder. Torch-free.

`headrace bench link` and `headrace bench host` write them; the estimate of a model's speed reads
them. A rate counts only for the hardware it was measured on.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from engine import paths
from engine.private_files import write_private

log = logging.getLogger(__name__)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One rate in 10^9 bytes a second."""

    gb_per_s: float
    when: str
    """ISO 8601."""
    hardware: str
    """The GPU's name for the link; for the host the processor's and its memory's size."""


class MachineProfile(msgspec.Struct, frozen=True, kw_only=True):
    link: Measured | None = None
    """Pinned host memory to the GPU: the best plain copy."""
    host: Measured | None = None
    """Reading host memory with the threads that the engine takes."""


def profile_file() -> Path:
    return paths.home() / "machine.json"


def load() -> MachineProfile:
    """What was measured so far; nothing where the file is not there or not readable."""
    try:
        return msgspec.json.decode(profile_file().read_bytes(), type=MachineProfile)
    except FileNotFoundError:
        return MachineProfile()
    except (OSError, msgspec.DecodeError) as error:
        log.warning("%s cannot be read, so no rate counts as measured: %s", profile_file(), error)
        return MachineProfile()


def remember(*, link: Measured | None = None, host: Measured | None = None) -> None:
    """Keep what was measured anew beside what was measured before. Raises OSError."""
    before = load()
    now = MachineProfile(link=link or before.link, host=host or before.host)
    write_private(profile_file(), msgspec.json.format(msgspec.json.encode(now), indent=2))


def host_hardware(processor: str, ram_bytes: int) -> str:
    return f"{processor}, {ram_bytes / 1e9:.0f} GB"
