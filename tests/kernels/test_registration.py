"""Which kernels answer for tensors on a GPU, and that no other machine imports Triton for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.kernels.gpu import (
    attention,
    delta_layer,
    embedding,
    experts,
    linear,
    places,
    pointwise,
    rotary,
    router,
)
from engine.kernels.registry import lookup

KERNELS = {
    "linear": linear.linear,
    "linears": linear.linears,
    "moe_experts": experts.moe_experts,
    "moe_expert_rows": experts.moe_expert_rows,
    "moe_combine": experts.moe_combine,
    "delta_decode": delta_layer.delta_decode,
    "delta_prefill": delta_layer.delta_prefill,
    "attention_tables": attention.attention_tables,
    "paged_attention": attention.paged_attention,
    "rotate_and_store": rotary.rotate_and_store,
    "norm_rotate_and_store": rotary.norm_rotate_and_store,
    "rotations": places.rotations,
    "decode_places": places.decode_places,
    "embedding": embedding.embedding,
    "rms_norm": pointwise.rms_norm,
    "add_rms_norm": pointwise.add_rms_norm,
    "gated_rms_norm": pointwise.gated_rms_norm,
    "swiglu": pointwise.swiglu,
    "route": router.route,
    "router_top_k": router.router_top_k,
}


@pytest.mark.parametrize("name", KERNELS)
def test_an_operation_has_its_kernel_on_a_gpu(name: str) -> None:
    assert lookup(name).kernel("cuda") is KERNELS[name]
    assert lookup(name).kernel("cpu") is not KERNELS[name]


def test_without_a_gpu_nothing_imports_triton() -> None:
    code = """
import sys, torch
import engine.models.registry
from engine.kernels.pointwise import rms_norm
rms_norm(torch.ones(1, 4), torch.ones(4), 1e-6)
sys.exit("triton" in sys.modules)
"""
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
