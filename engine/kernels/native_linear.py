"""The native library's products with stored weights.

Threads follow torch's, so that one setting rules both.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.formats.weight import Projections, StoredWeight
from engine.kernels.linear import linear, linears, mlp
from engine.kernels.native_checks import check_matrix
from engine.native.library import ACTIVATIONS, BFLOAT16, FLOAT32, FORMATS, OK, Library
from engine.native.structures import Matrix

X_TYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


@dataclass(frozen=True)
class Described:
    """Matrices as the library wants to hear of them, for as long as their weights live."""

    matrices: ctypes.Array[Matrix]
    rows: tuple[int, ...]
    columns: int
    readable: bool
    """Whether the library knows all the formats."""
    joined: bool
    """Whether they can be the gate, up and down of one call."""
    held: tuple[Tensor, ...]
    """What was copied to be described, and lives nowhere else."""


def register(native: Library) -> None:
    """Let the library answer for tensors on the CPU."""

    @linear.register("cpu")
    def native_linear(
        x: Tensor, weight: StoredWeight, bias: Tensor | None, singles: int = 0
    ) -> Tensor:
        found = described(weight if bias is None else Projections((weight,), (bias,)))
        if x.dtype not in X_TYPES or not found.readable:
            return linear.reference(x, weight, bias, singles)
        return _products(native, x, found)[0]

    @linears.register("cpu")
    def native_linears(x: Tensor, projections: Projections, singles: int = 0) -> tuple[Tensor, ...]:
        found = described(projections)
        if x.dtype not in X_TYPES or not found.readable:
            return linears.reference(x, projections, singles)
        return _products(native, x, found)

    @mlp.register("cpu")
    def native_mlp(x: Tensor, gate_up_down: Projections, singles: int = 0) -> Tensor:
        found = described(gate_up_down)
        if x.dtype not in X_TYPES or not found.joined:
            return mlp.reference(x, gate_up_down, singles)
        return _mlp(native, x, found)


_KNOWN: WeakKeyDictionary[Projections | StoredWeight, Described] = WeakKeyDictionary()


def described(weight: Projections | StoredWeight) -> Described:
    """The matrices for the library, once for each."""
    found = _KNOWN.get(weight)
    if found is None:
        if isinstance(weight, StoredWeight):
            found = _describe(Projections((weight,), (None,)))
        else:
            found = _describe(weight)
        _KNOWN[weight] = found
    return found


def describe_matrix(weight: StoredWeight, bias: Tensor | None) -> tuple[Matrix, list[Tensor]]:
    """The matrix, and the tensors that must live as long as it is used. Raises ValueError for parts
    or a bias that do not fit the shape."""
    check_matrix(weight, bias)
    parts = weight.parts
    held = [parts["weight"].contiguous()]
    held += [parts[name].contiguous() for name in ("scale", "scale_2") if name in parts]
    addresses = [part.data_ptr() for part in held] + [None] * (3 - len(held))
    if bias is not None:
        held.append(bias.to(torch.float32).contiguous())
    bias_at = None if bias is None else held[-1].data_ptr()
    return Matrix(*weight.shape, *addresses, bias_at, FORMATS[weight.format]), held


def _describe(projections: Projections) -> Described:
    weights = projections.weights
    formats = [weight.format for weight in weights]
    if set(formats) - set(FORMATS):
        return Described((Matrix * 0)(), (), 0, readable=False, joined=False, held=())
    matrices, held = (Matrix * len(weights))(), []
    for place, (weight, bias) in enumerate(zip(weights, projections.biases, strict=True)):
        matrices[place], used = describe_matrix(weight, bias)
        stored = {id(part) for part in weight.parts.values()}
        held += [tensor for tensor in used if id(tensor) not in stored]
    return Described(
        matrices=matrices,
        rows=tuple(weight.shape[0] for weight in weights),
        columns=weights[0].shape[1],
        readable=True,
        joined=len(weights) == 3 and formats[0] == formats[1],
        held=tuple(held),
    )


def _products(native: Library, x: Tensor, found: Described) -> tuple[Tensor, ...]:
    columns, leading = found.columns, x.shape[:-1]
    if x.shape[-1] != columns:
        raise ValueError(f"x has {x.shape[-1]} columns, the weight {columns}")
    x = x.contiguous()
    tokens = x.numel() // columns
    out = torch.empty(tokens * sum(found.rows), dtype=torch.float32)
    native.set_threads(torch.get_num_threads())
    status = native.products(
        *(found.matrices, len(found.rows)),
        *(x.data_ptr(), X_TYPES[x.dtype], tokens, out.data_ptr()),
    )
    if status != OK:
        raise RuntimeError(f"the native library refused a product (status {status})")
    if x.dtype != torch.float32:
        out = out.to(x.dtype)
    if len(found.rows) == 1:
        return (out.view(*leading, found.rows[0]),)
    parts = torch.split(out, [tokens * rows for rows in found.rows])
    return tuple(part.view(*leading, rows) for part, rows in zip(parts, found.rows, strict=True))


def _mlp(native: Library, x: Tensor, found: Described) -> Tensor:
    hidden = found.columns
    if x.shape[-1] != hidden:
        raise ValueError(f"x has {x.shape[-1]} columns, the weight {hidden}")
    x = x.contiguous()
    out = torch.empty((*x.shape[:-1], found.rows[2]), dtype=torch.float32)
    native.set_threads(torch.get_num_threads())
    status = native.mlp(
        *(found.matrices, ACTIVATIONS["silu_glu"]),
        *(x.data_ptr(), X_TYPES[x.dtype], x.numel() // hidden, out.data_ptr()),
    )
    if status != OK:
        raise RuntimeError(f"the native library refused a feed-forward (status {status})")
    return out if x.dtype == torch.float32 else out.to(x.dtype)
