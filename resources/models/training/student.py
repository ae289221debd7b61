"""The student: a qwen2_moe whose layers are stacked in a few large tensors for training.

All experts are computed for every token and weighted by their gates (nothing for the inactive
ones): at this size that is cheaper than sorting tokens, and exactly what a sparse engine computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from blocks import Mask, attention, by_head, heads, rms_norm, rotary_tables, rotate
from torch import Tensor, nn

from engine.formats.nvfp4 import E2M1_MAX, E4M3_MAX, GROUP

QUANTISED = (
    "embedding", "q", "k", "v", "o", "gate", "up", "down",
    "shared_gate", "shared_up", "shared_down",
)  # fmt: skip
"""Parameters that ship in four bits; their last two dimensions are [out, in]."""

Layer = tuple[Tensor, ...]
"""norm, qkv, qkv bias, o, norm, router, shared switch, gate and up together, down"""
Past = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Shape:
    """The student's sizes."""

    vocabulary: int
    layers: int
    experts: int
    active: int
    expert_width: int
    shared_width: int
    hidden: int = 576
    heads: int = 9
    kv_heads: int = 3
    dim: int = 64
    eps: float = 1e-5
    base: float = 1e5


@dataclass
class Prepared:
    """Weights as the forward pass uses them: rounded, in the computing type, layer by layer."""

    embedding: Tensor
    layers: list[Layer]
    norm: Tensor


@dataclass
class Outcome:
    """What a forward pass leaves: final states, each layer's stream, balance and loads."""

    hidden: Tensor
    streams: list[Tensor]
    balance: Tensor
    loads: Tensor
    past: list[Past]


