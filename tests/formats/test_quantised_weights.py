"""Stored formats: which one a tensor has, what is refused, and what the numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import ModelConfigError, ModelFilesError, UnsupportedModel
from engine.formats import nvfp4
from engine.formats.checkpoint import open_checkpoint
from engine.kernels.dequantise import dequantise, e4m3_to_float32, row_blocks
from engine.kernels.linear import embedding, linear
from tests.formats.checkpoints import LLAMA, write_json, write_single

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def open_with(folder: Path, tensors: dict[str, Tensor], quantisation: Any) -> Any:
    config = {**LLAMA, "quantization_config": quantisation}
    return open_checkpoint(write_single(folder, config, tensors))


def nvfp4_tensors(rows: int, columns: int) -> dict[str, Tensor]:
    torch.manual_seed(rows)
    packed, scale, scale_2 = nvfp4.quantise(torch.randn(rows, columns))
    return {"x.weight": packed, "x.weight_scale": scale, "x.weight_scale_2": scale_2}


def fp8_tensors(rows: int, columns: int) -> tuple[dict[str, Tensor], Tensor]:
    """Codes and block scales, and the weight they stand for, block by block in float64."""
    torch.manual_seed(rows)
    codes = (torch.randn(rows, columns) * 50).to(torch.float8_e4m3fn)
    scale = torch.rand(-(-rows // 128), -(-columns // 128)) + 0.5
    weight = codes.to(torch.float64)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            block = (slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128))
            weight[block] *= scale[i, j].to(torch.float64)
    return {"x.weight": codes, "x.weight_scale_inv": scale}, weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_plain_weights_keep_their_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5).to(dtype)
    weight = open_with(tmp_path, {"x.weight": tensor}, None).weight("x")
    assert weight.format == str(dtype)[6:]
    assert torch.equal(weight.parts["weight"], tensor)


def test_tensors_at_odd_offsets_are_read(tmp_path: Path) -> None:
    path = write_single(tmp_path, LLAMA, {})
    header = (
        b'{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},'
        b'"x.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[3,11]}}'
    )
    data = bytes(3) + torch.tensor([1.5, -2.0]).numpy().tobytes()
    raw = len(header).to_bytes(8, "little") + header + data
    (path / "model.safetensors").write_bytes(raw)
    assert open_checkpoint(path).weight("x").parts["weight"].tolist() == [[1.5, -2.0]]


@pytest.mark.parametrize("shape", [(3, 16), (40, 64), (300, 1040)])
def test_nvfp4_equals_the_definition(tmp_path: Path, shape: tuple[int, int]) -> None:
    tensors = nvfp4_tensors(*shape)
    weight = open_with(tmp_path, tensors, NVFP4).weight("x")
    assert (weight.format, weight.shape) == ("nvfp4", shape)
    plain = nvfp4.dequantise(*tensors.values())
    assert torch.equal(dequantise(weight, torch.float32), plain)
    assert torch.equal(dequantise(weight, torch.bfloat16), plain.to(torch.bfloat16))
    assert torch.equal(torch.cat(list(row_blocks(weight, torch.float32, 2048))), plain)
    tokens = torch.tensor([2, 0, 1, 2])
    assert torch.equal(embedding(tokens, weight, torch.float32), plain[tokens])
    for rows in (1, 30):
        x, bias = torch.randn(rows, shape[1]), torch.randn(shape[0])
        expected = x.double() @ plain.double().T + bias.double()
        assert torch.allclose(linear(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("shape", [(7, 32), (128, 128), (300, 200), (130, 257)])
def test_fp8_blocks_equal_the_definition(tmp_path: Path, shape: tuple[int, int]) -> None:
    tensors, exact = fp8_tensors(*shape)
    weight = open_with(tmp_path, tensors, FP8).weight("x")
    assert (weight.format, weight.shape) == ("fp8_block", shape)
    assert torch.equal(dequantise(weight, torch.float32), exact.to(torch.float32))
    blocks = list(row_blocks(weight, torch.float32, 1))
    assert torch.equal(torch.cat(blocks), exact.to(torch.float32))
    tokens = torch.tensor([shape[0] - 1, 0, 1])
    assert torch.equal(embedding(tokens, weight, torch.float32), exact[tokens].to(torch.float32))
    x = torch.randn(2, shape[1])
    expected = x.double() @ exact.T
    assert torch.allclose(linear(x, weight, None).double(), expected, rtol=1e-4, atol=1e-2)


def test_every_e4m3_code_has_its_value() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    expected = codes.to(torch.float32)
    assert torch.equal(e4m3_to_float32(codes).nan_to_num(-1), expected.nan_to_num(-1))


@pytest.mark.parametrize(
    ("quantisation", "says"),
    [
        ({"quant_method": "gptq", "bits": 4}, "'gptq'"),
        ({"quant_method": "mxfp4"}, "'mxfp4'"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "'FP8'"),
        ({"quant_method": "fp8"}, "weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [64, 64]}, "64"),
        ({"quant_algo": "NVFP4", "group_size": 32}, "group_size 32"),
    ],
)
def test_an_unknown_scheme_is_refused_by_name(
    tmp_path: Path, quantisation: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says) as caught:
        open_with(tmp_path, {}, quantisation)
    assert "config.json" in caught.value.message


def test_a_scheme_without_its_method_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="quant_method is missing"):
        open_with(tmp_path, {}, {"bits": 4})


def test_modelopt_s_own_file_is_read(tmp_path: Path) -> None:
    write_single(tmp_path, LLAMA, nvfp4_tensors(4, 32))
    write_json(
        tmp_path / "hf_quant_config.json",
        {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head", "*.gate"]}},
    )
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.quantisation is not None
    assert checkpoint.quantisation.ignores("model.layers.0.mlp.gate")
    assert not checkpoint.quantisation.ignores("model.layers.0.mlp.up_proj")
    assert checkpoint.weight("x").format == "nvfp4"


def test_scales_are_checked(tmp_path: Path) -> None:
    tensors = nvfp4_tensors(4, 32)
    for number, (name, wrong, says) in enumerate(
        [
            ("x.weight_scale", torch.zeros(4, 3).to(torch.float8_e4m3fn), "not \\[4, 2\\]"),
            ("x.weight_scale", torch.zeros(4, 2), "dtype float32"),
            ("x.weight_scale_2", torch.zeros(2), "not \\[\\]"),
        ]
    ):
        checkpoint = open_with(tmp_path / str(number), {**tensors, name: wrong}, NVFP4)
        with pytest.raises(ModelFilesError, match=f"{name} has .*{says}"):
            checkpoint.weight("x")
    del tensors["x.weight_scale_2"]
    with pytest.raises(ModelFilesError, match=r"x\.weight_scale_2 is missing"):
        open_with(tmp_path / "missing", tensors, NVFP4).weight("x")


def test_packed_weights_without_a_scheme_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="does not say how"):
        open_with(tmp_path / "a", nvfp4_tensors(4, 32), None).weight("x")
    codes = {"x.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn)}
    with pytest.raises(UnsupportedModel, match="only 128 x 128"):
        open_with(tmp_path / "b", codes, FP8).weight("x")
    with pytest.raises(UnsupportedModel, match="int32"):
        open_with(tmp_path / "c", {"x.weight": torch.zeros(2, 2, dtype=torch.int32)}, None).weight(
            "x"
        )
