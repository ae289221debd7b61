"""From config.json to a spec: variants of old and new files, and complaints that name the field."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.errors import HeadraceError, ModelConfigError, UnsupportedModel
from engine.formats.checkpoint import open_checkpoint
from engine.models.registry import describe
from engine.models.spec import ModelSpec, RopeSpec
from tests.formats.checkpoints import LLAMA, write_single

QWEN2_MOE = {
    **LLAMA,
    "model_type": "qwen2_moe",
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": False,
}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "moe_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "norm_topk_prob": True,
}
QWEN3_5_MOE = {
    **{k: v for k, v in LLAMA.items() if k not in ("intermediate_size", "rope_theta")},
    "model_type": "qwen3_5_moe_text",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
ALL = {"llama": LLAMA, "qwen2": QWEN2_MOE, "qwen3": QWEN3_MOE, "qwen3_5": QWEN3_5_MOE}


def spec_of(
    folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None
) -> ModelSpec:
    return describe(open_checkpoint(write_single(folder, config, {}, generation)))


def rope_of(folder: Path, **changes: Any) -> RopeSpec:
    config = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    return spec_of(folder, {**config, **changes}).attention.rope


# --- case c81: the ways in which rope has been written --------------------------------------------


def test_linear_scaling_under_its_old_and_new_key_is_the_same(tmp_path: Path) -> None:
    old = rope_of(tmp_path / "a", rope_theta=1e4, rope_scaling={"type": "linear", "factor": 2.0})
    new = rope_of(
        tmp_path / "b", rope_theta=1e4, rope_scaling={"rope_type": "linear", "factor": 2.0}
    )
    both = rope_of(
        tmp_path / "c",
        rope_theta=1e4,
        rope_scaling={"type": "linear", "rope_type": "linear", "factor": 2.0},
    )
    assert old == new == both == RopeSpec(1e4, 8, "linear", 2.0)


def test_no_scaling_and_newer_files_load(tmp_path: Path) -> None:
    assert rope_of(tmp_path / "d", rope_theta=5e5, rope_scaling=None) == RopeSpec(5e5, 8)
    parameters = {"rope_type": "default", "rope_theta": 1000000}
    assert rope_of(tmp_path / "e", rope_parameters=parameters) == RopeSpec(1e6, 8)
    assert rope_of(tmp_path / "f", rope_parameters={"full_attention": parameters}) == RopeSpec(
        1e6, 8
    )
    assert rope_of(tmp_path / "g") == RopeSpec(10000.0, 8)


def test_yarn_may_leave_its_factor_to_two_lengths(tmp_path: Path) -> None:
    rope = rope_of(tmp_path, rope_scaling={"type": "yarn", "original_max_position_embeddings": 32})
    assert (rope.kind, rope.factor, rope.original_positions) == ("yarn", 4.0, 32)


@pytest.mark.parametrize("kind", ["unheard_of", "longrope", "dynamic"])
def test_an_unknown_rope_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"rope_type '{kind}'"):
        rope_of(tmp_path, rope_scaling={"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "linear"}, "factor is missing"),
        ({"rope_type": "linear", "factor": -1}, "factor is -1"),
        ({"rope_type": "linear", "factor": "2"}, "factor is '2'"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}, "high_freq_factor"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4},
            "high_freq_factor is 4",
        ),
        ({"rope_type": 7}, "rope_type is 7"),
        ({"rope_type": "yarn", "factor": 4.0, "mscale": "x"}, "mscale is 'x'"),
        ({"rope_type": "yarn"}, "factor is missing"),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0}, "rope_theta is 1"),
        ({"rope_type": "linear", "factor": 10**400}, "factor is 1"),
        (7, "rope_scaling is 7"),
    ],
)
def test_a_rope_field_at_fault_is_named(tmp_path: Path, scaling: Any, field: str) -> None:
    with pytest.raises(ModelConfigError, match=field):
        rope_of(tmp_path, rope_scaling=scaling)


# --- case c79: every end counts -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        (5, {"eos_token_id": [5, 6]}, (5, 6)),
        (5, {"eos_token_id": [6]}, (5, 6)),
        (5, {"eos_token_id": 6}, (5, 6)),
        (None, {"eos_token_id": [6, 7]}, (6, 7)),
        ([5, 6], {"eos_token_id": None}, (5, 6)),
        (None, None, ()),
        (0, {}, (0,)),
    ],
)
def test_ends_are_the_union_of_both_files(
    tmp_path: Path, config: Any, generation: Any, ends: tuple[int, ...]
) -> None:
    assert spec_of(tmp_path, {**LLAMA, "eos_token_id": config}, generation).end_tokens == ends


@pytest.mark.parametrize("value", ["</s>", [1, "x"], -1, True])
def test_an_end_that_is_no_token_is_named(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelConfigError, match=r"generation_config\.json.*eos_token_id"):
        spec_of(tmp_path, LLAMA, {"eos_token_id": value})


# --- fields ---------------------------------------------------------------------------------------

REQUIRED = {
    "llama": [
        "hidden_size",
        "num_hidden_layers",
        "vocab_size",
        "rms_norm_eps",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "model_type",
    ],
    "qwen2": ["num_experts_per_tok", "shared_expert_intermediate_size"],
    "qwen3": ["moe_intermediate_size", "num_experts_per_tok"],
    "qwen3_5": ["num_experts", "linear_num_key_heads", "linear_conv_kernel_dim"],
}


@pytest.mark.parametrize(
    ("family", "field"), [(name, field) for name, fields in REQUIRED.items() for field in fields]
)
def test_a_missing_field_is_named_with_its_file(tmp_path: Path, family: str, field: str) -> None:
    config = {k: v for k, v in ALL[family].items() if k != field}
    with pytest.raises(ModelConfigError, match=f"field {field} is missing") as caught:
        spec_of(tmp_path, config)
    assert str(tmp_path / "config.json") in caught.value.message


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("llama", {"hidden_size": "32"}, "hidden_size is '32'"),
        ("llama", {"hidden_size": True}, "hidden_size is True"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, above 4096"),
        ("qwen3", {"num_hidden_layers": 10**9}, "above 4096"),
        ("qwen3_5", {"num_hidden_layers": 10**9}, "above 4096"),
        ("llama", {"vocab_size": 10**30}, "vocab_size is 1"),
        ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, "does not divide 32"),
        ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ("llama", {"model_type": "gpt_oss"}, "model_type 'gpt_oss' is not supported"),
        ("llama", {"hidden_act": "gelu"}, "'gelu' is not supported"),
        ("llama", {"mlp_bias": True}, "mlp_bias is not supported"),
        ("qwen3", {"use_sliding_window": True}, "use_sliding_window is not supported"),
        ("qwen3", {"num_experts_per_tok": 5}, "more than the 4 experts"),
        ("qwen3", {"mlp_only_layers": "1"}, "mlp_only_layers is '1'"),
        ("qwen3_5", {"linear_num_value_heads": 3}, "does not divide 3"),
        ("qwen3_5", {"layer_types": ["full_attention"]}, "names 1 layers of 4"),
        ("qwen3_5", {"layer_types": ["sliding_attention"] * 4}, "'sliding_attention'"),
        ("qwen3_5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is 1"),
    ],
)
def test_a_value_at_fault_is_named(
    tmp_path: Path, family: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises((ModelConfigError, UnsupportedModel), match=says) as caught:
        spec_of(tmp_path, {**ALL[family], **changes})
    error: HeadraceError = caught.value
    assert "config.json" in error.message


ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import sys
from pathlib import Path
from engine.formats.model_files import inspect_model
from engine.models.families import describe
for path in sys.argv[1:]:
    files = inspect_model(Path(path))
    print(describe(files).family, files.quantisation())
sys.exit(bool({"torch", "numpy"} & set(sys.modules)))
"""


