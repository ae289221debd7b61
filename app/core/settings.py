"""The app's settings: declared once, with their defaults, in one versioned JSON file."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from engine import paths
from engine.options import API_KEY_RULE, DEFAULT_PORT, DeviceName, is_api_key

log = logging.getLogger(__name__)

VERSION = 1

OnClose = Literal["ask", "hide", "quit"]
ThemeName = Literal["system", "light", "dark"]

DEMO = "demo"
"""The bundled model. Every other model is a path, `./demo` too."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the person can set. A field's default is the product's default."""

    version: int = VERSION
    # what the engine is started with
    model: str = DEMO
    """Folder, GGUF file, or the name of the bundled model."""
    device: DeviceName = "auto"
    moe_cache_rate: float = 1.0
    """Share of all experts that have a slot, 0 < rate <= 1."""
    context_tokens: int = 0
    """0 means the model's own limit."""
    port: int = DEFAULT_PORT
    """0 means any free port."""
    api_key: str = ""
    """What the engine wants of its clients; empty for none. The app sends it with its requests."""
    model_folders: tuple[str, ...] = ()
    """Where models are looked for, beside the hub's cache."""
    # how the app behaves
    start_engine_at_launch: bool = True
    on_close: OnClose = "ask"
    theme: ThemeName = "system"
    keep_conversations: bool = True
    """Whether chats are written to disk, and found again after the app was closed."""
    vram_always: tuple[str, ...] = ()
    """Programs that get VRAM from the engine as games do: file names, paths, or titles of games."""
    vram_never: tuple[str, ...] = ()
    """Programs that get none, games too."""
    vram_headroom_mib: int = 0
    """VRAM that is kept free for other programs; 0 means the product's own choice."""
    window_geometry: str = ""
    """What Qt saved of the window's place and size, base64."""


LABELS = {
    "model": "Model",
    "device": "Device",
    "moe_cache_rate": "Expert cache",
    "context_tokens": "Context",
    "port": "Port",
    "api_key": "API key",
}
"""What the person calls the fields that an engine is started with."""

_NO_KEY = "No API key is set: the engine answers whoever reaches it."

ENGINE_FIELDS = tuple(LABELS)
"""Fields that a running engine only takes over when it restarts."""


def settings_file() -> Path:
    return paths.home() / "settings.json"


def problems(settings: Settings) -> dict[str, str]:
    """What is wrong with these settings: a sentence per field. Empty means that all is well."""
    found: dict[str, str] = {}
    if not settings.model.strip():
        found["model"] = "Choose a model folder, a GGUF file, or “demo”."
    elif (path := model_path(settings.model)) is not None and not path.exists():
        found["model"] = f"Nothing exists at {path}."
    if not 0 < settings.moe_cache_rate <= 1:
        found["moe_cache_rate"] = "The cache rate lies above 0 and goes up to 1 (100 %)."
    if settings.context_tokens < 0:
        found["context_tokens"] = "The context is 0 (the model's own limit) or a number of tokens."
    if settings.api_key and not is_api_key(settings.api_key):
        found["api_key"] = f"{API_KEY_RULE.capitalize()}."
    if settings.vram_headroom_mib < 0:
        found["vram_headroom_mib"] = "What is kept free is 0 (automatic) or a number of MiB."
    if not 0 <= settings.port <= 65535:
        found["port"] = "A port lies between 1 and 65535; 0 takes any free one."
    return found


def model_path(model: str) -> Path | None:
    """Where the model lies, absolute; None for the bundled one. `~` of nobody stays as it is."""
    if model == DEMO:
        return None
    path = Path(model)
    with contextlib.suppress(RuntimeError):
        path = path.expanduser()
    return path.absolute()


def needs_restart(old: Settings, new: Settings) -> bool:
    return any(getattr(old, name) != getattr(new, name) for name in ENGINE_FIELDS)


def load(path: Path | None = None) -> Settings:
    """The stored settings, as `read` has them."""
    return read(path)[0]


def read(path: Path | None = None) -> tuple[Settings, list[str]]:
    """The stored settings, and a sentence on each that is lost, as the log has it too.

    What is missing or wrong falls back to its default. A file that is no JSON object is set aside
    as `settings.json.corrupt-<time>`, never overwritten.
    """
    path = path or settings_file()
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Settings(), []
    except OSError as error:
        return Settings(), _told([f"The settings in {path} cannot be read ({error}). {_NO_KEY}"])
    try:
        stored = msgspec.json.decode(raw)
        if not isinstance(stored, dict):
            raise msgspec.DecodeError("not an object")
    except msgspec.DecodeError as error:
        aside = path.with_name(f"{path.name}.corrupt-{int(time.time())}")
        kept = f" The old file is kept as {aside}." if _set_aside(path, aside) else ""
        damage = f"The settings were damaged ({error}), and all have their defaults now."
        return Settings(), _told([f"{damage}{kept} {_NO_KEY}"])
    return _from_stored(stored, path)


def save(settings: Settings, path: Path | None = None) -> None:
    """Write all settings, whole or not at all. Raises OSError when the folder cannot be written."""
    body = msgspec.json.format(msgspec.json.encode(settings), indent=2)
    write_private(path or settings_file(), body)


def write_private(path: Path, body: bytes) -> None:
    """Write a file, whole or not at all, that only its user can read. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _from_stored(stored: dict[str, Any], path: Path) -> tuple[Settings, list[str]]:
    version = stored.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        log.warning("%s was written by a newer Headrace (version %d)", path, version)
    kept: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field in msgspec.structs.fields(Settings):
        if field.name == "version" or field.name not in stored:
            continue
        try:
            kept[field.name] = msgspec.convert(stored[field.name], field.type)
        except msgspec.ValidationError as error:
            wrong[field.name] = str(error)
    settings = Settings(**kept)
    # A model that is gone is the engine's to report: its path is worth keeping.
    wrong |= {name: why for name, why in problems(settings).items() if name != "model"}
    defaults = {name: getattr(Settings(), name) for name in wrong}
    return msgspec.structs.replace(settings, **defaults), _told(
        [
            f"{path}: {name} is wrong and has its default now ({why})."
            + (f" {_NO_KEY}" if name == "api_key" else "")
            for name, why in wrong.items()
        ]
    )


def _told(sentences: list[str]) -> list[str]:
    for sentence in sentences:
        log.warning("%s", sentence)
    return sentences


def _set_aside(path: Path, aside: Path) -> bool:
    try:
        path.replace(aside)
    except OSError as error:
        log.warning("cannot set %s aside: %s", path, error)
        return False
    return True
