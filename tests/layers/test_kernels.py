"""Kernels against float64 definitions written out one token at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.context.batch import SequenceSlice
from engine.kernels import attention
from engine.kernels.attention import paged_attention
from engine.kernels.gated_delta import causal_conv, gated_delta
from engine.kernels.pointwise import gated_rms_norm, rms_norm, rotary, router_top_k, swiglu
from engine.kernels.registry import lookup, operation


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    difference = (got.double() - expected.double()).norm()
    return bool(difference <= tolerance * expected.double().norm())


def delta_by_definition(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """One sequence and one value head at a time: q, k [L, Hk, Dk], v [L, Hv, Dv]."""
    q, k, v, g, beta, state = (t.double() for t in (q, k, v, g, beta, state.clone()))
    q = q / (q.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() / math.sqrt(q.shape[-1])
    k = k / (k.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()
    out = torch.zeros_like(v)
    group = v.shape[1] // k.shape[1]
    for t in range(v.shape[0]):
        for h in range(v.shape[1]):
            key, query = k[t, h // group], q[t, h // group]
            s = state[h] * g[t, h].exp()
            s = s + torch.outer(key, beta[t, h] * (v[t, h] - key @ s))
            out[t, h] = query @ s
            state[h] = s
    return out, state


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 150])
def test_the_gated_delta_rule_equals_its_definition(length: int) -> None:
    torch.manual_seed(length)
    q, k = torch.randn(2, length, 2, 8), torch.randn(2, length, 2, 8)
    v = torch.randn(2, length, 4, 6)
    # Decays from nearly none to nearly all: sums within a chunk reach far below float32's exp.
    g = -torch.rand(2, length, 4) * torch.tensor([0.01, 0.5, 4.0, 20.0])
    beta = torch.rand(2, length, 4)
    state = torch.randn(2, 4, 8, 6)
    out, new = gated_delta(q, k, v, g, beta, state)
    for b in range(2):
        expected, last = delta_by_definition(q[b], k[b], v[b], g[b], beta[b], state[b])
        assert close(out[b], expected)
        assert close(new[b], last)


@pytest.mark.parametrize("cuts", [(7, 64), (64, 128), (1, 2), (113, 149)])
def test_the_gated_delta_rule_can_stop_and_go_on_anywhere(cuts: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 150, 2, 8), torch.randn(1, 150, 2, 8), torch.randn(1, 150, 2, 6)
    g, beta, state = -torch.rand(1, 150, 2), torch.rand(1, 150, 2), torch.zeros(1, 2, 8, 6)
    whole, last = gated_delta(q, k, v, g, beta, state)
    pieces = []
    for start, stop in zip((0, *cuts), (*cuts, 150), strict=True):
        part = (t[:, start:stop] for t in (q, k, v, g, beta))
        out, state = gated_delta(*part, state)
        pieces.append(out)
    assert close(torch.cat(pieces, 1), whole)
    assert close(state, last)


@pytest.mark.parametrize("length", [1, 2, 3, 20])
def test_the_causal_convolution_continues_its_state(length: int) -> None:
    torch.manual_seed(1)
    history, weight = torch.randn(2, 3 + length, 5), torch.randn(5, 4)
    state, x = history[:, :3].transpose(1, 2), history[:, 3:]
    out, new = causal_conv(x, state, weight)
    for t in range(length):
        sums = (history[:, t : t + 4].double() * weight.T.double()).sum(1)
        assert close(out[:, t], sums * torch.sigmoid(sums))
    assert torch.equal(new, history[:, -3:].transpose(1, 2))


def attention_by_definition(q: Tensor, k: Tensor, v: Tensor, context: int) -> Tensor:
    """q [L, H, D] over k, v [S, KH, D], row i seeing positions up to context + i."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = slice(0, context + i + 1)
            scores = k[seen, h // group].double() @ q[i, h].double() / math.sqrt(q.shape[-1])
            out[i, h] = torch.softmax(scores, 0) @ v[seen, h // group].double()
    return out


@pytest.mark.parametrize(
    ("heads", "score_bytes"), [(4, 1 << 20), (2, 1 << 20), (4, 4 * 4 * 11 * 2)]
)
def test_paged_attention_equals_its_definition_and_sees_no_neighbour(
    heads: int, score_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last case cuts the longest chunk into blocks of two rows."""
    monkeypatch.setattr(attention, "SCORE_BYTES", score_bytes)
    torch.manual_seed(2)
    pages, kv_heads, size = 4, 2, 8
    keys, values = torch.randn(12, pages, kv_heads, size), torch.randn(12, pages, kv_heads, size)
    shapes = [(0, 5, [3, 0]), (6, 1, [7, 1]), (5, 6, [2, 9, 4]), (0, 1, [11])]
    sequences, start = [], 0
    for context, length, numbers in shapes:
        sequences.append(SequenceSlice(start, length, context, torch.tensor(numbers), 0))
        start += length
    q = torch.randn(start, heads, size)
    out = paged_attention(q, keys, values, sequences, size**-0.5)
    for seq in sequences:
        rows = slice(seq.start, seq.start + seq.length)
        total = seq.context + seq.length
        k, v = keys[seq.pages].flatten(0, 1)[:total], values[seq.pages].flatten(0, 1)[:total]
        assert close(out[rows], attention_by_definition(q[rows], k, v, seq.context))
        alone = SequenceSlice(0, seq.length, seq.context, seq.pages, 0)
        assert torch.equal(paged_attention(q[rows], keys, values, [alone], size**-0.5), out[rows])


def test_norms_equal_their_definition() -> None:
    x, gate, weight = torch.randn(3, 2, 16), torch.randn(3, 2, 16), torch.randn(16)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert close(rms_norm(x, weight, 1e-5), expected)
    gated = expected * gate.double() * torch.sigmoid(gate.double())
    assert close(gated_rms_norm(x, gate, weight, 1e-5), gated)
    assert close(swiglu(gate, x), gate.double() * torch.sigmoid(gate.double()) * wide)
    assert rms_norm(x.to(torch.bfloat16), weight, 1e-5).dtype == torch.bfloat16


@pytest.mark.parametrize("turning", [8, 4])
def test_rotation_turns_pairs_and_leaves_the_rest(turning: int) -> None:
    x, angles = torch.randn(5, 2, 8), torch.randn(5, turning // 2)
    out = rotary(x, angles.cos(), angles.sin())
    for i in range(turning // 2):
        pair = torch.complex(x[..., i], x[..., i + turning // 2])
        turned = pair * torch.exp(1j * angles[:, i]).unsqueeze(1)
        assert close(out[..., i], turned.real)
        assert close(out[..., i + turning // 2], turned.imag)
    assert torch.equal(out[..., turning:], x[..., turning:])


def test_the_router_takes_the_best_of_a_softmax_over_all() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, -1.0], [0.0, 0.5, 0.25, 4.0]])
    ids, weights = router_top_k(logits, 2, False)
    assert ids.tolist() == [[1, 2], [3, 1]]
    assert close(weights, torch.softmax(logits, -1).gather(1, ids))
    normalised = router_top_k(logits, 2, True)[1]
    assert close(normalised.sum(-1), torch.ones(2))
    assert close(normalised, weights / weights.sum(-1, keepdim=True))


def test_kernels_register_by_device_and_never_twice() -> None:
    @operation("test_double")
    def double(x: Tensor, by: float) -> Tensor:
        return x * by

    one = torch.ones(1)
    assert lookup("test_double") is double
    assert double(one, 2.0).item() == 2.0

    @double.register("cpu")
    def faster(x: Tensor, by: float) -> Tensor:
        return x * by + 100

    assert double(one, 2.0).item() == 102.0
    assert double.kernel("cuda") is double.reference
    with pytest.raises(ValueError, match="already"):
        double.register("cpu")(faster)
    with pytest.raises(ValueError, match="defined twice"):
        operation("test_double")(faster)
