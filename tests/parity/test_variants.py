"""The same model stored in other ways gives the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import ModelConfigError, ModelFilesError, UnsupportedModel
from engine.formats.checkpoint import open_checkpoint
from engine.kernels.dequantise import dequantise
from engine.kernels.linear import embedding
from engine.models.loader import DenseLoader, keeps_blocks
from engine.models.registry import describe, family_of
from tests.formats.gguf_writer import write_gguf
from tests.parity import variants
from tests.parity.running import Runner, Sequence, relative_error
from tests.parity.tiny import (
    VOCAB,
    llama,
    load,
    logits_of,
    multimodal,
    prompt,
    qwen2_moe,
    qwen3_5_moe,
    qwen3_moe,
    random_model,
    save,
)

TOLERANCE = 1e-4
TOKENS = prompt(100)


def engine_logits(folder: Path) -> Tensor:
    return Runner(folder, rows=1).prefill(Sequence(0), TOKENS, 64)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    folder = save(random_model(qwen3_5_moe()), tmp_path_factory.mktemp("hybrid") / "model")
    return folder, engine_logits(folder)


@pytest.mark.parametrize("family", [qwen3_5_moe, qwen2_moe])
@pytest.mark.parametrize("scheme", ["nvfp4", "fp8"])
def test_quantised_weights_equal_what_they_stand_for(
    tmp_path: Path, family: Any, scheme: str
) -> None:
    # Larger than one block of 128, so that a wrong block order shows.
    wide = {"hidden_size": 160, "moe_intermediate_size": 144, "num_experts": 4}
    folder = save(random_model(family(**wide)), tmp_path / "model")
    if scheme == "nvfp4":
        quantise, config = variants.quantise_nvfp4, variants.NVFP4
    else:
        quantise, config = variants.quantise_fp8, variants.FP8
    stored = variants.quantised(folder, tmp_path / "small", quantise, config)
    expected = logits_of(load(tmp_path / "small-plain"), TOKENS)
    assert relative_error(engine_logits(stored), expected) <= TOLERANCE
    # Rounding the weights does change the logits: the reference is not the original model.
    assert relative_error(engine_logits(folder), expected) > 10 * TOLERANCE
    half = Runner(stored, rows=1).model.dense_bytes / Runner(folder, rows=1).model.dense_bytes
    assert half < (0.3 if scheme == "nvfp4" else 0.45)


def test_fused_experts_are_the_same_experts(hybrid: tuple[Path, Tensor], tmp_path: Path) -> None:
    folder, expected = hybrid
    assert torch.equal(engine_logits(variants.fused(folder, tmp_path / "fused")), expected)


def test_the_text_tower_of_a_multimodal_model_is_read_and_the_rest_skipped(tmp_path: Path) -> None:
    model = random_model(multimodal())
    folder = save(model, tmp_path / "model")
    config, tensors = variants.read(folder)
    assert any(name.startswith("model.visual.") for name in tensors)
    # What the hub's files hold besides, and transformers does not write.
    tensors |= {"mtp.fc.weight": torch.randn(64, 128), "mtp.norm.weight": torch.randn(64)}
    whole = variants.write(tmp_path / "whole", config, tensors)
    vision = sum(name.startswith("model.visual.") for name in tensors)
    spec = describe(open_checkpoint(whole))
    assert spec.end_tokens == (5,)
    assert spec.notes == (
        f"{vision} tensors of the vision tower (model.visual.*) are skipped: text only",
        "2 tensors of multi-token prediction (mtp.*) are skipped: text only",
    )
    expected = logits_of(model, TOKENS)
    assert relative_error(engine_logits(whole), expected) <= TOLERANCE
    fused = variants.fused(whole, tmp_path / "fused")
    assert relative_error(engine_logits(fused), expected) <= TOLERANCE


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.5},
        {**LLAMA3, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
        | {"mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 20.0, "beta_slow": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
    ],
)
def test_scaled_rotations_equal_the_reference(tmp_path: Path, rope: dict[str, Any]) -> None:
    config = llama(num_hidden_layers=2, rope_parameters={"rope_theta": 5000.0, **rope})
    model = random_model(config)
    expected = logits_of(model, TOKENS)
    assert relative_error(engine_logits(save(model, tmp_path)), expected) <= TOLERANCE
    plain = random_model(llama(num_hidden_layers=2, rope_parameters={"rope_theta": 5000.0}))
    assert relative_error(logits_of(plain, TOKENS), expected) > 10 * TOLERANCE


@pytest.mark.parametrize(
    "config",
    [
        llama(attention_bias=False, tie_word_embeddings=True, num_key_value_heads=4),
        llama(num_key_value_heads=1, eos_token_id=[3, 4]),
        qwen2_moe(mlp_only_layers=[], decoder_sparse_step=2, norm_topk_prob=True, qkv_bias=False),
        qwen3_moe(attention_bias=True, mlp_only_layers=[0, 2], norm_topk_prob=False),
        qwen3_5_moe(num_hidden_layers=2, layer_types=["full_attention", "linear_attention"]),
        qwen3_5_moe(linear_num_value_heads=2, linear_conv_kernel_dim=2, attention_bias=True),
    ],
)
def test_what_configs_may_say_otherwise(tmp_path: Path, config: Any) -> None:
    model = random_model(config)
    folder = save(model, tmp_path)
    assert relative_error(engine_logits(folder), logits_of(model, TOKENS)) <= TOLERANCE


# --- GGUF -----------------------------------------------------------------------------------------

BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module, _, kind = name.rpartition(".")
    if module in outer:
        return f"{outer[module]}.{kind}"
    _, _, layer, rest = module.split(".", 3)
    return f"blk.{layer}.{BLOCK_NAMES[rest]}.{kind}"


def interleaved(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Row order of q and k in GGUF: the two halves of each head, row by row in turn."""
    size = len(rows) // heads
    order = [
        h * size + i + half * size // 2
        for h in range(heads)
        for i in range(size // 2)
        for half in range(2)
    ]
    return rows[order]


def q8_0(weight: Tensor) -> tuple[np.ndarray[Any, Any], Tensor]:
    """Rows of Q8_0 blocks, uint8 [out, in / 32 * 34], and the weight that they stand for."""
    groups = weight.reshape(-1, 32).numpy()
    scale = (np.abs(groups).max(1, keepdims=True) / 127).astype("<f2")
    codes = np.round(groups / scale.astype(np.float32)).astype(np.int8)
    raw = np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)
    plain = torch.from_numpy(scale.astype(np.float32) * codes).reshape(weight.shape)
    return raw.reshape(len(weight), -1), plain


