"""The header reader against the format's own writer, and against files that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import ModelFilesError
from engine.formats.safetensors_header import read_header


def handmade(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def entry(begin: int, end: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_reads_what_the_format_s_own_library_writes(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "b": torch.ones(5, dtype=torch.bfloat16),
        "c": torch.zeros(3, dtype=torch.uint8),
        "d": torch.zeros(2, 2).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 4),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_header(path)
    assert header.keys() == tensors.keys()
    raw = path.read_bytes()
    for name, tensor in tensors.items():
        info = header[name]
        assert (info.dtype, info.shape) == (str(tensor.dtype)[6:], tuple(tensor.shape))
        stored = raw[info.offset : info.offset + info.nbytes]
        assert stored == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("header", "data", "says"),
    [
        (b"{", 0, "not JSON"),
        (b"\xff\xfe", 0, "not JSON"),
        (b"[1]", 0, "not a JSON object"),
        (b"[" * 50_000, 0, "not JSON"),
        ({"a": 7}, 0, "tensor a"),
        ({"a": entry(0, 4, [1], "F31")}, 4, "F31"),
        ({"a": entry(0, 4, [-1])}, 4, "shape"),
        ({"a": entry(0, 4, [True])}, 4, "shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4, "data_offsets"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}, 4, "data_offsets"),
        ({"a": entry(0, 8, [1])}, 8, "takes 4 bytes"),
        ({"a": entry(4, 0, [1])}, 8, "takes 4 bytes"),
        ({"a": entry(0, 4 * 10**15, [10**15])}, 16, "truncated"),
        ({"a": entry(0, 8, [2]), "b": entry(4, 12, [2])}, 12, "b overlaps"),
        ({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, 12, "4 bytes before tensor b"),
        ({"a": entry(0, 4, [1])}, 8, "4 bytes after"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, header: Any, data: int, says: str) -> None:
    path = handmade(tmp_path / "x.safetensors", header, bytes(data))
    with pytest.raises(ModelFilesError, match=says) as caught:
        read_header(path)
    assert str(path) in caught.value.message


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry(0, 4, [1]))
    raw = f'{{"a": {one}, "a": {one}}}'.encode()
    with pytest.raises(ModelFilesError, match="'a' appears twice"):
        read_header(handmade(tmp_path / "x.safetensors", raw, bytes(4)))


@pytest.mark.parametrize("content", [b"", b"\x01\x02", b"\xff" * 8, b"\x00\x00\x10" + bytes(20)])
def test_short_and_garbage_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFilesError, match=r"x\.safetensors"):
        read_header(path)
