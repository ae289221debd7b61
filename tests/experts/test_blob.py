"""Blob layouts against sizes written out by hand, and the rules of alignment for all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ModelConfigError, UnsupportedModel
from engine.formats.blob import BIAS_TYPES, FORMATS, ITEM_BYTES, blob_spec


def test_nvfp4_of_qwen_has_the_size_that_was_measured() -> None:
    # Three matrices of 512 x 2048 at 0.5625 byte a weight, three globals: 1.77 MB.
    spec = blob_spec("nvfp4", 2048, 512)
    names = [part.name for part in spec.parts]
    assert names == [
        "gate_up.weight", "gate_up.scale", "down.weight", "down.scale",
        "gate_up.scale_2", "down.scale_2",
    ]  # fmt: skip
    assert spec.part("gate_up.weight").shape == (1024, 1024)
    assert spec.part("gate_up.scale").offset == 1024 * 1024
    assert spec.part("down.weight").offset == 1024 * 1024 + 1024 * 128
    assert spec.part("gate_up.scale_2").shape == (2,)
    assert spec.nbytes == int(3 * 512 * 2048 * 0.5625) + 16 + 4
    assert spec.stride == 1773568


def test_fp8_keeps_the_blocks_of_gate_and_up_apart() -> None:
    # 192 rows are two rows of blocks, the second half full: up's blocks begin anew.
    spec = blob_spec("fp8_block", 256, 192)
    assert spec.part("gate_up.weight").shape == (384, 256)
    assert spec.part("gate_up.scale").shape == (2, 2, 2)
    assert spec.part("down.scale").shape == (1, 2, 2)


def test_a_layer_can_mix_formats() -> None:
    spec = blob_spec("nvfp4", 64, 32, "bfloat16")
    assert spec.part("down.weight").dtype == "bfloat16"
    with pytest.raises(KeyError, match=r"down\.scale"):
        spec.part("down.scale")


def test_biases_follow_their_matrix() -> None:
    # gpt-oss: 32 columns are 16 bytes of codes and one of scale; a bias for each row.
    spec = blob_spec("mxfp4", 64, 32, bias="bfloat16")
    names = [part.name for part in spec.parts]
    assert names == [f"{m}.{p}" for m in ("gate_up", "down") for p in ("weight", "scale", "bias")]
    assert spec.part("gate_up.bias").shape == (64,)
    assert spec.part("gate_up.bias").offset == 64 * 32 + 64 * 2
    assert spec.part("down.weight").offset == 64 * 32 + 64 * 2 + 64 * 2
    assert spec.part("down.bias").shape == (64,)
    with pytest.raises(UnsupportedModel, match="biases in float16"):
        blob_spec("mxfp4", 64, 32, bias="float16")


@given(
    st.sampled_from(FORMATS),
    st.sampled_from(FORMATS),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from((None, *BIAS_TYPES)),
)
def test_parts_are_aligned_and_do_not_overlap(
    gate_up: str, down: str, h: int, i: int, bias: str | None
) -> None:
    spec = blob_spec(gate_up, 32 * h, 32 * i, down, bias)
    end = 0
    for part in spec.parts:
        assert part.offset % 16 == 0
        assert end <= part.offset < end + 16
        assert part.stride == tuple(math.prod(part.shape[k + 1 :]) for k in range(len(part.shape)))
        assert part.nbytes == math.prod(part.shape) * ITEM_BYTES[part.dtype]
        end = part.offset + part.nbytes
    assert spec.nbytes == end
    assert spec.stride % 4096 == 0
    assert 0 <= spec.stride - end < 4096


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="q4_k"):
        blob_spec("q4_k", 64, 64)
    with pytest.raises(ModelConfigError, match="72"):
        blob_spec("nvfp4", 72, 64)
    with pytest.raises(ModelConfigError, match="80"):
        blob_spec("mxfp4", 64, 80)
    with pytest.raises(ModelConfigError, match="0 x 64"):
        blob_spec("float32", 64, 0)
