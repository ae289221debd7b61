"""The GGUF reader: real layouts, and files that lie."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from engine.formats.gguf import GgufFile
from engine.formats.gguf_blocks import GgufError, dequantise
from tests.formats.gguf_writer import write_gguf

RNG = np.random.default_rng(7)


def f16(raw: bytes) -> float:
    return float(np.frombuffer(raw, "<f2")[0])


def random_blocks(count: int, size: int, halves: tuple[int, ...]) -> bytes:
    """Random block bytes with finite float16 numbers at the offsets `halves`."""
    blocks = RNG.integers(0, 256, (count, size), dtype=np.uint8)
    for at in halves:
        numbers = RNG.uniform(-2, 2, count).astype("<f2")
        blocks[:, at : at + 2] = numbers.view(np.uint8).reshape(count, 2)
    return blocks.tobytes()


def scalar_q4_0(b: bytes) -> list[float]:
    codes = [x & 15 for x in b[2:]] + [x >> 4 for x in b[2:]]
    return [f16(b[:2]) * (c - 8) for c in codes]


def scalar_q4_1(b: bytes) -> list[float]:
    codes = [x & 15 for x in b[4:]] + [x >> 4 for x in b[4:]]
    return [f16(b[:2]) * c + f16(b[2:4]) for c in codes]


def scalar_q8_0(b: bytes) -> list[float]:
    return [f16(b[:2]) * c for c in struct.unpack("32b", b[2:])]


def scalar_q4_k(b: bytes) -> list[float]:
    packed, codes, out = b[4:16], b[16:], []
    for group in range(8):
        if group < 4:
            scale, least = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | ((packed[group - 4] >> 6) << 4)
            least = (packed[group + 4] >> 4) | ((packed[group] >> 6) << 4)
        for i in range(32):
            byte = codes[group // 2 * 32 + i]
            code = byte >> 4 if group % 2 else byte & 15
            out.append(f16(b[:2]) * scale * code - f16(b[2:4]) * least)
    return out


def scalar_q6_k(b: bytes) -> list[float]:
    scales, d = struct.unpack("16b", b[192:208]), f16(b[208:210])
    out = []
    for i in range(256):
        half, run, column = i // 128, i % 128 // 32, i % 32
        low = b[half * 64 + run % 2 * 32 + column]
        low = low >> 4 if run >= 2 else low & 15
        high = (b[128 + half * 32 + column] >> (2 * run)) & 3
        out.append(d * scales[i // 16] * ((low | high << 4) - 32))
    return out


LAYOUTS = {
    "Q4_0": (18, (0,), scalar_q4_0),
    "Q4_1": (20, (0, 2), scalar_q4_1),
    "Q8_0": (34, (0,), scalar_q8_0),
    "Q4_K": (144, (0, 2), scalar_q4_k),
    "Q6_K": (210, (208,), scalar_q6_k),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_blocks_match_a_scalar_reading(kind: str) -> None:
    size, halves, scalar = LAYOUTS[kind]
    raw = random_blocks(5, size, halves)
    expected = [x for i in range(5) for x in scalar(raw[i * size : (i + 1) * size])]
    got = dequantise(np.frombuffer(raw, np.uint8), kind)
    np.testing.assert_allclose(got, np.array(expected), rtol=1e-5, atol=1e-5)


def test_plain_types() -> None:
    values = np.array([0.5, -3.0, 2.0, 1.0], np.float32)
    raw = values.tobytes()
    assert np.array_equal(dequantise(np.frombuffer(raw, np.uint8), "F32"), values)
    half = np.frombuffer(values.astype("<f2").tobytes(), np.uint8)
    assert np.array_equal(dequantise(half, "F16"), values)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    assert np.array_equal(dequantise(np.frombuffer(upper.tobytes(), np.uint8), "BF16"), values)


def sample(path: Path) -> bytes:
    write_gguf(
        path,
        {"general.architecture": "llama", "llama.block_count": 2, "tokens": ["a", "é"]},
        {
            "w": ("Q4_0", (3, 32), random_blocks(3, 18, (0,))),
            "n": ("F32", (2, 2), np.arange(4, dtype="<f4").tobytes()),
        },
    )
    return path.read_bytes()


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    sample(path)
    file = GgufFile(path)
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 2
    assert file.metadata["tokens"] == ["a", "é"]
    assert file.tensors["w"].shape == (3, 32)
    assert file.tensor("w").shape == (3, 32)
    assert file.tensor("n").tolist() == [[0.0, 1.0], [2.0, 3.0]]
    with pytest.raises(GgufError, match="tensor x"):
        file.tensor("x")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = sample(tmp_path / "a.gguf")
    # The last bytes pad the last tensor, so only cuts before it lose anything.
    for length in range(len(whole) - 16):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        with pytest.raises(GgufError, match="cut.gguf"):
            GgufFile(path)


def test_garbage_never_escapes_as_another_error(tmp_path: Path) -> None:
    whole = sample(tmp_path / "a.gguf")
    path = tmp_path / "bad.gguf"
    for _ in range(400):
        data = bytearray(whole)
        for at in RNG.integers(4, len(whole), 3):
            data[at] = int(RNG.integers(0, 256))
        path.write_bytes(bytes(data))
        try:
            file = GgufFile(path)
            for name in file.tensors:
                file.tensor(name)
        except GgufError as error:
            assert "bad.gguf" in str(error)


def patched(tmp_path: Path, at: int, value: bytes) -> Path:
    data = bytearray(sample(tmp_path / "a.gguf"))
    data[at : at + len(value)] = value
    path = tmp_path / "bad.gguf"
    path.write_bytes(bytes(data))
    return path


def test_lying_headers_name_the_field(tmp_path: Path) -> None:
    huge = struct.pack("<Q", 1 << 62)
    cases = [
        (0, b"GGML", "magic"),
        (4, struct.pack("<I", 9), "version"),
        (8, huge, "tensor count"),
        (16, huge, "metadata count"),
        (24, huge, "metadata key 0"),
    ]
    for at, value, field in cases:
        with pytest.raises(GgufError, match=field):
            GgufFile(patched(tmp_path, at, value))
    name = sample(tmp_path / "a.gguf").index(struct.pack("<Q", 1) + b"w") + 9
    with pytest.raises(GgufError, match="tensor w"):
        GgufFile(patched(tmp_path, name + 12, huge))  # second extent
    with pytest.raises(GgufError, match="tensor w: tensor type 99"):
        GgufFile(patched(tmp_path, name + 20, struct.pack("<I", 99)))
    with pytest.raises(GgufError, match="past the end"):
        GgufFile(patched(tmp_path, name + 24, struct.pack("<Q", 1 << 40)))
