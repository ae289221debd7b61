"""Find a model's files and check that they are all there and whole. Torch-free.

The app lists models with `inspect_model`, the runtime opens them with `checkpoint.open_checkpoint`;
both see the same errors, and both before a single tensor is placed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import ModelFilesError, ModelNotFound, UnsupportedModel
from engine.formats import gguf_parts, hub_layout
from engine.formats.config_fields import Fields, read_json
from engine.formats.file_checks import FETCH_AGAIN, is_there, looking_at, require_file, unreadable
from engine.formats.quantisation import Quantisation, read_quantisation
from engine.formats.safetensors_header import read_header
from engine.formats.tensor_info import TensorInfo

if TYPE_CHECKING:
    from engine.formats.gguf import GgufFile

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class ModelFiles:
    """A model whose files are complete.

    `config` is config.json, or a GGUF file's metadata. `files` hold the weights in order.
    """

    kind: Literal["safetensors", "gguf"]
    path: Path
    display_name: str
    config: dict[str, Any]
    config_source: str
    generation_config: dict[str, Any]
    quantisation_config: dict[str, Any]
    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    notes: tuple[str, ...] = ()
    """Sentences for the log about the files."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(info.nbytes for info in self.tensors.values())

    def names(self) -> Iterable[str]:
        return self.tensors.keys()

    def has(self, name: str) -> bool:
        return name in self.tensors

    def info(self, name: str) -> TensorInfo:
        """Raises ModelFilesError when there is no such tensor."""
        if name not in self.tensors:
            raise ModelFilesError(f"{self.path}: tensor {name} is missing")
        return self.tensors[name]

    def quantisation(self) -> Quantisation | None:
        """How the weights are quantised. UnsupportedModel names a scheme that is not read."""
        if self.kind == "gguf":
            return None
        return read_quantisation(self.config, self.quantisation_config, self.config_source)


def inspect_model(path: Path) -> ModelFiles:
    """The complete model at `path`: a folder, a hub cache's folder, or a .gguf file.

    Raises ModelNotFound, ModelFilesError or UnsupportedModel; each names the file at fault.
    """
    with looking_at(path):
        return _inspect(path)


def _inspect(path: Path) -> ModelFiles:
    if not is_there(path):
        if path.is_symlink():
            raise ModelNotFound(f"{path} is a link to {path.readlink()}, which is not there")
        raise ModelNotFound(f"{path} does not exist")
    if not path.is_dir():
        require_file(path)
        if path.suffix.lower() != ".gguf":
            raise ModelNotFound(
                f"{path} is not a model folder and not a .gguf file",
                hint=f"Point at the folder that holds {CONFIG}.",
            )
        return _gguf_files(path)
    folder = _model_folder(path)
    if folder.suffix == ".gguf" and folder.is_file():
        return _gguf_files(folder)
    return _safetensors_files(folder)


def _model_folder(path: Path) -> Path:
    """The folder with config.json that `path` leads to, or the one .gguf model in it."""
    if os.path.lexists(path / CONFIG):
        return path
    if hub_layout.repository_name(path.name) and (path / "snapshots").is_dir():
        return _model_folder(hub_layout.snapshot_of(path))
    models = gguf_parts.entries(path)
    if len(models) == 1:
        return models[0].parts[0] if models[0].parts[0].is_file() else _first_present(models[0])
    if models:
        raise ModelNotFound(
            f"{path} holds {len(models)} models",
            hint=f"Point at one file: {', '.join(m.parts[0].name for m in models)}",
        )
    repositories = hub_layout.repositories(path)
    if repositories:
        raise ModelNotFound(
            f"{path} is a download cache, not a model",
            hint=f"Point at one of its models: {', '.join(str(r) for r in repositories)}",
        )
    if any(path.glob("*.gguf")):
        raise UnsupportedModel(
            f"{path} holds only a vision projector (mmproj), which is not a chat model",
            hint="Point at the text model's .gguf file.",
        )
    if hub_layout.unfinished(path):
        raise ModelFilesError(
            f"{path / CONFIG} is missing and {', '.join(hub_layout.unfinished(path))} is there: "
            "the download is incomplete"
        )
    raise ModelNotFound(
        f"{path} holds no model: {CONFIG} is not there, nor is a .gguf file",
        hint=f"Point at the folder that holds {CONFIG}.",
    )


def _first_present(entry: gguf_parts.GgufEntry) -> Path:
    return next(part for part in entry.parts if part.is_file())


def _optional_json(path: Path) -> dict[str, Any]:
    """The object in an optional file; a dangling link or a folder in its place is an error."""
    if not os.path.lexists(path):
        return {}
    return read_json(path)


