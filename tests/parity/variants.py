"""A checkpoint stored in another way: quantised, or with its experts fused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.formats import nvfp4

NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["*.gate", "*conv1d"]}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "model.safetensors")


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def quantise_nvfp4(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    packed, scale, scale_2 = nvfp4.quantise(weight)
    parts = {name: packed, f"{name}_scale": scale, f"{name}_scale_2": scale_2}
    return parts, nvfp4.dequantise(packed, scale, scale_2)


def quantise_fp8(name: str, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One scale for each 128 x 128 block; a ragged last block has fewer rows or columns."""
    rows, columns = weight.shape
    scale = torch.empty(-(-rows // 128), -(-columns // 128))
    codes, plain = torch.empty_like(weight), torch.empty_like(weight)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            block = (slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128))
            scale[i, j] = weight[block].abs().max() / 448
            codes[block] = weight[block] / scale[i, j]
            plain[block] = codes[block].to(torch.float8_e4m3fn).to(torch.float32) * scale[i, j]
    return {name: codes.to(torch.float8_e4m3fn), f"{name}_scale_inv": scale}, plain


Quantise = Callable[[str, Tensor], tuple[dict[str, Tensor], Tensor]]


def quantised(folder: Path, target: Path, quantise: Quantise, scheme: dict[str, Any]) -> Path:
    """Two folders: `target` with quantised matrices, and beside it `target`-plain with what they
    stand for. Routers and convolutions stay as they are."""
    config, tensors = read(folder)
    stored, plain = {}, {}
    for name, weight in tensors.items():
        is_router = name.endswith((".mlp.gate.weight", "shared_expert_gate.weight"))
        if weight.dim() != 2 or is_router or weight.shape[1] % 16:
            stored[name] = plain[name] = weight
            continue
        parts, plain[name] = quantise(name, weight)
        stored |= parts
    write(target.with_name(f"{target.name}-plain"), config, plain)
    return write(target, {**config, "quantization_config": scheme}, stored)


def fused(folder: Path, target: Path) -> Path:
    """All experts of a layer in two tensors."""
    config, tensors = read(folder)
    pattern = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
    experts: dict[str, dict[tuple[int, str], Tensor]] = {}
    stored = {}
    for name, weight in tensors.items():
        match = pattern.fullmatch(name)
        if match:
            experts.setdefault(match[1], {})[int(match[2]), match[3]] = weight
        else:
            stored[name] = weight
    for base, parts in experts.items():
        count = len(parts) // 3
        gate_up = [torch.cat([parts[e, "gate"], parts[e, "up"]]) for e in range(count)]
        stored[f"{base}.gate_up_proj"] = torch.stack(gate_up)
        stored[f"{base}.down_proj"] = torch.stack([parts[e, "down"] for e in range(count)])
    return write(target, config, stored)
