"""A model's facts: from files exactly, from a configuration nearly, before there are files."""

from __future__ import annotations

import json

import pytest
import torch

from engine.errors import UnsupportedModel
from engine.experts.store import plan_layers, pool_needs
from engine.formats.checkpoint import open_checkpoint
from engine.formats.model_files import inspect_model
from engine.memory import budget
from engine.models.facts import facts_of_config, facts_of_files
from engine.models.registry import describe, expert_tensors
from engine.paths import demo_model
from engine.runtime.loading import _dense_bytes


def qwen3_30b() -> dict[str, object]:
    """config.json of Qwen/Qwen3-30B-A3B."""
    return {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def test_files_tell_what_the_runtime_will_hold() -> None:
    """The loader's own sum and the store's own plan, for the checkpoint that is always there."""
    facts = facts_of_files(inspect_model(demo_model()))
    checkpoint = open_checkpoint(demo_model())
    spec = describe(checkpoint)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        assert facts.dense(name) == _dense_bytes(checkpoint, dtype, torch.device("cpu"))
    plans = plan_layers(lambda layer: expert_tensors(spec, checkpoint, layer), spec.moe_layers)
    assert facts.pools == pool_needs(plans)
    assert facts.weight_bytes == inspect_model(demo_model()).nbytes


def test_a_config_implies_the_published_size() -> None:
    """The hub's index of Qwen/Qwen3-30B-A3B has total_size 61,064,245,248."""
    facts = facts_of_config(qwen3_30b(), "config.json")
    assert facts.weight_bytes == pytest.approx(61_064_245_248, rel=1e-4)
    assert facts.store == 48 * 128 * 3 * 2048 * 768 * 2
    assert facts.experts_read == facts.store * 8 // 128
    # 3.3 thousand million are activated, the embedding's 0.3 among them.
    assert facts.active_weights == pytest.approx(3.35e9 - 0.31e9, rel=0.02)


def test_a_config_and_its_files_agree() -> None:
    config = json.loads((demo_model() / "config.json").read_bytes())
    implied = facts_of_config(config, "config.json")
    exact = facts_of_files(inspect_model(demo_model()))
    assert implied.pools == exact.pools and implied.spec == exact.spec.__class__(
        **{**vars(exact.spec), "end_tokens": implied.spec.end_tokens, "notes": implied.spec.notes}
    )
    # The demo's embedding is quantised, which no config says: it is taken as plain.
    embedding = implied.spec.vocab_size * implied.spec.hidden
    assert implied.stored + embedding * 0.5625 == pytest.approx(exact.stored, rel=0.01)


def test_dense_weights_agree_with_the_solver_s_own_count() -> None:
    facts = facts_of_config(qwen3_30b(), "config.json")
    assert facts.dense("bfloat16") == budget.dense_bytes(facts.spec, "bfloat16")


@pytest.mark.parametrize(
    ("quantisation", "bytes_a_weight"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625),
    ],
)
def test_quantised_experts_and_projections_shrink(
    quantisation: dict[str, object], bytes_a_weight: float
) -> None:
    ignored = {"modules_to_not_convert": ["lm_head"], "ignore": ["lm_head", "*.mlp.gate"]}
    config = qwen3_30b() | {"quantization_config": quantisation | ignored}
    plain = facts_of_config(qwen3_30b(), "config.json")
    facts = facts_of_config(config, "config.json")
    assert facts.store == pytest.approx(plain.store / 2 * bytes_a_weight, rel=0.01)
    assert facts.plain == 2 * 151936 * 2048, "embedding and output layer stay as they are"
    assert facts.stored == pytest.approx((plain.plain - facts.plain) * bytes_a_weight, rel=0.01)
    assert facts.active_weights == pytest.approx(plain.active_weights, rel=0.01)


def test_a_format_that_is_not_read_is_refused_by_name() -> None:
    config = qwen3_30b() | {"quantization_config": {"quant_method": "awq"}}
    with pytest.raises(UnsupportedModel, match="'awq' is not supported"):
        facts_of_config(config, "config.json")