def _safetensors_files(folder: Path) -> ModelFiles:
    config_file = folder / CONFIG
    config = read_json(config_file)
    files, index = _shards(folder)
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        require_file(file)
    for file in files:
        for name, info in read_header(file).items():
            if name in tensors:
                raise ModelFilesError(
                    f"tensor {name} is in {tensors[name].file} and again in {file}"
                )
            tensors[name] = info
    by_name = {file.name: file for file in files}
    for name, file_name in index.items():
        if name not in tensors or tensors[name].file is not by_name[file_name]:
            raise ModelFilesError(f"{folder / file_name} has no tensor {name}, which {INDEX} names")
    return ModelFiles(
        kind="safetensors",
        path=folder,
        display_name=hub_layout.display_name(folder),
        config=config,
        config_source=str(config_file),
        generation_config=_optional_json(folder / GENERATION_CONFIG),
        quantisation_config=_optional_json(folder / "hf_quant_config.json"),
        files=files,
        tensors=tensors,
        notes=hub_layout.unfinished_notes(folder),
    )


def _shards(folder: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """The weight files, and which of them the index says holds each tensor."""
    index_file = folder / INDEX
    if os.path.lexists(index_file):
        fields = Fields(read_json(index_file), str(index_file))
        weight_map = fields.child("weight_map").values
        known: set[str] = set()
        for name, file in weight_map.items():
            if isinstance(file, str) and file in known:
                continue
            # A name with a path in it could lead out of the model's folder.
            if not isinstance(file, str) or not file or file != Path(file).name or "\\" in file:
                raise ModelFilesError(f"{index_file}: tensor {name} lies in {file!r}, no file name")
            known.add(file)
        if not weight_map:
            raise ModelFilesError(f"{index_file} names no tensors")
        return tuple(folder / file for file in sorted(set(weight_map.values()))), weight_map
    single = folder / SINGLE
    if os.path.lexists(single):
        return (single,), {}
    suffixes = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
    others = sorted(p.name for p in folder.iterdir() if p.suffix in suffixes)
    hint = FETCH_AGAIN
    if any(name.endswith(".gguf") for name in others):
        hint = "Point at the .gguf file itself."
    partial = hub_layout.unfinished(folder)
    if partial:
        problem = f"{', '.join(partial)} is there: the download is incomplete"
    elif others:
        problem = f"there is {', '.join(others[:4])}, but neither {SINGLE} nor {INDEX}"
    else:
        problem = f"there is neither {SINGLE} nor {INDEX}"
    raise ModelFilesError(f"{folder} holds no weights: {problem}", hint=hint)


def _gguf_files(path: Path) -> ModelFiles:
    entry = gguf_parts.entry_of(path)
    if gguf_parts.is_projector(path):
        raise _projector(path)
    if entry.missing:
        raise ModelFilesError(
            f"{path.parent}: {', '.join(entry.missing)} of {entry.name} is missing: "
            "the download is incomplete",
            hint="Fetch the missing part.",
        )
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    for number, part in enumerate(entry.parts):
        opened = open_gguf(part)
        if number == 0:
            metadata = opened.metadata
        for name, info in opened.tensors.items():
            if name in tensors:
                raise ModelFilesError(
                    f"tensor {name} is in {tensors[name].file} and again in {part}"
                )
            tensors[name] = TensorInfo(name, info.kind, info.shape, info.nbytes, part, info.offset)
    expected = metadata.get("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise ModelFilesError(
            f"{entry.parts[0]} announces {expected} tensors, its parts hold {len(tensors)}"
        )
    if metadata.get("general.architecture") == "clip":
        raise _projector(path)
    _require_readable(tensors.values())
    return ModelFiles(
        kind="gguf",
        path=entry.parts[0],
        display_name=entry.name,
        config=metadata,
        config_source=str(entry.parts[0]),
        generation_config={},
        quantisation_config={},
        files=entry.parts,
        tensors=tensors,
    )


def _require_readable(tensors: Iterable[TensorInfo]) -> None:
    """UnsupportedModel for the first tensor whose blocks nobody here can decode."""
    from engine.formats.gguf_blocks import READABLE

    for info in tensors:
        if info.dtype not in READABLE:
            raise UnsupportedModel(
                f"{info.file}: tensor {info.name} is stored as {info.dtype}, which is not read",
                hint=f"Choose a file of {', '.join(READABLE)}.",
            )


def open_gguf(path: Path) -> GgufFile:
    """The file, with the reader's complaint as a ModelFilesError."""
    # Here, so that listing folders of safetensors needs no numpy.
    from engine.formats.gguf import GgufFile
    from engine.formats.gguf_blocks import GgufError

    require_file(path)
    try:
        return GgufFile(path)
    except GgufError as error:
        raise ModelFilesError(str(error), hint="Fetch the file again.") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _projector(path: Path) -> UnsupportedModel:
    return UnsupportedModel(
        f"{path} is a vision projector (mmproj), not a chat model",
        hint="Point at the text model's .gguf file.",
    )
