"""The native library's attention, rotation and norms. Other dtypes go to the torch references."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from engine.kernels.attention import gated, paged_attention, rotate_and_store
from engine.kernels.attention_tables import AttentionTables, PagedRows, PagedSlots
from engine.kernels.native_linear import X_TYPES
from engine.kernels.pointwise import add_rms_norm, rms_norm
from engine.native import structures
from engine.native.library import OK, Library
from engine.native.structures import AttentionLayout, Rotation

_COLUMNS = 32
"""A head is a multiple of them: what two of the widest vectors take."""


def register(native: Library) -> None:
    """Let the library answer for tensors on the CPU."""
    table = _SequenceTable()

    @paged_attention.register("cpu")
    def native_attention(
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        sequences: Sequence[PagedRows],
        scale: float,
        gate: Tensor | None = None,
        tables: AttentionTables | None = None,  # noqa: ARG001, for a GPU
    ) -> Tensor:
        if q.dtype not in X_TYPES or q.dtype != keys.dtype or q.shape[-1] % _COLUMNS:
            return paged_attention.reference(q, keys, values, sequences, scale, gate)
        out = torch.empty(q.shape, dtype=torch.float32)
        q = q.contiguous()
        native.set_threads(torch.get_num_threads())
        layout = _layout_of(keys, values, q.shape[1], scale)
        status = native.attention(
            byref(layout), table.of(sequences), len(sequences), q.data_ptr(), out.data_ptr()
        )
        _check(status, "attention")
        return gated(out if q.dtype == torch.float32 else out.to(q.dtype), gate)

    @rotate_and_store.register("cpu")
    def native_rotate(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        slots: PagedSlots,
    ) -> Tensor:
        if not q.dtype == k.dtype == v.dtype == keys.dtype == torch.float32:
            return rotate_and_store.reference(q, k, v, cos, sin, keys, values, slots)
        turned = torch.empty(q.shape, dtype=torch.float32)
        held = [part.contiguous() for part in (q, k, v, cos, sin, slots.pages, slots.offsets)]
        addresses = [part.data_ptr() for part in (*held, turned)]
        rotation = Rotation(len(q), cos.shape[1], *addresses)
        layout = _layout_of(keys, values, q.shape[1], 1.0)
        _check(native.rotate_and_store(byref(layout), byref(rotation)), "a rotation")
        return turned

    @rms_norm.register("cpu")
    def native_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            return rms_norm.reference(x, weight, eps)
        x, weight, out = x.contiguous(), weight.contiguous(), torch.empty(x.shape)
        columns = x.shape[-1]
        status = native.rms_norm(
            *(x.data_ptr(), None, weight.data_ptr(), eps),
            *(x.numel() // columns, columns, None, out.data_ptr()),
        )
        _check(status, "a norm")
        return out

    @add_rms_norm.register("cpu")
    def native_add_norm(
        x: Tensor, added: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if not x.dtype == added.dtype == weight.dtype == torch.float32:
            return add_rms_norm.reference(x, added, weight, eps)
        if x.shape != added.shape:
            raise ValueError(f"{tuple(x.shape)} and {tuple(added.shape)} cannot be added")
        x, added, weight = x.contiguous(), added.contiguous(), weight.contiguous()
        total, out, columns = torch.empty(x.shape), torch.empty(x.shape), x.shape[-1]
        status = native.rms_norm(
            *(x.data_ptr(), added.data_ptr(), weight.data_ptr(), eps),
            *(x.numel() // columns, columns, total.data_ptr(), out.data_ptr()),
        )
        _check(status, "a norm")
        return total, out


class _SequenceTable:
    """A step's sequences as the library reads them: made once, then asked for by every layer."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[PagedRows], ctypes.Array[structures.Sequence]] = (
            (),
            (structures.Sequence * 0)(),
        )

    def of(self, sequences: Sequence[PagedRows]) -> ctypes.Array[structures.Sequence]:
        # The sequences of the last call are held here, so they are these only if they are the same.
        last, table = self._last
        if last is sequences and isinstance(sequences, tuple):
            return table
        table = (structures.Sequence * len(sequences))(
            *(
                structures.Sequence(
                    seq.start, seq.length, seq.context, len(seq.pages), seq.pages.data_ptr()
                )
                for seq in sequences
            )
        )
        self._last = sequences, table
        return table


def _layout_of(keys: Tensor, values: Tensor, heads: int, scale: float) -> AttentionLayout:
    if keys.stride() != values.stride() or keys.stride(3) != 1:
        raise ValueError("keys and values lie differently, or their heads in pieces")
    if keys.stride(2) != keys.shape[3]:
        raise ValueError("the heads of a token do not lie end to end")
    return _layout(
        *(keys.data_ptr(), values.data_ptr(), X_TYPES[keys.dtype]),
        *(tuple(keys.shape), keys.stride()[:2], heads, scale),
    )


@functools.lru_cache(maxsize=1024)
def _layout(
    keys: int,
    values: int,
    kind: int,
    shape: tuple[int, int, int, int],
    strides: tuple[int, int],
    heads: int,
    scale: float,
) -> AttentionLayout:
    pages, page_tokens, kv_heads, head_dim = shape
    return AttentionLayout(
        *(heads, kv_heads, head_dim, pages, page_tokens, *strides, keys, values, kind, scale)
    )


def _check(status: int, what: str) -> None:
    if status != OK:
        raise RuntimeError(f"the native library refused {what} (status {status})")
