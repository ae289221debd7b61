"""Gated delta rule of one token a sequence: from the projections to what the output layer reads.

Bound by reading and writing the states. Two launches: every program of the first reads the
convolution's inputs and makes what it needs of them; the second moves them on, when all have read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.delta_layer import DeltaParameters
from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.delta_math import (
    NORM_EPS,
    leave_inputs,
    log_decay,
    rms_gate,
    sigmoid,
    silu,
)
from engine.kernels.gpu.delta_shapes import QWEN3_NEXT, DeltaShape, delta_shape

BLOCK_V = 32
"""Columns of a head's state a program: one sequence of 32 heads and 128 columns gives 128."""
STEP_WARPS = 4
END_WARPS = 2


@triton.jit
def _mixed(x, held, weight, channels, TAPS: tl.constexpr):
    """The convolution of one token, as float32 but with the rounding of x's dtype."""
    dtype = x.dtype.element_ty
    total = tl.load(x + channels).to(tl.float32) * tl.load(weight + channels * TAPS + TAPS - 1)
    for tap in tl.static_range(TAPS - 1):
        earlier = tl.load(held + channels * (TAPS - 1) + tap).to(tl.float32)
        total += earlier * tl.load(weight + channels * TAPS + tap)
    return silu(total).to(dtype).to(tl.float32)


