"""Tiny checkpoints in the hub's layout, written with the format's own library."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, HEADS, KV_HEADS, INNER, VOCAB, LAYERS = 32, 4, 2, 48, 40, 2

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def llama_tensors(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    kv = HIDDEN * KV_HEADS // HEADS
    tensors = {
        "model.embed_tokens.weight": random(VOCAB, HIDDEN),
        "model.norm.weight": random(HIDDEN) + 1,
        "lm_head.weight": random(VOCAB, HIDDEN),
    }
    for i in range(LAYERS):
        base = f"model.layers.{i}"
        tensors |= {
            f"{base}.input_layernorm.weight": random(HIDDEN) + 1,
            f"{base}.post_attention_layernorm.weight": random(HIDDEN) + 1,
            f"{base}.self_attn.q_proj.weight": random(HIDDEN, HIDDEN),
            f"{base}.self_attn.k_proj.weight": random(kv, HIDDEN),
            f"{base}.self_attn.v_proj.weight": random(kv, HIDDEN),
            f"{base}.self_attn.o_proj.weight": random(HIDDEN, HIDDEN),
            f"{base}.mlp.gate_proj.weight": random(INNER, HIDDEN),
            f"{base}.mlp.up_proj.weight": random(INNER, HIDDEN),
            f"{base}.mlp.down_proj.weight": random(HIDDEN, INNER),
        }
    return tensors


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_single(
    folder: Path,
    config: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
    generation: dict[str, Any] | None = None,
) -> Path:
    """A folder with config.json and one model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", LLAMA if config is None else config)
    if generation is not None:
        write_json(folder / "generation_config.json", generation)
    save_file(llama_tensors() if tensors is None else tensors, folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, shards: int = 3) -> Path:
    """A folder with an index and `shards` files."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", LLAMA)
    tensors = llama_tensors()
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: t for i, (n, t) in enumerate(tensors.items()) if i % shards == shard}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder


REVISION = "0123456789abcdef0123456789abcdef01234567"


def write_hub_cache(root: Path, name: str = "acme/tiny") -> Path:
    """A hub cache with one model, its files links into blobs/. Returns models--org--name."""
    plain = write_sharded(root / "plain")
    repository = root / "hub" / ("models--" + name.replace("/", "--"))
    snapshot = repository / "snapshots" / REVISION
    blobs = repository / "blobs"
    for folder in (snapshot, blobs, repository / "refs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    for file in sorted(plain.iterdir()):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blobs / digest)
        (snapshot / file.name).symlink_to(Path("../../blobs") / digest)
    plain.rmdir()
    return repository