def write_llama_gguf(
    folder: Path, target: Path, tensors: dict[str, Tensor] | None = None, **more: Any
) -> tuple[Path, Path]:
    """A llama checkpoint as GGUF (Q8_0 where rows allow it), and as a folder rounded likewise."""
    config, weights = variants.read(folder)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    stored: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    rounded = {}
    for name, weight in weights.items():
        if weight.dim() == 2 and weight.shape[1] % 32 == 0:
            kind, (raw, rounded[name]) = "Q8_0", q8_0(weight)
        else:
            kind, raw, rounded[name] = "F32", weight.numpy().reshape(len(weight), -1), weight
        if name.split(".")[-2] in heads:
            raw = interleaved(raw, heads[name.split(".")[-2]])
        stored[gguf_name(name)] = (kind, tuple(weight.shape), raw.tobytes())
    for name, weight in (tensors or {}).items():
        stored[name] = ("F32", tuple(weight.shape), weight.numpy().tobytes())
    meta: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": heads["q_proj"],
        "llama.attention.head_count_kv": heads["k_proj"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "llama.rope.dimension_count": config["head_dim"],
        "tokenizer.ggml.eos_token_id": 7,
        "tokenizer.ggml.eot_token_id": 9,
        **more,
    }
    target.mkdir()
    write_gguf(target / "model.gguf", meta, stored)
    return target / "model.gguf", variants.write(target / "rounded", config, rounded)


