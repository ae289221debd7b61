"""Cases of the gated delta rule's GPU kernels, of Qwen3.6-35B-A3B's shape, for a timing script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.kernels.chunk_table import ChunkRun, ChunkTable, even_lengths
from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.gated_delta import causal_conv, gated_delta
from engine.kernels.gpu.delta_decode import delta_decode
from engine.kernels.gpu.delta_prefill import delta_prefill
from engine.kernels.gpu.delta_shapes import QWEN3_NEXT
from engine.kernels.pointwise import gated_rms_norm

SHAPE = QWEN3_NEXT
WIDTH = SHAPE.value_heads * SHAPE.value_dim
KEYS = SHAPE.key_heads * SHAPE.key_dim


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[[], object]
    """Moves the states on: repeated runs go on from where the last one ended."""
    errors: Callable[[], tuple[float, float]]
    """Of output and states, against the definition in float64 from the same bfloat16 inputs: norm
    of the difference over norm. The output's is mostly its rounding to bfloat16."""
    nbytes: float
    """Fewest bytes through device memory."""
    flops: float

    def check(self) -> float:
        return max(self.errors())


class Layer:
    """Random bfloat16 inputs of one layer and a pool of as many states."""

    def __init__(self, rows: int, states: int, device: str) -> None:
        random = torch.Generator(device).manual_seed(rows)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=random, device=device)

        heads = SHAPE.value_heads
        self.own = DeltaParameters(
            conv_weight=normal(SHAPE.channels, SHAPE.taps) * 0.5,
            a_log=torch.rand(heads, generator=random, device=device) * 2 - 1,
            dt_bias=normal(heads) - 2,
            norm_weight=torch.rand(SHAPE.value_dim, generator=random, device=device) + 0.5,
            eps=1e-6,
        )
        widths = SHAPE.channels, WIDTH, heads, heads
        qkv, z, b, a = (normal(rows, width).bfloat16() for width in widths)
        self.inputs = qkv, z, b, a
        self.conv = normal(states, SHAPE.channels, SHAPE.taps - 1).bfloat16()
        self.recurrent = normal(states, heads, SHAPE.key_dim, SHAPE.value_dim) * 0.1

    def exact(self, rows: slice, state: int) -> tuple[Tensor, Tensor]:
        """Output [rows, WIDTH] before it is rounded, and the state, in float64 but for the
        convolution's bfloat16 output, which is rounded as the engine rounds it."""
        qkv, z, b, a = (part[rows] for part in self.inputs)
        held = slice(state, state + 1)
        mixed, _ = causal_conv.reference(
            qkv.unsqueeze(0), self.conv[held].clone(), self.own.conv_weight
        )
        q, k, v = mixed.double().split([KEYS, KEYS, WIDTH], dim=-1)
        grow = functional.softplus(a.double() + self.own.dt_bias.double())
        out, moved = _in_float64(
            q.unflatten(-1, (SHAPE.key_heads, SHAPE.key_dim))[0],
            k.unflatten(-1, (SHAPE.key_heads, SHAPE.key_dim))[0],
            v.unflatten(-1, (SHAPE.value_heads, SHAPE.value_dim))[0],
            (-self.own.a_log.double().exp() * grow).exp(),
            b.double().sigmoid(),
            self.recurrent[state].double(),
        )
        out = out * (out.pow(2).mean(-1, keepdim=True) + self.own.eps).rsqrt()
        return (out * self.own.norm_weight).flatten(1) * functional.silu(z.double()), moved

    def by_torch(self, rows: slice, state: int) -> tuple[Tensor, Tensor]:
        """What the torch operations make of it, in the engine's precision."""
        qkv, z, b, a = (part[rows] for part in self.inputs)
        held = slice(state, state + 1)
        mixed, _ = causal_conv.reference(
            qkv.unsqueeze(0), self.conv[held].clone(), self.own.conv_weight
        )
        q, k, v = mixed.split([KEYS, KEYS, WIDTH], dim=-1)
        grow = functional.softplus(a.float() + self.own.dt_bias)
        out, moved = gated_delta.reference(
            q.unflatten(-1, (SHAPE.key_heads, SHAPE.key_dim)),
            k.unflatten(-1, (SHAPE.key_heads, SHAPE.key_dim)),
            v.unflatten(-1, (SHAPE.value_heads, SHAPE.value_dim)),
            (-self.own.a_log.exp() * grow).unsqueeze(0),
            b.float().sigmoid().unsqueeze(0),
            self.recurrent[held].clone(),
        )
        gate = z.unflatten(-1, (SHAPE.value_heads, SHAPE.value_dim))
        gated = gated_rms_norm.reference(out[0], gate, self.own.norm_weight, self.own.eps)
        return gated.flatten(1), moved[0]


