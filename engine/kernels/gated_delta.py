"""The gated delta rule and the causal convolution before it.

For one head, with state S [key_dim, value_dim], decay a_t = exp(g_t) and rate b_t:

    S_t = a_t S_{t-1} + k_t u_t^T      u_t = b_t (v_t - (a_t S_{t-1})^T k_t)      o_t = S_t^T q_t

Within a chunk, with G the running sum of g, unrolling gives (I + L) U = b (V - e^G K S_0), where
L[t, i] = b_t e^(G_t - G_i) k_t . k_i below the diagonal; then all outputs and the chunk's last
state are matrix products. Everything is float32.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.registry import operation

CHUNK = 64
_NORM_EPS = 1e-6


@operation("causal_conv")
def causal_conv(x: Tensor, state: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution and silu.

    x [B, L, C] continues what `state` [B, C, K - 1] saw last; weight float32 [C, K].
    Returns [B, L, C] in x's dtype and the new state in the state's dtype.
    """
    taps = weight.shape[1]
    joined = torch.cat([state.to(x.dtype), x.transpose(1, 2)], dim=-1)
    wide = joined.to(torch.float32)
    if x.shape[1] == 1:
        mixed = (wide * weight).sum(-1, keepdim=True)
    else:
        mixed = functional.conv1d(wide, weight.unsqueeze(1), groups=weight.shape[0])
    last = joined[..., joined.shape[-1] - (taps - 1) :]
    return functional.silu(mixed).transpose(1, 2).to(x.dtype), last.to(state.dtype)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + _NORM_EPS)


def _heads_first(x: Tensor, repeats: int = 1) -> Tensor:
    """[B, L, heads, ...] as float32 [B, heads * repeats, L, ...], copies side by side."""
    wide = x.to(torch.float32).transpose(1, 2)
    return wide.repeat_interleave(repeats, dim=1) if repeats > 1 else wide


@operation("gated_delta")
def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """L more tokens of B sequences that start from `state`.

    q, k [B, L, key_heads, key_dim] (normalised here), v [B, L, value_heads, value_dim], g (log of
    the decay, <= 0) and beta [B, L, value_heads], all float32 or narrower;
    state float32 [B, value_heads, key_dim, value_dim].
    Returns outputs float32 [B, L, value_heads, value_dim] and the state after the last token.
    """
    repeats = v.shape[2] // k.shape[2]
    q = _unit(_heads_first(q, repeats)) * (q.shape[-1] ** -0.5)
    k = _unit(_heads_first(k, repeats))
    v, g, beta = _heads_first(v), _heads_first(g), _heads_first(beta)
    step = _recurrent if v.shape[2] == 1 else _chunked
    out, state = step(q, k, v, g, beta, state)
    return out.transpose(1, 2), state


def _recurrent(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One token, as the definition says: q, k [B, H, 1, Dk], v [B, H, 1, Dv]."""
    state = state * g.exp().unsqueeze(-1)
    update = beta.unsqueeze(-1) * (v - k @ state)
    state = state + k.transpose(-1, -2) * update
    return q @ state, state


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, H, L, ...] as [B, H, L / chunk, chunk, ...], padded with zeros, which change no state."""
    missing = -x.shape[2] % chunk
    if missing:
        x = torch.cat([x, x.new_zeros(*x.shape[:2], missing, *x.shape[3:])], dim=2)
    return x.reshape(*x.shape[:2], -1, chunk, *x.shape[3:])


def _chunked(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Any number of tokens: products within all chunks at once, then a scan over them."""
    length = v.shape[2]
    chunk = min(CHUNK, length)
    q, k, v, g, beta = (_chunks(x, chunk) for x in (q, k, v, g, beta))
    run = g.cumsum(-1)
    above = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    # Masked before the exponential: above the diagonal it would overflow.
    decay = (run.unsqueeze(-1) - run.unsqueeze(-2)).masked_fill(above, -torch.inf).exp()
    rate = beta.unsqueeze(-1)
    since_start = run.exp().unsqueeze(-1)
    # The diagonal of the system is one by definition: solve_triangular is told so and ignores it.
    system = rate * (k @ k.transpose(-1, -2)) * decay
    right = torch.cat([rate * v, rate * since_start * k], dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    from_values, from_state = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]
    within = (q @ k.transpose(-1, -2)) * decay
    q_decayed = q * since_start
    k_to_end = (k * (run[..., -1:] - run).exp().unsqueeze(-1)).transpose(-1, -2)
    whole = run[..., -1].exp()[..., None, None]
    outputs = []
    for i in range(v.shape[2]):
        update = from_values[:, :, i] - from_state[:, :, i] @ state
        outputs.append(q_decayed[:, :, i] @ state + within[:, :, i] @ update)
        state = whole[:, :, i] * state + k_to_end[:, :, i] @ update
    return torch.cat(outputs, dim=2)[:, :, :length], state