@triton.jit
def delta_step_kernel(
    qkv,
    b,
    a,
    conv_weight,
    a_log,
    dt_bias,
    conv,
    recurrent,
    states,
    out,
    qkv_stride,
    b_stride,
    a_stride,
    conv_stride,
    recurrent_stride,
    KEY_HEADS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out float32 [S, VALUE_HEADS, VALUE_DIM], and the states in place; a program takes BLOCK
    columns of one head of one sequence."""
    parts: tl.constexpr = VALUE_DIM // BLOCK
    head = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    sequence = tl.program_id(1).to(tl.int64)
    row = tl.load(states + sequence).to(tl.int64)
    if row < 0:
        return
    keys = tl.arange(0, KEY_DIM)
    columns = part * BLOCK + tl.arange(0, BLOCK)
    place = recurrent + row * recurrent_stride + head * KEY_DIM * VALUE_DIM
    place = place + keys[:, None] * VALUE_DIM + columns[None, :]
    state = tl.load(place)

    qkv += sequence * qkv_stride
    conv += row * conv_stride
    query = (head // (VALUE_HEADS // KEY_HEADS)) * KEY_DIM
    q = _mixed(qkv, conv, conv_weight, query + keys, TAPS)
    k = _mixed(qkv, conv, conv_weight, KEY_HEADS * KEY_DIM + query + keys, TAPS)
    value = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM
    v = _mixed(qkv, conv, conv_weight, value + columns, TAPS)
    q = q * (tl.rsqrt(tl.sum(q * q, axis=0) + NORM_EPS) * (KEY_DIM**-0.5))
    k = k * tl.rsqrt(tl.sum(k * k, axis=0) + NORM_EPS)
    rate = sigmoid(tl.load(b + sequence * b_stride + head).to(tl.float32))
    now = tl.load(a + sequence * a_stride + head).to(tl.float32)
    decay = tl.exp(log_decay(now, tl.load(a_log + head), tl.load(dt_bias + head)))

    # Both sums over the state as it was: neither waits for the other.
    k_state = tl.sum(k[:, None] * state, axis=0)
    q_state = tl.sum(q[:, None] * state, axis=0)
    update = rate * (v - decay * k_state)
    tl.store(place, decay * state + k[:, None] * update[None, :])
    result = decay * q_state + tl.sum(q * k, axis=0) * update
    tl.store(out + (sequence * VALUE_HEADS + head) * VALUE_DIM + columns, result)


@triton.jit
def delta_step_end_kernel(
    mixed,
    gate,
    norm_weight,
    qkv,
    conv,
    states,
    out,
    eps,
    gate_stride,
    qkv_stride,
    conv_stride,
    CHANNELS: tl.constexpr,
    VALUE_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    SLICE: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Norm and gate of one head of one sequence, and the convolution's state of SLICE channels."""
    head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    row = tl.load(states + sequence).to(tl.int64)
    columns = head * VALUE_DIM + tl.arange(0, VALUE_DIM)
    place = out + sequence * VALUE_HEADS * VALUE_DIM + columns
    if row < 0:
        tl.store(place, tl.zeros((VALUE_DIM,), out.dtype.element_ty))
        return
    x = tl.load(mixed + sequence * VALUE_HEADS * VALUE_DIM + columns)
    z = tl.load(gate + sequence * gate_stride + columns).to(tl.float32)
    weight = tl.load(norm_weight + tl.arange(0, VALUE_DIM))
    gated = rms_gate(x[None, :], z[None, :], weight, eps, VALUE_DIM)
    tl.store(place[None, :], gated.to(out.dtype.element_ty))

    inside = tl.arange(0, BLOCK_C)
    channels = head * SLICE + inside
    mask = (inside < SLICE) & (channels < CHANNELS)
    held = conv + row * conv_stride
    leave_inputs(qkv, qkv_stride, sequence, sequence + 1, held, held, channels, mask, TAPS)


def _step_constants(shape: DeltaShape) -> dict[str, int]:
    return {
        "KEY_HEADS": shape.key_heads,
        "VALUE_HEADS": shape.value_heads,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "TAPS": shape.taps,
        "BLOCK": min(BLOCK_V, shape.value_dim),
    }


def _end_constants(shape: DeltaShape) -> dict[str, int]:
    each = triton.cdiv(shape.channels, shape.value_heads)
    return {
        "CHANNELS": shape.channels,
        "VALUE_HEADS": shape.value_heads,
        "VALUE_DIM": shape.value_dim,
        "TAPS": shape.taps,
        "SLICE": each,
        "BLOCK_C": triton.next_power_of_2(each),
    }


def delta_decode(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    parameters: DeltaParameters,
    conv: Tensor,
    recurrent: Tensor,
    states: Tensor,
) -> Tensor:
    """One token of S sequences: what the layer's output projection reads, [S, heads * value_dim].

    qkv [S, channels], z [S, value_heads * value_dim], b and a [S, value_heads] are the input
    projections, rows of any stride; conv [rows, channels, taps - 1] and recurrent float32
    [rows, value_heads, key_dim, value_dim] one layer's views of the state pool, moved on in place.
    states int32 or int64 [S], on the device: rows of the pool, no two alike; -1 is no sequence: it
    moves no state and its output is zero. Launches depend on shapes alone, so it can be captured.
    """
    shape = delta_shape(qkv, z, b, a, parameters, conv, recurrent)
    sequences = len(qkv)
    mixed = torch.empty(
        (sequences, shape.value_heads, shape.value_dim), dtype=torch.float32, device=qkv.device
    )
    constants = _step_constants(shape)
    programs = shape.value_heads * (shape.value_dim // constants["BLOCK"])
    delta_step_kernel[(programs, sequences)](
        qkv,
        b,
        a,
        parameters.conv_weight,
        parameters.a_log,
        parameters.dt_bias,
        conv,
        recurrent,
        states,
        mixed,
        qkv.stride(0),
        b.stride(0),
        a.stride(0),
        conv.stride(0),
        recurrent.stride(0),
        **constants,
        num_warps=STEP_WARPS,
    )
    out = torch.empty(
        (sequences, shape.value_heads * shape.value_dim), dtype=z.dtype, device=z.device
    )
    delta_step_end_kernel[(shape.value_heads, sequences)](
        mixed,
        z,
        parameters.norm_weight,
        qkv,
        conv,
        states,
        out,
        parameters.eps,
        z.stride(0),
        qkv.stride(0),
        conv.stride(0),
        **_end_constants(shape),
        num_warps=END_WARPS,
    )
    return out


_STRIDES = ("qkv_stride", "b_stride", "a_stride", "conv_stride", "recurrent_stride", "gate_stride")
AHEAD = (
    Ahead(
        "delta_step",
        delta_step_kernel,
        {
            **dict.fromkeys(("qkv", "b", "a"), "*bf16"),
            **dict.fromkeys(("conv_weight", "a_log", "dt_bias"), "*fp32"),
            "conv": "*bf16",
            "recurrent": "*fp32",
            "states": "*i64",
            "out": "*fp32",
            **dict.fromkeys(_STRIDES[:5], "i32"),
        },
        _step_constants(QWEN3_NEXT),
        warps=STEP_WARPS,
        multiples=frozenset(_STRIDES),
    ),
    Ahead(
        "delta_step_end",
        delta_step_end_kernel,
        {
            "mixed": "*fp32",
            "gate": "*bf16",
            "norm_weight": "*fp32",
            "qkv": "*bf16",
            "conv": "*bf16",
            "states": "*i64",
            "out": "*bf16",
            "eps": "fp32",
            **dict.fromkeys(("gate_stride", "qkv_stride", "conv_stride"), "i32"),
        },
        _end_constants(QWEN3_NEXT),
        warps=END_WARPS,
        multiples=frozenset(_STRIDES),
    ),
)
