"""RMS norm, rotary embedding and router: small operations that are computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.kernels.registry import operation

_CUDA = "engine.kernels.gpu.pointwise"
_CUDA_ROUTER = "engine.kernels.gpu.router"


@operation("rms_norm", cuda=_CUDA)
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] over the root of its mean square, times weight float32 [D]: x's dtype."""
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (scaled * weight).to(x.dtype)


@operation("add_rms_norm", cuda=_CUDA)
def add_rms_norm(x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + added, and rms_norm of it: both [..., D] in x's dtype."""
    total = x + added
    return total, rms_norm(total, weight, eps)


@operation("gated_rms_norm", cuda=_CUDA)
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm of x [..., D], then times silu(gate [..., D]): in the gate's dtype."""
    wide = x.to(torch.float32)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (scaled * weight * torch.nn.functional.silu(gate.to(torch.float32))).to(gate.dtype)


@operation("rotary")
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2 * half dimensions of x [N, heads, D], pairs being (i, i + half).

    cos and sin are float32 [N, half]; the other dimensions pass unchanged. Returns x's dtype.
    """
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first = x[..., :half].to(torch.float32)
    second = x[..., half : 2 * half].to(torch.float32)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    if 2 * half == x.shape[-1]:
        return turned.to(x.dtype)
    return torch.cat([turned.to(x.dtype), x[..., 2 * half :]], dim=-1)


@operation("router_top_k", cuda=_CUDA_ROUTER)
def router_top_k(logits: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """Softmax over all experts of logits float32 [N, E], then the best `top_k`.

    Returns ids int64 [N, k] and weights float32 [N, k], which sum to one where `normalise`.
    """
    weights, ids = torch.topk(torch.softmax(logits, dim=-1), top_k, dim=-1)
    if normalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids, weights


@operation("route", cuda=_CUDA_ROUTER)
def route(x: Tensor, router: Tensor, top_k: int, normalise: bool) -> tuple[Tensor, Tensor]:
    """router_top_k of the logits of x [N, hidden] with router float32 [E, hidden].

    They are float32: a rounded logit picks another expert.
    """
    logits = torch.nn.functional.linear(x.to(torch.float32), router)
    return router_top_k(logits, top_k, normalise)


@operation("add_gated")
def add_gated(out: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
    """out + added * sigmoid(gate), or out + added without a gate; both tensors are written to.

    out and added [N, D], gate [N, 1]; the sigmoid is float32.
    """
    if gate is not None:
        added.mul_(torch.sigmoid(gate.to(torch.float32)))
    return out.add_(added)


@operation("swiglu", cuda=_CUDA)
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, computed in float32, in gate's dtype."""
    wide = torch.nn.functional.silu(gate.to(torch.float32)) * up.to(torch.float32)
    return wide.to(gate.dtype)
