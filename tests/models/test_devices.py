"""No operation mixes devices: found without a GPU, on the torch device that has no data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.formats import nvfp4
from engine.formats.checkpoint import open_checkpoint
from engine.models.registry import build_model, describe
from tests.formats.checkpoints import LLAMA, llama_tensors, write_single
from tests.models.test_describe import QWEN3_5_MOE

META = torch.device("meta")


def hybrid_tensors() -> dict[str, Tensor]:
    """The dense part of QWEN3_5_MOE, matrices in NVFP4."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (40, 32),
        "model.norm": (32,),
        "lm_head": (40, 32),
    }
    for i in range(4):
        base = f"model.layers.{i}"
        shapes |= {f"{base}.input_layernorm": (32,), f"{base}.post_attention_layernorm": (32,)}
        shapes |= {f"{base}.mlp.gate": (4, 32), f"{base}.mlp.shared_expert_gate": (1, 32)}
        for name, shape in (("gate", (16, 32)), ("up", (16, 32)), ("down", (32, 16))):
            shapes[f"{base}.mlp.shared_expert.{name}_proj"] = shape
        if i < 3:
            mixer = {"in_proj_qkv": 64, "in_proj_z": 32, "in_proj_b": 4, "in_proj_a": 4}
            shapes |= {f"{base}.linear_attn.{n}": (rows, 32) for n, rows in mixer.items()}
            shapes |= {f"{base}.linear_attn.out_proj": (32, 32), f"{base}.linear_attn.norm": (8,)}
            shapes[f"{base}.linear_attn.conv1d"] = (64, 1, 4)
        else:
            attention = {"q_proj": (128, 32), "k_proj": (32, 32), "v_proj": (32, 32)}
            attention |= {"o_proj": (32, 64), "q_norm": (16,), "k_norm": (16,)}
            shapes |= {f"{base}.self_attn.{n}": shape for n, shape in attention.items()}
    tensors = {f"model.layers.{i}.linear_attn.{n}": torch.ones(4)
               for i in range(3) for n in ("A_log", "dt_bias")}  # fmt: skip
    for name, shape in shapes.items():
        weight = torch.randn(shape)
        if len(shape) != 2 or name.endswith("mlp.gate"):
            tensors[f"{name}.weight"] = weight
            continue
        packed, scale, scale_2 = nvfp4.quantise(weight)
        tensors |= {f"{name}.weight": packed, f"{name}.weight_scale": scale}
        tensors[f"{name}.weight_scale_2"] = scale_2
    return tensors


def no_experts(layer: int, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int) -> Tensor:
    assert {t.device for t in (x, ids)} == {META}
    assert weights is None, "the rows of the routes are asked for"
    return x.new_zeros((*ids.shape, x.shape[1]), dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "qwen3_5_moe"])
def test_a_step_stays_on_its_device(tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    config: dict[str, Any] = LLAMA
    tensors = llama_tensors()
    if family != "llama":
        scheme = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
        config, tensors = {**QWEN3_5_MOE, "quantization_config": scheme}, hybrid_tensors()
    checkpoint = open_checkpoint(write_single(tmp_path, config, tensors))
    spec = describe(checkpoint)
    model = build_model(checkpoint, spec, META, dtype, no_experts)
    kv = KvPages(spec, 8, 4, META, dtype)
    states = StatePool(spec, 3, META, dtype) if spec.recurrent_layers else None
    pages = torch.arange(4, device=META)
    batch = Batch(
        torch.zeros(8, dtype=torch.int64, device=META),
        torch.arange(8, device=META),
        (
            SequenceSlice(0, 5, 0, pages, 0),
            SequenceSlice(5, 1, 9, pages, 1),
            SequenceSlice(6, 2, 3, pages, 2),
        ),
        torch.arange(3, device=META),
    )
    logits = model.forward(batch, kv, states)
    assert (logits.device, logits.dtype, logits.shape) == (META, torch.float32, (3, 40))