@pytest.mark.parametrize(
    "config", [llama(), llama(attention_bias=False, tie_word_embeddings=True, head_dim=16)]
)
def test_a_gguf_file_is_the_same_model(tmp_path: Path, config: Any) -> None:
    folder = save(random_model(config), tmp_path / "model")
    path, rounded = write_llama_gguf(folder, tmp_path / "gguf")
    spec = describe(open_checkpoint(path))
    assert (spec.end_tokens, spec.vocab_size) == ((7, 9), VOCAB)
    expected = logits_of(load(rounded), TOKENS)
    assert relative_error(engine_logits(path), expected) <= TOLERANCE
    assert relative_error(engine_logits(folder), expected) > 10 * TOLERANCE


def test_blocks_are_held_as_stored_where_a_kernel_multiplies_with_them(tmp_path: Path) -> None:
    folder = save(random_model(llama(hidden_size=64, num_hidden_layers=1)), tmp_path / "model")
    path, _ = write_llama_gguf(folder, tmp_path / "gguf")
    checkpoint = open_checkpoint(path)
    view = family_of(checkpoint).view(checkpoint)
    cpu = torch.device("cpu")
    loader = DenseLoader(view, cpu, torch.float32)
    # Rows of q change places with the file's, rows of the embedding are looked up.
    for base in ("model.layers.0.self_attn.q_proj", "model.embed_tokens"):
        plain = view.read(f"{base}.weight")
        held = loader.matrix(base, *plain.shape)
        assert held.format == ("q8_0" if keeps_blocks(cpu) else "float32")
        assert torch.equal(dequantise(held, torch.float32), plain)
        tokens = torch.tensor([3, 0, 3, 17])
        assert torch.equal(embedding(tokens, held, torch.float32), plain[tokens])


def test_gguf_scalings_of_the_rotation(tmp_path: Path) -> None:
    linear = {"rope_theta": 5000.0, "rope_type": "linear", "factor": 4.0}
    folder = save(random_model(llama(rope_parameters=linear)), tmp_path / "linear")
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path, rounded = write_llama_gguf(folder, tmp_path / "a", **scaling)
    assert relative_error(engine_logits(path), logits_of(load(rounded), TOKENS)) <= TOLERANCE

    # llama3's scaling is stored as a divisor of each frequency.
    original = {"original_max_position_embeddings": 8192}
    meta = {"rope_theta": 500000.0, **LLAMA3, **original}
    model = random_model(llama(rope_parameters=meta))
    folder = save(model, tmp_path / "llama3")
    powers = torch.arange(0, 24, 2, dtype=torch.float32) / 24
    divisors = 500000.0**-powers / model.model.rotary_emb.inv_freq
    path, rounded = write_llama_gguf(folder, tmp_path / "b", {"rope_freqs.weight": divisors})
    assert describe(open_checkpoint(path)).attention.rope.kind == "llama3"
    assert relative_error(engine_logits(path), logits_of(load(rounded), TOKENS)) <= TOLERANCE
    path, _ = write_llama_gguf(folder, tmp_path / "c", {"rope_freqs.weight": divisors.flip(0)})
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight"):
        describe(open_checkpoint(path))


def test_what_a_gguf_file_lacks_is_named(tmp_path: Path) -> None:
    folder = save(random_model(llama(num_hidden_layers=1)), tmp_path / "model")
    for number, (changes, error, says) in enumerate(
        [
            ({"llama.block_count": "three"}, ModelConfigError, "field llama.block_count"),
            ({"llama.expert_count": 8}, UnsupportedModel, "llama with experts"),
            ({"general.architecture": "qwen3moe"}, UnsupportedModel, "'qwen3moe'"),
            (
                {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0},
                UnsupportedModel,
                "'longrope'",
            ),
        ]
    ):
        path, _ = write_llama_gguf(folder, tmp_path / str(number), **changes)
        with pytest.raises(error, match=says) as caught:
            describe(open_checkpoint(path))
        assert str(path) in str(caught.value)
    with pytest.raises(ModelFilesError, match=r"model\.layers\.1\..* is missing"):
        path, _ = write_llama_gguf(folder, tmp_path / "few", **{"llama.block_count": 5})
        engine_logits(path)
