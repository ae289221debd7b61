"""Where a model lies, what it is called, and its small JSON files. Torch-free.

The weights are the runtime's business (engine.formats); the server needs only the text side.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import paths
from engine.errors import ModelFilesError, ModelNotFound

DEMO = "demo"
MAX_JSON_BYTES = 256 << 20
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True)
class ModelPlace:
    path: Path
    """A folder in hub layout, or the (first) GGUF file."""
    name: str
    """What clients call the model: `org/name` in the hub's cache layout, else the folder's name."""

    @property
    def is_gguf(self) -> bool:
        return self.path.suffix.lower() == ".gguf"


def locate(model: str) -> ModelPlace:
    """The model that a person names: `demo`, a folder, a hub cache folder or a GGUF file.

    Raises ModelNotFound when the path leads nowhere, ModelFilesError when it leads to a folder
    without a model.
    """
    if model == DEMO:
        return _folder(paths.demo_model(), DEMO)
    path = Path(model).expanduser()
    if not path.exists():
        raise ModelNotFound(
            f"The model {model!r} was not found: there is no such file or folder.",
            hint="Give a model's folder, a GGUF file, or `demo` for the bundled model.",
            param="model",
        )
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelFilesError(
                f"{path} is a file, and not a GGUF file.",
                hint="Give the folder that holds config.json, or a .gguf file.",
                param="model",
            )
        return ModelPlace(path=path, name=_SPLIT.sub("", path.stem))
    return _folder(path, "")


def _folder(path: Path, name: str) -> ModelPlace:
    path = _snapshot_of(path)
    name = name or _display_name(path)
    if (path / "config.json").exists():
        return ModelPlace(path=path, name=name)
    files = [
        file
        for file in sorted(path.glob("*.gguf"))
        if not file.name.startswith("mmproj") and _part_number(file) == 1
    ]
    if len(files) == 1:
        return ModelPlace(path=files[0], name=_SPLIT.sub("", files[0].stem))
    if files:
        listed = ", ".join(file.name for file in files)
        raise ModelFilesError(
            f"{path} holds several GGUF models: {listed}.", hint="Give one of them.", param="model"
        )
    if any(path.glob("models--*")):
        raise ModelFilesError(
            f"{path} is a cache of several models, not a model.",
            hint="Give one of its folders named models--ORGANISATION--NAME.",
            param="model",
        )
    raise ModelFilesError(
        f"{path / 'config.json'} is missing, so {path} is not a model's folder.",
        hint="Give the folder that holds config.json and the weights, or a .gguf file.",
        param="model",
    )


def _part_number(file: Path) -> int:
    split = _SPLIT.search(file.stem)
    return int(split.group(1)) if split else 1


def _snapshot_of(path: Path) -> Path:
    """The snapshot folder of `models--org--name`; any other folder is itself."""
    snapshots = path / "snapshots"
    if not path.name.startswith("models--") or not snapshots.is_dir():
        return path
    main = path / "refs" / "main"
    if main.is_file():
        revision = snapshots / main.read_text(encoding="utf-8").strip()
        if revision.is_dir():
            return revision
    revisions = [folder for folder in sorted(snapshots.iterdir()) if folder.is_dir()]
    if len(revisions) == 1:
        return revisions[0]
    raise ModelFilesError(
        f"{snapshots} holds {len(revisions)} snapshots and refs/main names none of them.",
        hint="Give the snapshot's folder itself.",
        param="model",
    )


def _display_name(path: Path) -> str:
    resolved = path.resolve()
    for folder in (resolved, *resolved.parents[:2]):
        if folder.name.startswith("models--"):
            return folder.name.removeprefix("models--").replace("--", "/")
    return path.name or resolved.name


def read_json(path: Path, *, required: bool = False) -> dict[str, Any]:
    """A JSON object from a file; {} when an optional file is absent.

    Raises ModelFilesError naming the file when it is missing, unreadable or not a JSON object.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFilesError(f"{path} is larger than {MAX_JSON_BYTES} bytes.")
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not required and not path.is_symlink():
            return {}
        raise ModelFilesError(
            f"{path} is missing.", hint="The download is incomplete: fetch the model again."
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ModelFilesError(
            f"{path} cannot be read as JSON: {error}.", hint="Fetch the file again."
        ) from error
    if not isinstance(loaded, dict):
        raise ModelFilesError(f"{path} holds a {type(loaded).__name__}, not a JSON object.")
    return loaded
