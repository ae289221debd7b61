"""The native library's kernels for tensors on the CPU, behind the operations' own checks.

A weight or dtype that the library does not read goes to the torch reference, and so does everything
where the library was not built. Threads follow torch's, so that one setting rules both.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.formats.blob import BlobSpec
from engine.formats.weight import StoredWeight
from engine.kernels import native_linear, native_rows
from engine.kernels.moe import moe_combine, moe_expert_rows
from engine.kernels.native_checks import check_tensor
from engine.kernels.native_linear import X_TYPES, describe_matrix
from engine.native.library import (
    ACTIVATIONS,
    BAD_SLOT,
    FORMATS,
    OK,
    Library,
    expert_layout,
    library,
)


def register(native: Library) -> None:
    """Let the library answer for tensors on the CPU."""

    native_linear.register(native)
    native_rows.register(native)

    @moe_expert_rows.register("cpu")
    def native_expert_rows(
        bank: Tensor,
        spec: BlobSpec,
        x: Tensor,
        slots: Tensor,
        rows: Tensor,
        singles: int = 0,
        experts: int = 0,
    ) -> None:
        if x.dtype not in X_TYPES or {spec.gate_up_format, spec.down_format} - set(FORMATS):
            return moe_expert_rows.reference(bank, spec, x, slots, rows, singles, experts)
        return _moe_rows(native, bank, spec, x, slots, rows, "silu_glu")

    @moe_combine.register("cpu")
    def native_combine(rows: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
        return rows if weights is None else _combine(native, rows, weights, dtype)


def decoded(weight: StoredWeight) -> Tensor:
    """float32 [out, in]: the numbers that the library's products multiply with."""
    native = _required()
    matrix, held = describe_matrix(weight, None)
    out = torch.empty(weight.shape, dtype=torch.float32)
    parts = matrix.weight, matrix.scale, matrix.scale_2
    status = native.decode(
        *(matrix.format, *weight.shape, *parts, 0, weight.shape[0], out.data_ptr())
    )
    _check(status, "a matrix")
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
    if slots.dtype != torch.int64 or slots.dim() != 2:
        raise ValueError(f"slots are {slots.dtype} {tuple(slots.shape)}, not int64 [T, k]")
    tokens, width = slots.shape
    wanted = (tokens, width, spec.hidden)
    if not rows.is_contiguous() or rows.dtype != torch.float32 or tuple(rows.shape) != wanted:
        raise ValueError(f"rows must be contiguous float32 {wanted}")
    if tuple(x.shape) != (tokens, spec.hidden):
        raise ValueError(f"x is {tuple(x.shape)}, not {(tokens, spec.hidden)}")
    flat = bank.dtype == torch.uint8 and bank.dim() == 2 and bank.is_contiguous()
    if not flat or bank.shape[1] != spec.stride:
        raise ValueError(f"the bank must be contiguous bytes [_, {spec.stride}]")
    if slots.numel() == 0:
        return
    x = x.contiguous()
    slots = slots.contiguous()
    native.set_threads(torch.get_num_threads())
    status = native.moe_rows(
        bank,
        expert_layout(spec),
        *(bank.data_ptr(), bank.shape[0]),
        *(x.data_ptr(), X_TYPES[x.dtype], tokens, width, slots.data_ptr()),
        *(ACTIVATIONS[activation], rows.data_ptr()),
    )
    if status == BAD_SLOT:
        raise ValueError(f"slot {int(slots.max())} is not in the bank of {bank.shape[0]}")
    _check(status, "a layer step")


def _combine(native: Library, rows: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
    tokens, width, hidden = rows.shape
    check_tensor("rows", rows, torch.float32, (tokens, width, hidden))
    if tuple(weights.shape) != (tokens, width):
        raise ValueError(f"weights are {tuple(weights.shape)}, not {(tokens, width)}")
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
