"""What kernels of the gated delta rule share: gates, products near float32, the convolution."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
NORM_EPS = tl.constexpr(1e-6)
"""As in the torch reference of the rule."""
_LEAST_LOG_DECAY = tl.constexpr(-88.0)
"""exp of less is no normal float32. Sums of decays stay exact enough beside such a token, and an
infinite one gives no NaN."""


@triton.jit
def sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0.0, 1.0, small) / (1.0 + small)


@triton.jit
def silu(x):
    return x * sigmoid(x)


@triton.jit
def log_decay(a, a_log, dt_bias):
    """-exp(a_log) * softplus(a + dt_bias), also where softplus is far below float32's epsilon."""
    x = a + dt_bias
    small = tl.exp(-tl.abs(x))
    one_more = 1.0 + small
    # log(1 + small) from the rounded sum, corrected for what rounding took from `small`.
    rounded = one_more - 1.0
    lost = rounded == 0.0
    log1p = tl.where(lost, small, tl.log(one_more) * (small / tl.where(lost, 1.0, rounded)))
    return tl.maximum(-tl.exp(a_log) * (tl.maximum(x, 0.0) + log1p), _LEAST_LOG_DECAY)


@triton.jit
def _dot(x, y, total):
    if INTERPRETED:  # which multiplies the codes of bfloat16, not the numbers
        return tl.dot(x.to(tl.float32), y.to(tl.float32), total)
    return tl.dot(x, y, total)


@triton.jit
def cut(x):
    """x float32 as a bfloat16 and the rest: three such cuts leave nothing."""
    part = x.to(tl.bfloat16)
    return part, x - part.to(tl.float32)


@triton.jit
def add_product(total, x, y):
    """total + x @ y, near float32.

    Float32 is cut into three bfloat16 numbers, products of bfloat16 are exact, and what is left out
    is below float32's precision. Six products of bfloat16 take as long as the three of tf32 that
    come as near, and fewer registers, since a part is used up before the next.
    """
    if x.dtype == tl.bfloat16 and y.dtype == tl.bfloat16:
        return _dot(x, y, total)
    y_part, y_rest = cut(y.to(tl.float32))
    if x.dtype == tl.bfloat16:
        total = _dot(x, y_part, total)
        y_part, y_rest = cut(y_rest)
        total = _dot(x, y_part, total)
        return _dot(x, y_rest.to(tl.bfloat16), total)
    high, rest = cut(x.to(tl.float32))
    middle, rest = cut(rest)
    total = _dot(rest.to(tl.bfloat16), y_part, total)
    total = _dot(middle, y_part, total)
    total = _dot(high, y_part, total)
    y_part, y_rest = cut(y_rest)
    total = _dot(middle, y_part, total)
    total = _dot(high, y_part, total)
    return _dot(high, y_rest.to(tl.bfloat16), total)


@triton.jit
def add_products(first, second, x, x_2, y):
    """first + x @ y and second + x_2 @ y, near float32, with y float32 cut once for both."""
    if x.dtype == tl.bfloat16:
        part, rest = cut(y)
        first = _dot(x, part, first)
        second = _dot(x_2, part, second)
        part, rest = cut(rest)
        first = _dot(x, part, first)
        second = _dot(x_2, part, second)
        part = rest.to(tl.bfloat16)
        return _dot(x, part, first), _dot(x_2, part, second)
    return add_product(first, x, y), add_product(second, x_2, y)


@triton.jit
def product(x, y):
    return add_product(tl.zeros((x.shape[0], y.shape[1]), tl.float32), x, y)


@triton.jit
def rms_gate(x, gate, weight, eps, WIDTH: tl.constexpr):
    """Rows of x over the root of their mean square, times weight and silu(gate): float32."""
    square = tl.sum(x * x, axis=1) / WIDTH
    return x * tl.rsqrt(square + eps)[:, None] * weight[None, :] * silu(gate)


@triton.jit
def leave_inputs(qkv, stride, start, end, old, new, channels, mask, TAPS: tl.constexpr):
    """Write to `new` [channels, TAPS - 1] the inputs before row `end` of the batch.

    Of a sequence whose rows begin at `start` and whose earlier inputs are in `old`, which may be
    `new`: taps are written in ascending order, after what the later ones still read.
    """
    for tap in tl.static_range(TAPS - 1):
        row = end - (TAPS - 1) + tap
        fresh = mask & (row >= start)
        held = mask & (row < start)
        late = tl.load(qkv + row * stride + channels, mask=fresh, other=0.0)
        early = tl.load(
            old + channels * (TAPS - 1) + (TAPS - 1 + row - start), mask=held, other=0.0
        )
        value = tl.where(fresh, late.to(tl.float32), early.to(tl.float32))
        tl.store(new + channels * (TAPS - 1) + tap, value.to(new.dtype.element_ty), mask=mask)
