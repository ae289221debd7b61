"""The native library's attention, rotation, norms and routing. Else the references answer."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from engine.formats.weight import Projections
from engine.kernels.attention import attention_block, gated, paged_attention, rotate_and_store
from engine.kernels.attention_tables import AttentionTables, PagedRows, PagedSlots
from engine.kernels.native_checks import check_tensor
from engine.kernels.native_linear import X_TYPES, described
from engine.kernels.pointwise import add_gated, add_rms_norm, rms_norm, route
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
        if q.shape[2] != keys.shape[3]:
            raise ValueError(f"heads of q have {q.shape[2]} columns, the keys {keys.shape[3]}")
        out = torch.empty(q.shape, dtype=torch.float32)
        q = q.contiguous()
        native.set_threads(torch.get_num_threads())
        layout = _layout_of(keys, values, q.shape[1], scale)
        status = native.attention(
            byref(layout), table.of(sequences, len(q)), len(sequences), q.data_ptr(), out.data_ptr()
        )
        _check(status, "attention")
        return gated(out if q.dtype == torch.float32 else out.to(q.dtype), gate)

    @attention_block.register("cpu")
    def native_block(
        x: Tensor,
        qkv: Projections,
        output: Projections,
        cos: Tensor,
        sin: Tensor,
        keys: Tensor,
        values: Tensor,
        slots: PagedSlots,
        sequences: Sequence[PagedRows],
        scale: float,
        singles: int = 0,
        tables: AttentionTables | None = None,
    ) -> Tensor:
        into, out_of, dim = described(qkv), described(output), keys.shape[3]
        if (
            not x.dtype == keys.dtype == torch.float32
            or not (into.readable and out_of.readable)
            or dim % _COLUMNS
        ):
            return attention_block.reference(
                *(x, qkv, output, cos, sin, keys, values, slots, sequences, scale),
                *(singles, tables),
            )
        if x.shape[1] != into.columns:
            raise ValueError(f"x has {x.shape[1]} columns, the weights {into.columns}")
        tokens = x.shape[0]
        _check_rotation(tokens, cos, sin, slots)
        y = torch.empty((tokens, out_of.rows[0]), dtype=torch.float32)
        held = [part.contiguous() for part in (x, cos, sin, slots.pages, slots.offsets)]
        x_at, *addresses = [part.data_ptr() for part in held]
        rotation = Rotation(tokens, cos.shape[1], None, None, None, *addresses, None)
        layout = _layout_of(keys, values, into.rows[0] // dim, scale)
        native.set_threads(torch.get_num_threads())
        status = native.attention_block(
            *(into.matrices, out_of.matrices, byref(layout), byref(rotation)),
            *(table.of(sequences), len(sequences), x_at, y.data_ptr()),
        )
        _check(status, "attention")
        return y

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
        stored = (len(q), *keys.shape[2:])
        check_tensor("k", k, torch.float32, stored)
        check_tensor("v", v, torch.float32, stored)
        if q.shape[2] != keys.shape[3]:
            raise ValueError(f"heads of q have {q.shape[2]} columns, the keys {keys.shape[3]}")
        _check_rotation(len(q), cos, sin, slots)
        turned = torch.empty(q.shape, dtype=torch.float32)
        held = [part.contiguous() for part in (q, k, v, cos, sin, slots.pages, slots.offsets)]
        addresses = [part.data_ptr() for part in (*held, turned)]
        rotation = Rotation(len(q), cos.shape[1], *addresses)
        layout = _layout_of(keys, values, q.shape[1], 1.0)
        _check(native.rotate_and_store(byref(layout), byref(rotation)), "a rotation")
        return turned

    @route.register("cpu")
    def native_route(
        x: Tensor, router: Tensor, top_k: int, normalise: bool
    ) -> tuple[Tensor, Tensor]:
        if x.dtype not in X_TYPES or router.dtype != torch.float32:
            return route.reference(x, router, top_k, normalise)
        tokens, (experts, hidden) = len(x), router.shape
        if x.shape[1] != hidden or not 1 <= top_k <= experts:
            raise ValueError(f"{top_k} of {experts} experts of {hidden} for {tuple(x.shape)}")
        x, router = x.contiguous(), router.contiguous()
        ids = torch.empty((tokens, top_k), dtype=torch.int64)
        weights = torch.empty((tokens, top_k), dtype=torch.float32)
        native.set_threads(torch.get_num_threads())
        status = native.route(
            *(router.data_ptr(), experts, hidden, x.data_ptr(), X_TYPES[x.dtype]),
            *(tokens, top_k, normalise, ids.data_ptr(), weights.data_ptr()),
        )
        _check(status, "routing")
        return ids, weights

    @add_gated.register("cpu")
    def native_add_gated(out: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
        parts = (out, added) if gate is None else (out, added, gate)
        if any(part.dtype != torch.float32 or not part.is_contiguous() for part in parts):
            return add_gated.reference(out, added, gate)
        if out.shape != added.shape or (gate is not None and gate.shape != (len(out), 1)):
            raise ValueError(f"{tuple(added.shape)} is not added to {tuple(out.shape)} by gates")
        gates = None if gate is None else gate.data_ptr()
        status = native.add_gated(out.data_ptr(), added.data_ptr(), gates, *out.shape)
        _check(status, "a sum")
        return out

    @rms_norm.register("cpu")
    def native_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype != torch.float32 or weight.dtype != torch.float32:
            return rms_norm.reference(x, weight, eps)
        check_tensor("the norm's weight", weight, torch.float32, x.shape[-1:])
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
        check_tensor("the norm's weight", weight, torch.float32, x.shape[-1:])
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
        self._last: tuple[Sequence[PagedRows], ctypes.Array[structures.Sequence], int] = (
            (),
            (structures.Sequence * 0)(),
            0,
        )

    def of(
        self, sequences: Sequence[PagedRows], rows: int | None = None
    ) -> ctypes.Array[structures.Sequence]:
        """Raises ValueError for pages that are not int64, and a sequence beyond so many rows (None:
        the library looks itself)."""
        # The sequences of the last call are held here, so they are these only if they are the same.
        last, table, end = self._last
        if last is not sequences or not isinstance(sequences, tuple):
            table, end = _table(sequences)
            self._last = sequences, table, end
        if rows is not None and end > rows:
            raise ValueError(f"a sequence ends at row {end} of {rows}")
        return table


def _table(sequences: Sequence[PagedRows]) -> tuple[ctypes.Array[structures.Sequence], int]:
    """The sequences, and where the last one's rows end."""
    for seq in sequences:
        check_tensor("pages", seq.pages, torch.int64, (len(seq.pages),))
        if seq.start < 0 or not seq.pages.is_contiguous():
            raise ValueError(f"a sequence starts at row {seq.start}, or its pages lie in pieces")
    table = (structures.Sequence * len(sequences))(
        *(
            structures.Sequence(
                seq.start, seq.length, seq.context, len(seq.pages), seq.pages.data_ptr()
            )
            for seq in sequences
        )
    )
    return table, max((seq.start + seq.length for seq in sequences), default=0)


def _check_rotation(rows: int, cos: Tensor, sin: Tensor, slots: PagedSlots) -> None:
    half = cos.shape[1]
    check_tensor("cos", cos, torch.float32, (rows, half))
    check_tensor("sin", sin, torch.float32, (rows, half))
    check_tensor("pages", slots.pages, torch.int64, (rows,))
    check_tensor("offsets", slots.offsets, torch.int64, (rows,))


def _layout_of(keys: Tensor, values: Tensor, heads: int, scale: float) -> AttentionLayout:
    if keys.shape != values.shape or keys.dtype != values.dtype:
        raise ValueError("keys and values differ in shape or dtype")
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