def round_to_nvfp4(weight: Tensor) -> Tensor:
    """Each matrix (the last two dimensions) rounded as `nvfp4.quantise` would; gradients pass."""
    exact = weight.detach()
    grouped = exact.reshape(*exact.shape[:-1], exact.shape[-1] // GROUP, GROUP)
    largest = grouped.abs().amax(-1)
    scale_2 = largest.amax((-1, -2), keepdim=True) / (E2M1_MAX * E4M3_MAX)
    scale_2 = torch.where(scale_2 > 0, scale_2, torch.ones_like(scale_2))
    scale = (largest / (E2M1_MAX * scale_2)).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    step = (scale.float() * scale_2).unsqueeze(-1)
    inverse = torch.where(step > 0, 1.0 / step, torch.zeros_like(step))
    scaled = (grouped * inverse).clamp(-E2M1_MAX, E2M1_MAX)
    size = scaled.abs()
    spacing = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    rounded = (torch.round(scaled / spacing) * spacing * step).reshape(exact.shape)
    return weight + (rounded - exact)


def student_layer(
    x: Tensor, w: Layer, cos: Tensor, sin: Tensor, mask: Mask | None, s: Shape,
    past: Past | None = None,
) -> tuple[Tensor, Tensor, Tensor, Past]:  # fmt: skip
    """The stream after one layer, the balance loss, the experts' loads, and keys and values."""
    norm, qkv, bias, o, second, router, switch, gate_up, down = w
    kind = qkv.dtype
    h = rms_norm(x, norm, s.eps).to(kind)
    sizes = [s.heads * s.dim, s.kv_heads * s.dim, s.kv_heads * s.dim]
    q, k, v = torch.split(F.linear(h, qkv, bias), sizes, -1)
    queries = rotate(heads(q, s.dim), cos, sin)
    keys, values = rotate(heads(k, s.dim), cos, sin), heads(v, s.dim)
    if past is not None:
        keys, values = torch.cat([past[0], keys], 2), torch.cat([past[1], values], 2)
    mixed = attention(queries, keys, values, mask)
    x = x + F.linear(mixed.transpose(1, 2).flatten(2), o)
    h = rms_norm(x, second, s.eps)
    chances = F.linear(h, router).softmax(-1)
    # An expert is active when fewer than `active` others are likelier (one fused kernel).
    ahead = (chances.unsqueeze(-2) > chances.unsqueeze(-1)).sum(-1)
    gates = torch.where(ahead < s.active, chances, torch.zeros_like(chances))
    load = (gates > 0).float().flatten(0, 1).mean(0)
    likely = chances.flatten(0, 1).mean(0)
    # One when the load is even, and more the fewer experts carry it.
    balance = (load / s.active * likely).sum() * s.experts
    gates = gates / gates.sum(-1, keepdim=True)
    shared = torch.sigmoid(F.linear(h, switch))
    gate, up = F.linear(h.to(kind), gate_up).chunk(2, -1)
    inner = F.silu(gate) * up
    routed, common = torch.split(inner, [s.experts * s.expert_width, s.shared_width], -1)
    routed = by_head(routed, s.expert_width) * gates.unsqueeze(-1).to(kind)
    inner = torch.cat([routed.flatten(-2), common * shared.to(kind)], -1)
    return x + F.linear(inner, down), balance, load, (keys, values)


def prepare(
    p: dict[str, Tensor], round_weights: bool, kind: torch.dtype
) -> tuple[Tensor, list[Layer]]:
    """Rounded (or not) weights in the computing type, split into layers."""
    w = {n: (round_to_nvfp4(p[n]) if round_weights else p[n]).to(kind) for n in QUANTISED}
    qkv = torch.cat([w["q"], w["k"], w["v"]], 1)
    bias = torch.cat([p["q_bias"], p["k_bias"], p["v_bias"]], 1).to(kind)
    gate = torch.cat([w["gate"].flatten(1, 2), w["shared_gate"]], 1)
    up = torch.cat([w["up"].flatten(1, 2), w["shared_up"]], 1)
    # Experts' down weights [layer, expert, hidden, width] lie side by side along the width.
    down = torch.cat([w["down"].transpose(1, 2).flatten(2), w["shared_down"]], 2)
    columns = [
        p["norm"], qkv, bias, w["o"], p["second_norm"], p["router"], p["switch"],
        torch.cat([gate, up], 1), down,
    ]  # fmt: skip
    split = [c.unbind(0) for c in columns]
    return w["embedding"], [tuple(s[i] for s in split) for i in range(qkv.shape[0])]


class Student(nn.Module):
    """Parameters, and the forward pass over prepared weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        s, n = shape, shape.layers
        kv = s.kv_heads * s.dim
        sizes: dict[str, tuple[int, ...]] = {
            "embedding": (s.vocabulary, s.hidden),
            "final_norm": (s.hidden,),
            "norm": (n, s.hidden),
            "q": (n, s.heads * s.dim, s.hidden),
            "k": (n, kv, s.hidden),
            "v": (n, kv, s.hidden),
            "o": (n, s.hidden, s.heads * s.dim),
            "q_bias": (n, s.heads * s.dim),
            "k_bias": (n, kv),
            "v_bias": (n, kv),
            "second_norm": (n, s.hidden),
            "router": (n, s.experts, s.hidden),
            "switch": (n, 1, s.hidden),
            "gate": (n, s.experts, s.expert_width, s.hidden),
            "up": (n, s.experts, s.expert_width, s.hidden),
            "down": (n, s.experts, s.hidden, s.expert_width),
            "shared_gate": (n, s.shared_width, s.hidden),
            "shared_up": (n, s.shared_width, s.hidden),
            "shared_down": (n, s.hidden, s.shared_width),
        }
        self.p = nn.ParameterDict({k: nn.Parameter(torch.zeros(v)) for k, v in sizes.items()})
        self.layer_function: Callable[..., tuple[Tensor, Tensor, Tensor, Past]] = student_layer
        self.prepare_function: Callable[..., tuple[Tensor, list[Layer]]] = prepare

    def prepared(self, round_weights: bool, kind: torch.dtype) -> Prepared:
        embedding, layers = self.prepare_function(dict(self.p.items()), round_weights, kind)
        return Prepared(embedding, layers, self.p["final_norm"])

    def forward(
        self, w: Prepared, tokens: Tensor, mask: Mask | None, past: list[Past] | None = None
    ) -> Outcome:
        s = self.shape
        begin = past[0][0].shape[2] if past else 0
        positions = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        cos, sin = rotary_tables(positions, s.dim, s.base)
        x = F.embedding(tokens, w.embedding).float()
        streams, balances, loads, kept = [], [], [], []
        for i, layer in enumerate(w.layers):
            before = past[i] if past else None
            x, balance, load, now = self.layer_function(x, layer, cos, sin, mask, s, before)
            streams.append(x)
            balances.append(balance)
            loads.append(load)
            kept.append(now)
        hidden = rms_norm(x, w.norm, s.eps).to(w.embedding.dtype)
        return Outcome(hidden, streams, torch.stack(balances).mean(), torch.stack(loads), kept)

    @torch.no_grad()
    def answer(
        self, w: Prepared, prompt: list[int], end: int, limit: int, penalty: float = 1.0
    ) -> list[int]:
        """Greedy continuation of `prompt`, one sequence, up to the token `end`.

        `penalty` makes tokens that were there before less likely, as `transformers` does.
        """
        device = w.embedding.device
        tokens = torch.tensor([prompt], device=device)
        length = tokens.shape[1]
        mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
        out: list[int] = []
        past: list[Past] | None = None
        while len(out) < limit:
            outcome = self(w, tokens, mask if past is None else None, past)
            past = outcome.past
            logits = F.linear(outcome.hidden[0, -1], w.embedding).float()
            seen = torch.tensor([*prompt, *out], device=device).unique()
            old = logits[seen]
            logits[seen] = torch.where(old > 0, old / penalty, old * penalty)
            best = int(logits.argmax())
            if best == end:
                break
            out.append(best)
            tokens = torch.tensor([[best]], device=device)
        return out