def test_the_app_and_the_server_describe_models_without_torch(tmp_path: Path) -> None:
    folders = [write_single(tmp_path / name, config, {}) for name, config in ALL.items()]
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, folders)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split("\n")[:-1] == [
        "llama None",
        "qwen2_moe None",
        "qwen3_moe None",
        "qwen3_5_moe None",
    ]


def test_qwen_says_which_layers_are_dense(tmp_path: Path) -> None:
    config = {**QWEN2_MOE, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    spec = spec_of(tmp_path / "a", config)
    assert spec.moe_layers == (1, 5)
    assert spec.dense_intermediate == 48
    dense = spec_of(tmp_path / "b", {**QWEN3_MOE, "mlp_only_layers": [0, 1]})
    assert dense.moe is None
    all_sparse = {k: v for k, v in QWEN3_MOE.items() if k != "intermediate_size"}
    assert spec_of(tmp_path / "c", all_sparse).moe_layers == (0, 1)


def test_a_multimodal_config_gives_its_text_tower(tmp_path: Path) -> None:
    plain = spec_of(tmp_path / "a", QWEN3_5_MOE)
    text = dict(QWEN3_5_MOE)
    nested = {
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "vision_config": {},
        "tie_word_embeddings": False,
    }
    assert spec_of(tmp_path / "b", nested) == plain
    assert plain.recurrent_layers == (0, 1, 2)
    assert plain.attention_layers == (3,)
    assert plain.attention.rope == RopeSpec(1e7, 4)
    assert plain.norm_plus_one
    del text["hidden_size"]
    with pytest.raises(ModelConfigError, match="text_config: field hidden_size"):
        spec_of(tmp_path / "c", nested)