def _in_float64(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: [rows, heads, ...] and one state."""
    repeats = v.shape[1] // k.shape[1]
    q, k = (x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q = q.repeat_interleave(repeats, 1) * SHAPE.key_dim**-0.5
    k = k.repeat_interleave(repeats, 1)
    outputs = []
    for t in range(len(q)):
        state = state * decay[t][:, None, None]
        update = beta[t][:, None] * (v[t] - (k[t][:, None] @ state).squeeze(1))
        state = state + k[t][:, :, None] * update[:, None, :]
        outputs.append((q[t][:, None] @ state).squeeze(1))
    return torch.stack(outputs), state


def far(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


def torch_errors(rows: int, device: str = "cuda") -> tuple[float, float]:
    """The same errors of the torch operations: what the kernels' are to be compared with."""
    layer = Layer(rows, 1, device)
    out, state = layer.by_torch(slice(0, rows), 0)
    exact_out, exact_state = layer.exact(slice(0, rows), 0)
    return far(out, exact_out), far(state, exact_state)


def decode_case(sequences: int, device: str = "cuda") -> Case:
    layer = Layer(sequences, sequences, device)
    states = torch.arange(sequences, device=device).flip(0)

    def run(conv: Tensor = layer.conv, recurrent: Tensor = layer.recurrent) -> Tensor:
        return delta_decode(*layer.inputs, layer.own, conv, recurrent, states)

    def errors() -> tuple[float, float]:
        recurrent = layer.recurrent.clone()
        out = run(layer.conv.clone(), recurrent)
        far_off = []
        for row, state in enumerate(states.tolist()):
            exact_out, exact_state = layer.exact(slice(row, row + 1), state)
            far_off.append((far(out[row : row + 1], exact_out), far(recurrent[state], exact_state)))
        return max(out for out, _ in far_off), max(state for _, state in far_off)

    moved = layer.recurrent.nbytes * 2 + layer.conv.nbytes * 2 + layer.own.conv_weight.nbytes
    moved += sum(part.nbytes for part in layer.inputs) + layer.inputs[1].nbytes
    return Case(f"delta decode, {sequences}", run, errors, moved, layer.recurrent.numel() * 7)


def prefill_case(name: str, lengths: list[list[int]], device: str = "cuda") -> Case:
    rows = sum(map(sum, lengths))
    layer = Layer(rows, len(lengths), device)
    runs, first = [], 0
    for state, each in enumerate(lengths):
        runs.append(ChunkRun(state, first, each))
        first += sum(each)
    table = ChunkTable.build(runs, torch.device(device))

    def run(conv: Tensor = layer.conv, recurrent: Tensor = layer.recurrent) -> Tensor:
        return delta_prefill(*layer.inputs, layer.own, conv, recurrent, table)

    def errors() -> tuple[float, float]:
        recurrent = layer.recurrent.clone()
        out = run(layer.conv.clone(), recurrent)
        far_off = []
        for each in runs:
            part = slice(each.first, each.first + sum(each.lengths))
            exact_out, exact_state = layer.exact(part, each.state)
            far_off.append((far(out[part], exact_out), far(recurrent[each.state], exact_state)))
        return max(out for out, _ in far_off), max(state for _, state in far_off)

    chunks = sum(map(len, lengths))
    moved = sum(part.nbytes for part in layer.inputs) + layer.inputs[1].nbytes
    moved += 2 * (layer.recurrent.nbytes + layer.conv.nbytes)
    # Of a chunk and head, multiplications and additions once each however many parts they take:
    # K K, Q K, K S, Q S, K U of 64 x 64 x 128 or 64 x 128 x 128, and two of 64 x 64 x 128.
    work = 2 * (4 * 64 * 64 * 128 + 3 * 64 * 128 * 128)
    return Case(f"delta prefill, {name}", run, errors, moved, chunks * SHAPE.value_heads * work)


def cases() -> Iterator[Case]:
    """Decode steps and prefills, on the CUDA device that is current."""
    for sequences in (1, 2, 4, 8):
        yield decode_case(sequences)
    for rows in (30, 512, 2048, 8192):
        yield prefill_case(f"{rows}", [even_lengths(rows)])
    yield prefill_case("4 of 2,048", [even_lengths(2048) for _ in range(4)])
    yield prefill_case("8,190 in chunks of 39", [[39] * 210])


def main() -> None:
    """The errors of all cases, and of the torch operations in the engine's precision."""
    for rows in (1, 30, 512, 2048, 8192):
        print(f"torch, {rows:29} output {{:.1e}}  state {{:.1e}}".format(*torch_errors(rows)))
    for case in cases():
        print(f"{case.name:36} output {{:.1e}}  state {{:.1e}}".format(*case.errors()))


if __name__ == "__main__":
    main()
