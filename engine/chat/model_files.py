"""Where a model lies, what it is called, and its small JSON files. Torch-free and quick.

Completeness of the weights is checked by whoever loads them (engine.formats.model_files).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import paths
from engine.errors import ModelNotFound
from engine.formats import config_fields, gguf_parts, hub_layout
from engine.formats.file_checks import is_there, looking_at

DEMO = "demo"


@dataclass(frozen=True)
class ModelPlace:
    path: Path
    """A folder in hub layout, or the (first) GGUF file. Absolute: it can be passed on as it is."""
    name: str
    """What clients call the model: `org/name` in the hub's cache layout, else the folder's name."""

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix.lower() == ".gguf"


def locate(model: str) -> ModelPlace:
    """The model that a person names: `demo`, a folder, a hub cache folder or a GGUF file.

    Only the bare word is the bundled model; `./demo` is a folder. The path that is returned is
    absolute, so that no other reader takes it for that word.

    Raises ModelNotFound when there is no model, ModelFilesError when it is incomplete at a glance.
    """
    if model == DEMO:
        return ModelPlace(path=paths.demo_model().absolute(), name=DEMO)
    path = Path(model).expanduser().absolute()
    with looking_at(path):
        return _locate(model, path)


def _locate(model: str, path: Path) -> ModelPlace:
    if not is_there(path):
        raise ModelNotFound(
            f"The model {model!r} was not found: there is no such file or folder.",
            hint="Give a model's folder, a GGUF file, or `demo` for the bundled model.",
            param="model",
        )
    if hub_layout.repository_name(path.name) and (path / "snapshots").is_dir():
        path = hub_layout.snapshot_of(path)
    if (path / "config.json").exists():
        return ModelPlace(path=path, name=hub_layout.display_name(path))
    if path.suffix.lower() == ".gguf" and path.is_file() and not gguf_parts.is_projector(path):
        entry = gguf_parts.entry_of(path)
        return ModelPlace(path=entry.parts[0], name=entry.name)
    # Folders of GGUF files, and all the ways in which a path is not a model.
    from engine.formats.model_files import inspect_model

    files = inspect_model(path)
    return ModelPlace(path=files.path, name=files.display_name)


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} when an optional file is absent.

    Raises ModelFilesError naming the file when it is missing, unreadable or not a JSON object.
    """
    if not required and not os.path.lexists(path):
        return {}
    return config_fields.read_json(path)
