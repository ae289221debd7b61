"""A model's weights and configuration, read from files that were checked when they were opened."""

from __future__ import annotations

import mmap
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.errors import ModelFilesError, UnsupportedModel
from engine.formats.blob import PLAIN_FORMATS
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.model_files import ModelFiles, inspect_model, open_gguf
from engine.formats.quantisation import FP8_BLOCK, NVFP4_GROUP, Quantisation
from engine.formats.tensor_info import FileRange, TensorInfo
from engine.formats.weight import StoredWeight


class Checkpoint(ABC):
    """Named tensors and the configuration that explains them.

    `config` is config.json, or a GGUF file's metadata, as it stands. Views of a checkpoint (other
    names, other layouts) are checkpoints too, so that a family sees the names it knows.
    """

    path: Path
    display_name: str
    kind: str
    config: dict[str, Any]
    config_source: str
    generation_config: dict[str, Any]
    quantisation: Quantisation | None
    notes: tuple[str, ...]
    hub_view: Checkpoint | None = None
    """This checkpoint under the hub's plain names, once its family has made that view."""

    @abstractmethod
    def names(self) -> Iterable[str]: ...

    @abstractmethod
    def info(self, name: str) -> TensorInfo:
        """Raises ModelFilesError when there is no such tensor."""

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """The tensor in its stored dtype. It may be a view of the mapped file: do not write."""

    def read_blocks(self, name: str) -> Tensor:
        """A matrix in GGUF's blocks as it is stored: uint8 [rows, bytes of a row]."""
        raise wrong_tensor(self.info(name), "is not stored in GGUF's blocks")

    @abstractmethod
    def has(self, name: str) -> bool: ...

    def file_range(self, tensor: Tensor) -> FileRange | None:  # noqa: ARG002
        """Where in a file the bytes of this tensor lie, if it is a view of one and contiguous.

        Nothing is touched, so that a reader can put them elsewhere without reading them here.
        """
        return None

    def weight(self, base: str) -> StoredWeight:
        """The matrix `base`.weight with the scales that its dtype asks for.

        Raises ModelFilesError for a scale that is missing or has the wrong shape, UnsupportedModel
        for a format this engine does not read.
        """
        info = self.info(f"{base}.weight")
        if info.dtype in PLAIN_FORMATS:
            return StoredWeight(info.dtype, info.shape, {"weight": self.read(info.name)})
        if info.dtype.lower() in GGUF_BLOCKS:
            return StoredWeight(
                info.dtype.lower(), info.shape, {"weight": self.read_blocks(info.name)}
            )
        if info.dtype == "float8_e4m3fn":
            return self._fp8_block(base, info)
        if info.dtype == "uint8":
            return self._nvfp4(base, info)
        raise UnsupportedModel(
            f"{info.file}: {info.name} has dtype {info.dtype}, which is not read"
        )

    def _scale(self, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
        info = self.info(name)
        if info.dtype not in dtypes:
            raise wrong_tensor(info, f"has dtype {info.dtype}, not {' or '.join(dtypes)}")
        # A scalar is stored as [] by some writers and as [1] by others.
        if info.shape != shape and not (shape == () and info.shape == (1,)):
            raise wrong_tensor(info, f"has shape {list(info.shape)}, not {list(shape)}")
        return self.read(name).reshape(shape)

    def _fp8_block(self, base: str, info: TensorInfo) -> StoredWeight:
        name = f"{base}.weight_scale_inv"
        if len(info.shape) != 2:
            raise wrong_tensor(info, f"has shape {list(info.shape)}, not two dimensions")
        if not self.has(name):
            raise UnsupportedModel(
                f"{info.file}: {info.name} is FP8 without {name}: only 128 x 128 blocks are read"
            )
        rows, columns = info.shape
        blocks = (-(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK))
        scale = self._scale(name, PLAIN_FORMATS, blocks).to(torch.float32)
        return StoredWeight(
            "fp8_block", info.shape, {"weight": self.read(info.name), "scale": scale}
        )

    def _nvfp4(self, base: str, info: TensorInfo) -> StoredWeight:
        if len(info.shape) != 2 or info.shape[1] * 2 % NVFP4_GROUP:
            raise wrong_tensor(
                info, f"has shape {list(info.shape)}, which is no NVFP4 matrix in groups of 16"
            )
        if self.quantisation is None or self.quantisation.scheme != "nvfp4":
            raise UnsupportedModel(
                f"{info.file}: {info.name} is packed (uint8), {self.config_source} does not say how"
            )
        rows, columns = info.shape[0], info.shape[1] * 2
        scale = self._scale(
            f"{base}.weight_scale", ("float8_e4m3fn",), (rows, columns // NVFP4_GROUP)
        )
        scale_2 = self._scale(f"{base}.weight_scale_2", ("float32",), ())
        parts = {"weight": self.read(info.name), "scale": scale, "scale_2": scale_2}
        return StoredWeight("nvfp4", (rows, columns), parts)


def wrong_tensor(info: TensorInfo, problem: str) -> ModelFilesError:
    return ModelFilesError(f"{info.file}: tensor {info.name} {problem}")


class _FilesCheckpoint(Checkpoint):
    def __init__(self, files: ModelFiles) -> None:
        self.path = files.path
        self.display_name = files.display_name
        self.kind = files.kind
        self.config = files.config
        self.config_source = files.config_source
        self.generation_config = files.generation_config
        self.quantisation = files.quantisation()
        self.notes = files.notes
        self._files = files

    def names(self) -> Iterable[str]:
        return self._files.names()

    def has(self, name: str) -> bool:
        return self._files.has(name)

    def info(self, name: str) -> TensorInfo:
        return self._files.info(name)


class SafetensorsCheckpoint(_FilesCheckpoint):
    """A folder in the hub's layout. Files are mapped when a tensor of theirs is first read."""

    def __init__(self, files: ModelFiles) -> None:
        super().__init__(files)
        self._mapped: dict[Path, Tensor] = {}
        self._file_at: dict[int, Path] = {}
        self._lock = threading.Lock()

    def _bytes(self, file: Path) -> Tensor:
        """The whole file as uint8, mapped read-only; the tensor keeps the mapping alive."""
        with self._lock:
            if file not in self._mapped:
                with file.open("rb") as opened, warnings.catch_warnings():
                    # torch warns that it cannot enforce read-only memory; nobody writes to weights.
                    warnings.filterwarnings("ignore", message="The given buffer is not writable")
                    mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                    self._mapped[file] = torch.frombuffer(mapping, dtype=torch.uint8)
                    self._file_at[self._mapped[file].data_ptr()] = file
            return self._mapped[file]

    def read(self, name: str) -> Tensor:
        info = self.info(name)
        dtype: torch.dtype = getattr(torch, info.dtype)
        raw = self._bytes(info.file)[info.offset : info.offset + info.nbytes]
        if info.offset % dtype.itemsize:
            raw = raw.clone()
        return raw.view(dtype).reshape(info.shape)

    def file_range(self, tensor: Tensor) -> FileRange | None:
        begin = tensor.untyped_storage().data_ptr()
        if begin not in self._file_at or not tensor.is_contiguous():
            return None
        return FileRange(self._file_at[begin], tensor.data_ptr() - begin, tensor.nbytes)


class GgufCheckpoint(_FilesCheckpoint):
    """GGUF files under their own names. `read` gives float32, `weight` a matrix's own blocks."""

    def __init__(self, files: ModelFiles) -> None:
        super().__init__(files)
        self._opened = {file: open_gguf(file) for file in files.files}

    def read(self, name: str) -> Tensor:
        info = self.info(name)
        try:
            return torch.from_numpy(self._opened[info.file].tensor(name))
        except ValueError as error:
            raise UnsupportedModel(str(error)) from error

    def read_blocks(self, name: str) -> Tensor:
        info = self.info(name)
        raw = self._opened[info.file].raw(name)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(raw).view(info.shape[0], -1)


def open_checkpoint(path: Path) -> Checkpoint:
    """The model at `path`: a folder in the hub's layout, a hub cache's folder, or a .gguf file.

    Every file is checked here, before any tensor is placed. Raises ModelNotFound, ModelFilesError,
    ModelConfigError or UnsupportedModel, each with the file's name.
    """
    files = inspect_model(Path(path))
    return GgufCheckpoint(files) if files.kind == "gguf" else SafetensorsCheckpoint(files)
