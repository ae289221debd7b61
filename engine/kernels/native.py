"""The native library's kernels for tensors on the CPU, behind the operations' own checks.

A weight or dtype that the library does not read goes to the torch reference, and so does everything
where the library was not built. Threads follow torch's, so that one setting rules both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats.blob import BlobSpec
from engine.formats.weight import StoredWeight
from engine.kernels.linear import linear
from engine.kernels.moe import moe_combine, moe_expert_rows
from engine.native.library import (
    ACTIVATIONS,
    BAD_SLOT,
    BFLOAT16,
    FLOAT32,
    FORMATS,
    OK,
    Library,
    expert_layout,
    library,
)

_X_TYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


def register(native: Library) -> None:
    """Let the library answer for tensors on the CPU."""

    @linear.register("cpu")
    def native_linear(x: Tensor, weight: StoredWeight, bias: Tensor | None) -> Tensor:
        if x.dtype not in _X_TYPES or weight.format not in FORMATS:
            return linear.reference(x, weight, bias)
        return _linear(native, x, weight, bias)

    @moe_expert_rows.register("cpu")
    def native_rows(bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, rows: Tensor) -> None:
        if x.dtype not in _X_TYPES or {spec.gate_up_format, spec.down_format} - set(FORMATS):
            return moe_expert_rows.reference(bank, spec, x, slots, rows)
        return _moe_rows(native, bank, spec, x, slots, rows, "silu_glu")

    @moe_combine.register("cpu")
    def native_combine(rows: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        return _combine(native, rows, weights, dtype)


def _matrix(weight: StoredWeight) -> tuple[list[Tensor], tuple[int | None, ...]]:
    """Tensors that must live during the call, and the arguments that describe the matrix."""
    parts = weight.parts
    held = [parts["weight"].contiguous()]
    held += [parts[name].contiguous() for name in ("scale", "scale_2") if name in parts]
    addresses = [part.data_ptr() for part in held] + [None] * (3 - len(held))
    return held, (FORMATS[weight.format], *weight.shape, *addresses)


def _linear(native: Library, x: Tensor, weight: StoredWeight, bias: Tensor | None) -> Tensor:
    rows, columns = weight.shape
    if x.shape[-1] != columns:
        raise ValueError(f"x has {x.shape[-1]} columns, the weight {columns}")
    x = x.contiguous()
    held, matrix = _matrix(weight)
    if bias is not None:
        bias = bias.to(torch.float32).contiguous()
    out = torch.empty((*x.shape[:-1], rows), dtype=torch.float32)
    native.set_threads(torch.get_num_threads())
    status = native.linear(
        *matrix,
        *(x.data_ptr(), _X_TYPES[x.dtype], x.numel() // columns),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
    )
    _check(status, "a product")
    del held
    return out if x.dtype == torch.float32 else out.to(x.dtype)


def decoded(weight: StoredWeight) -> Tensor:
    """float32 [out, in]: the numbers that the library's products multiply with."""
    native = _required()
    held, matrix = _matrix(weight)
    out = torch.empty(weight.shape, dtype=torch.float32)
    _check(native.decode(*matrix, 0, weight.shape[0], out.data_ptr()), "a matrix")
    del held
    return out


def expert_rows(
    bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, rows: Tensor, activation: str
) -> None:
    """moe_expert_rows with any of the library's activations (engine.native.library)."""
    _moe_rows(_required(), bank, spec, x, slots, rows, activation)


def _moe_rows(
    native: Library,
    bank: Tensor,
    spec: BlobSpec,
    x: Tensor,
    slots: Tensor,
    rows: Tensor,
    activation: str,
) -> None:
    tokens, width = slots.shape
    wanted = (tokens, width, spec.hidden)
    if not rows.is_contiguous() or rows.dtype != torch.float32 or tuple(rows.shape) != wanted:
        raise ValueError(f"rows must be contiguous float32 {wanted}")
    if tuple(x.shape) != (tokens, spec.hidden):
        raise ValueError(f"x is {tuple(x.shape)}, not {(tokens, spec.hidden)}")
    if bank.dtype != torch.uint8 or bank.shape[1] != spec.stride or not bank.is_contiguous():
        raise ValueError(f"the bank must be contiguous bytes [_, {spec.stride}]")
    if slots.numel() == 0:
        return
    x = x.contiguous()
    slots = slots.contiguous()
    native.set_threads(torch.get_num_threads())
    status = native.moe_rows(
        expert_layout(spec),
        *(bank.data_ptr(), bank.shape[0]),
        *(x.data_ptr(), _X_TYPES[x.dtype], tokens, width, slots.data_ptr()),
        *(ACTIVATIONS[activation], rows.data_ptr()),
    )
    if status == BAD_SLOT:
        raise ValueError(f"slot {int(slots.max())} is not in the bank of {bank.shape[0]}")
    _check(status, "a layer step")


def _combine(native: Library, rows: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    tokens, width, hidden = rows.shape
    rows = rows.contiguous()
    weights = weights.to(torch.float32).contiguous()
    out = torch.empty((tokens, hidden), dtype=torch.float32)
    status = native.moe_combine(
        *(rows.data_ptr(), weights.data_ptr(), tokens, width, hidden, out.data_ptr())
    )
    _check(status, "a sum of routes")
    return out if dtype == torch.float32 else out.to(dtype)


def _required() -> Library:
    native = library()
    if native is None:
        raise RuntimeError("the native library is not there")
    return native


def _check(status: int, what: str) -> None:
    if status != OK:
        raise RuntimeError(f"the native library refused {what} (status {status})")


if (_native := library()) is not None:
    register(_native)
