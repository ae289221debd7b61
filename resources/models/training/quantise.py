"""The shipped files: NVFP4 shards in the hub's qwen2_moe layout, and reading them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from settings import IM_END, SPECIAL_TOKENS
from student import Shape, Student
from tokenizers import Tokenizer
from torch import Tensor
from vocabulary import StudentVocabulary, TeacherVocabulary

from engine.formats import nvfp4

LARGEST_SHARD = 14_000_000
ATTENTION = ("q", "k", "v", "o")


def hub_names(shape: Shape) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Hub weight name -> (student parameter, index into it), without the `.weight` endings."""
    names: dict[str, tuple[str, tuple[int, ...]]] = {
        "model.embed_tokens.weight": ("embedding", ()),
        "model.norm.weight": ("final_norm", ()),
    }
    for i in range(shape.layers):
        base = f"model.layers.{i}"
        names[f"{base}.input_layernorm.weight"] = ("norm", (i,))
        names[f"{base}.post_attention_layernorm.weight"] = ("second_norm", (i,))
        for part in ATTENTION:
            names[f"{base}.self_attn.{part}_proj.weight"] = (part, (i,))
            if part != "o":
                names[f"{base}.self_attn.{part}_proj.bias"] = (f"{part}_bias", (i,))
        names[f"{base}.mlp.gate.weight"] = ("router", (i,))
        names[f"{base}.mlp.shared_expert_gate.weight"] = ("switch", (i,))
        for part in ("gate", "up", "down"):
            names[f"{base}.mlp.shared_expert.{part}_proj.weight"] = (f"shared_{part}", (i,))
            for e in range(shape.experts):
                names[f"{base}.mlp.experts.{e}.{part}_proj.weight"] = (part, (i, e))
    return names


QUANTISED_PARTS = (
    "embed_tokens.", "_proj.weight",
)  # fmt: skip


def config(shape: Shape, vocabulary: StudentVocabulary) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.dim,
        "intermediate_size": shape.shared_width,
        "moe_intermediate_size": shape.expert_width,
        "shared_expert_intermediate_size": shape.shared_width,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.active,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.base,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "router_aux_loss_coef": 0.01,
        "initializer_range": 0.02,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": vocabulary.im_start,
        "eos_token_id": vocabulary.im_end,
        "pad_token_id": vocabulary.im_end,
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": nvfp4.GROUP,
            "ignore": ["*.mlp.gate", "*.mlp.shared_expert_gate", "*norm*"],
        },
    }


@torch.no_grad()
def tensors(student: Student) -> dict[str, Tensor]:
    """Everything the shards hold, by hub name."""
    out: dict[str, Tensor] = {}
    for name, (parameter, index) in hub_names(student.shape).items():
        weight = student.p[parameter].detach().cpu()[index]
        if any(part in name for part in QUANTISED_PARTS):
            packed, scale, scale_2 = nvfp4.quantise(weight)
            out[name] = packed
            out[f"{name}_scale"] = scale
            out[f"{name}_scale_2"] = scale_2
        else:
            out[name] = weight.to(torch.bfloat16).contiguous()
    return out


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export(student: Student, vocabulary: StudentVocabulary, folder: Path) -> None:
    """Write the model and its tokenizer to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors"):
        old.unlink()
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    everything = tensors(student)
    for name, tensor in everything.items():
        if size + tensor.nbytes > LARGEST_SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    where: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(shard, file))
    total = sum(t.nbytes for t in everything.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=0) + "\n")
    _write_json(folder / "config.json", config(student.shape, vocabulary))
    generation = {
        "bos_token_id": vocabulary.im_start,
        "eos_token_id": [vocabulary.im_end, vocabulary.end_of_text],
        "pad_token_id": vocabulary.im_end,
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "repetition_penalty": 1.05,
    }
    _write_json(folder / "generation_config.json", generation)
    (folder / "tokenizer.json").write_text(vocabulary.tokenizer.to_str() + "\n", encoding="utf-8")
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "bos_token": "<|im_start|>",
        "eos_token": IM_END,
        "pad_token": IM_END,
        "unk_token": "<|endoftext|>",
        "additional_special_tokens": SPECIAL_TOKENS[1:],
        "chat_template": vocabulary.teacher.chat_template,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer)


def read_shape(folder: Path) -> Shape:
    c = json.loads((folder / "config.json").read_text())
    return Shape(
        vocabulary=c["vocab_size"],
        layers=c["num_hidden_layers"],
        experts=c["num_experts"],
        active=c["num_experts_per_tok"],
        expert_width=c["moe_intermediate_size"],
        shared_width=c["shared_expert_intermediate_size"],
        hidden=c["hidden_size"],
        heads=c["num_attention_heads"],
        kv_heads=c["num_key_value_heads"],
        dim=c["head_dim"],
        eps=c["rms_norm_eps"],
        base=c["rope_theta"],
    )


def dequantised(folder: Path) -> dict[str, Tensor]:
    """The shipped weights in float32, by hub name: what `transformers` loads."""
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    raw: dict[str, Tensor] = {}
    for file in sorted(set(index["weight_map"].values())):
        with safe_open(folder / file, framework="pt") as shard:
            raw.update({name: shard.get_tensor(name) for name in shard.keys()})  # noqa: SIM118
    out = {}
    for name, tensor in raw.items():
        if tensor.dtype == torch.uint8:
            out[name] = nvfp4.dequantise(tensor, raw[f"{name}_scale"], raw[f"{name}_scale_2"])
        elif "_scale" not in name:
            out[name] = tensor.float()
    return out


def kept_tokens(folder: Path, teacher: TeacherVocabulary) -> list[int]:
    """The teacher's ids of an exported model's tokens, in order."""
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return [teacher.ids[token] for token in sorted(tokens, key=lambda t: tokens[t])]


@torch.no_grad()
def load(folder: Path) -> Student:
    """The shipped model as a student with float32 weights."""
    student = Student(read_shape(folder))
    weights = dequantised(folder)
    for name, (parameter, index) in hub_names(student.shape).items():
        student.p[parameter].data[index] = weights[name]
    return student
