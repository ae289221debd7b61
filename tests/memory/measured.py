"""The machine and the model of the committed GPU results, as the estimate sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.memory.model_facts import ModelFacts
from engine.memory.pc import Gpu, Pc, Rate
from engine.models.facts import facts_of_config

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def result(name: str) -> dict[str, Any]:
    return dict(json.loads((RESULTS / f"{name}.json").read_bytes()))


def rows(name: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in result(name)["rows"]}


def qwen35_35b() -> ModelFacts:
    """The shape that gpu-xeon-16-decode.json was measured with."""
    text = {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "vocab_size": 151936,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "rms_norm_eps": 1e-6,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 262144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
    }
    kept = ["lm_head", "*mlp.gate", "*self_attn*", "*linear_attn*", "*shared_expert_gate"]
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": kept}
    config = {
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "tie_word_embeddings": False,
        "quantization_config": quantised,
    }
    return facts_of_config(config, "config.json")


def h200() -> Pc:
    """As NVML describes it, with the link of the measured run."""
    machine = result("gpu-xeon-16-decode")["machine"]
    gpu = Gpu("NVIDIA H200", 150 << 30, 149 << 30, Rate(4.8e12, "by its clock"), 989e12, (5, 16))
    host, link = Rate(105e9, "", measured=True), Rate(machine["link"] * 1e9, "", measured=True)
    return Pc(machine["ram_bytes"], machine["ram_bytes"], 16, host, gpu, link)
