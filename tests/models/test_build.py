"""Building a model: every tensor is there, has its shape, and belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import ModelFilesError, UnsupportedModel
from engine.formats.checkpoint import open_checkpoint
from engine.models.model import Model
from engine.models.registry import build_model, describe, expert_tensors
from tests.formats.checkpoints import LLAMA, llama_tensors, write_single
from tests.models.test_describe import QWEN3_MOE

CPU = torch.device("cpu")


def build(
    folder: Path, tensors: dict[str, Tensor], dtype: torch.dtype = torch.float32, **changes: Any
) -> Model:
    checkpoint = open_checkpoint(write_single(folder, {**LLAMA, **changes}, tensors))
    return build_model(checkpoint, describe(checkpoint), CPU, dtype, None)


def test_dense_bytes_are_those_of_the_tensors(tmp_path: Path) -> None:
    tensors = llama_tensors()
    heard: list[tuple[int, int]] = []
    checkpoint = open_checkpoint(write_single(tmp_path / "a", LLAMA, tensors))
    spec = describe(checkpoint)
    model = build_model(checkpoint, spec, CPU, torch.float32, None, lambda *n: heard.append(n))
    assert model.dense_bytes == sum(t.nbytes for t in tensors.values())
    assert heard == [(1, 2), (2, 2)]
    half = {name: t.to(torch.bfloat16) for name, t in tensors.items()}
    norms = sum(t.nbytes for t in half.values() if t.dim() == 1)
    stored = sum(t.nbytes for t in half.values())
    # Norms are kept in float32.
    assert build(tmp_path / "b", half, torch.bfloat16).dense_bytes == stored + norms


def test_tied_embeddings_are_counted_once(tmp_path: Path) -> None:
    tensors = llama_tensors()
    head = tensors.pop("lm_head.weight")
    rest = sum(t.nbytes for t in tensors.values())
    assert build(tmp_path / "a", tensors, tie_word_embeddings=True).dense_bytes == rest
    assert build(tmp_path / "b", tensors, tie_word_embeddings=None).dense_bytes == rest
    with pytest.raises(ModelFilesError, match=r"lm_head\.weight is missing"):
        build(tmp_path / "c", tensors, tie_word_embeddings=False)
    tensors["lm_head.weight"] = head
    assert build(tmp_path / "d", tensors, tie_word_embeddings=None).dense_bytes > rest


@pytest.mark.parametrize("name", list(llama_tensors())[:6])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = llama_tensors()
    del tensors[name]
    with pytest.raises(ModelFilesError, match=f"{name} is missing"):
        build(tmp_path, tensors)


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        ("model.layers.1.mlp.up_proj.weight", torch.zeros(48, 31), r"\[48, 31\].*\[48, 32\]"),
        ("model.norm.weight", torch.zeros(31), r"\[31\].*\[32\]"),
        ("model.norm.weight", torch.zeros(32, dtype=torch.int64), "int64"),
        ("model.layers.0.self_attn.q_proj.bias", torch.zeros(32), "there is no bias"),
        ("model.embed_tokens.weight", torch.zeros(41, 32), r"\[41, 32\].*\[40, 32\]"),
    ],
)
def test_a_wrong_tensor_is_named_with_its_file(
    tmp_path: Path, name: str, wrong: Tensor, says: str
) -> None:
    with pytest.raises(ModelFilesError, match=f"{name} .*{says}") as caught:
        build(tmp_path, {**llama_tensors(), name: wrong})
    assert str(tmp_path / "model.safetensors") in caught.value.message


def test_only_two_compute_dtypes_are_taken(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="float16"):
        build(tmp_path, llama_tensors(), torch.float16)


def test_tensors_that_belong_nowhere_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(tmp_path / "a", llama_tensors())
    assert not caplog.records
    strange = {
        "model.layers.7.mlp.up_proj.weight": torch.zeros(1),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
        "model.layers.0.self_attn.k_scale": torch.zeros(1),
        "model.layers.0.mlp.up_proj.input_scale": torch.zeros(1),
    }
    build(tmp_path / "b", {**llama_tensors(), **strange})
    assert "1 tensors belong to no layer: model.layers.7" in caplog.text


def expert_names(layer: int, expert: int) -> dict[str, Tensor]:
    base = f"model.layers.{layer}.mlp.experts.{expert}"
    torch.manual_seed(layer * 10 + expert)
    return {
        f"{base}.gate_proj.weight": torch.randn(16, 32),
        f"{base}.up_proj.weight": torch.randn(16, 32),
        f"{base}.down_proj.weight": torch.randn(32, 16),
    }


def test_experts_are_found_apart_and_fused(tmp_path: Path) -> None:
    apart = [expert_names(0, e) for e in range(4)]
    stacked = [torch.stack(tensors) for tensors in zip(*(e.values() for e in apart), strict=True)]
    gate, up, down = stacked
    fused = {
        "model.layers.0.mlp.experts.gate_up_proj": torch.cat([gate, up], dim=1),
        "model.layers.0.mlp.experts.down_proj": down,
    }
    one = {name: t for tensors in apart for name, t in tensors.items()}
    for number, tensors in enumerate((one, fused)):
        checkpoint = open_checkpoint(write_single(tmp_path / str(number), QWEN3_MOE, tensors))
        found = expert_tensors(describe(checkpoint), checkpoint, 0)
        assert len(found) == 4
        for e, expert in enumerate(found):
            assert torch.equal(expert.gate.parts["weight"], gate[e])
            assert torch.equal(expert.up.parts["weight"], up[e])
            assert torch.equal(expert.down.parts["weight"], down[e])
            assert (expert.up.format, expert.up.shape) == ("float32", (16, 32))


def test_experts_at_fault_are_named_before_any_is_read(tmp_path: Path) -> None:
    tensors = {name: t for e in range(4) for name, t in expert_names(0, e).items()}
    last = "model.layers.0.mlp.experts.3.down_proj.weight"
    for number, wrong in enumerate((None, torch.zeros(32, 15))):
        changed = {name: t for name, t in tensors.items() if name != last}
        if wrong is not None:
            changed[last] = wrong
        checkpoint = open_checkpoint(write_single(tmp_path / str(number), QWEN3_MOE, changed))
        with pytest.raises(ModelFilesError, match=last):
            expert_tensors(describe(checkpoint), checkpoint, 0)
    with pytest.raises(ValueError, match="no routed experts"):
        expert_tensors(describe(checkpoint), checkpoint, 7)
    fused = {"model.layers.0.mlp.experts.gate_up_proj": torch.zeros(4, 31, 32)}
    checkpoint = open_checkpoint(write_single(tmp_path / "fused", QWEN3_MOE, fused))
    with pytest.raises(ModelFilesError, match=r"gate_up_proj .*\[4, 32, 32\]"):
        expert_tensors(describe(checkpoint), checkpoint, 0)
