"""Cases for timing the kernels of attention, row operations, router and sampling on a GPU.

Shapes are those of Qwen3.6-35B-A3B. `cases` makes one after the other, so that only one lies in
memory; whoever times them also asks `check` for the error against the torch reference in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from engine.context.batch import SequenceSlice
from engine.context.kv import KvSlots
from engine.kernels import attention, pointwise
from engine.kernels.gpu import pointwise as gpu_pointwise
from engine.kernels.gpu import router, sampling
from engine.kernels.gpu.attention import attend, attention_tables
from engine.kernels.gpu.attention_decode import decode_attention
from engine.kernels.gpu.rotary import norm_rotate_and_store
from engine.messages import Sampling
from engine.runtime.sampler import sample
from engine.runtime.sampling_row import SamplingRow

HIDDEN, HEADS, KV_HEADS, DIM, HALF, PAGE = 2048, 16, 2, 256, 32, 16
EXPERTS, TOP_K, VOCABULARY = 256, 8, 151936
VALUE_HEADS, VALUE_DIM, SHARED = 32, 128, 512
SCALE = DIM**-0.5
EPS = 1e-6


class Case(NamedTuple):
    name: str
    run: Callable[[], object]
    check: Callable[[], float]
    """Relative error of `run` against the torch reference in float32; of ids, the share that
    differs."""
    nbytes: float
    """That no kernel can do without."""
    flops: float


def cases(device: str = "cuda") -> Iterator[Case]:
    torch.manual_seed(0)
    where = torch.device(device)
    for count, context in ((1, 256), (1, 8192), (1, 32768), (1, 131072), (4, 8192), (8, 8192)):
        yield decode(where, count, context)
    for chunks in (((8192, 0),), ((2048, 14336),), ((30, 8192),), ((30, 8192), (2048, 0))):
        yield prefill(where, chunks)
    for rows in (1, 8, 8192):
        yield rotate(where, rows)
        yield from norms(where, rows)
        yield from products(where, rows)
        yield route(where, rows)
    yield route(where, 300)
    for rows in (1, 8):
        yield draw(where, rows, Sampling(temperature=1.0, top_k=20, top_p=0.95))
        yield draw(where, rows, Sampling(temperature=0.0))
        yield draw(where, rows, Sampling(temperature=1.0))


def error(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def normal(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def paged(
    device: torch.device, chunks: Sequence[tuple[int, int]]
) -> tuple[Tensor, Tensor, tuple[SequenceSlice, ...]]:
    """Keys, values and sequences (length, context) whose pages lie in no order."""
    needed = [-(-(length + context) // PAGE) for length, context in chunks]
    # As KvPages lays them, two layers of a page beside each other.
    storage = normal(device, sum(needed), 2, 2, PAGE, KV_HEADS, DIM)
    order = torch.randperm(sum(needed)).to(device)
    sequences, row, page = [], 0, 0
    for (length, context), count in zip(chunks, needed, strict=True):
        sequences.append(SequenceSlice(row, length, context, order[page : page + count], 0))
        row, page = row + length, page + count
    return storage[:, 1, 0], storage[:, 1, 1], tuple(sequences)


def attended(
    q: Tensor, keys: Tensor, values: Tensor, sequences: tuple[SequenceSlice, ...], gate: Tensor
) -> Tensor:
    """The reference in float32, a sequence at a time over a copy of its own pages."""
    out = torch.empty(q.shape, device=q.device)
    for seq in sequences:
        rows = slice(seq.start, seq.start + seq.length)
        own = torch.arange(len(seq.pages), device=q.device)
        alone = (replace(seq, start=0, pages=own),)
        pages = keys[seq.pages].float(), values[seq.pages].float()
        out[rows] = attention.paged_attention.reference(q[rows].float(), *pages, alone, SCALE)
    return out * gate.float().sigmoid()


def decode(device: torch.device, count: int, context: int) -> Case:
    keys, values, sequences = paged(device, [(1, context - 1)] * count)
    q, gate = normal(device, count, HEADS, 2 * DIM).chunk(2, dim=-1)
    table = torch.stack([seq.pages for seq in sequences]).to(torch.int32)
    lengths = torch.full((count,), context, dtype=torch.int32, device=device)

    def run() -> Tensor:
        return decode_attention(q, keys, values, table, lengths, SCALE, gate)

    return Case(
        f"attention decode, {count} x {context}",
        run,
        lambda: error(run(), attended(q, keys, values, sequences, gate)),
        2.0 * 2 * count * context * KV_HEADS * DIM,
        4.0 * count * context * HEADS * DIM,
    )


def prefill(device: torch.device, chunks: Sequence[tuple[int, int]]) -> Case:
    keys, values, sequences = paged(device, chunks)
    rows = sum(length for length, _ in chunks)
    q, gate = normal(device, rows, HEADS, 2 * DIM).chunk(2, dim=-1)
    tables = attention_tables(q, sequences, DIM)

    def run() -> Tensor:
        return attend(q, keys, values, tables, SCALE, gate)

    pairs = sum(length * context + length * (length + 1) / 2 for length, context in chunks)
    positions = sum(length + context for length, context in chunks)
    return Case(
        "attention prefill, " + " and ".join(f"{length} after {past}" for length, past in chunks),
        run,
        lambda: error(run(), attended(q, keys, values, sequences, gate)),
        2.0 * (2 * positions * KV_HEADS + 3 * rows * HEADS) * DIM,
        4.0 * pairs * HEADS * DIM,
    )


def rotate(device: torch.device, rows: int) -> Case:
    keys, values, _ = paged(device, [(rows, 0)])
    q = normal(device, rows, HEADS, 2 * DIM)[..., :DIM]
    k, v = (normal(device, rows, KV_HEADS, DIM) for _ in range(2))
    norms = tuple(1 + normal(device, DIM, dtype=torch.float32) / 10 for _ in range(2))
    angles = torch.arange(rows, device=device).unsqueeze(1) * torch.rand(HALF, device=device)
    place = torch.arange(rows, device=device)
    slots = KvSlots(place // PAGE, place % PAGE)
    turns = angles.cos(), angles.sin()

    def run() -> Tensor:
        pages = keys, values, slots
        return norm_rotate_and_store(q, k, v, (norms[0], norms[1]), EPS, *turns, *pages)

    def check() -> float:
        got = run()
        stored = keys[slots.pages, slots.offsets], values[slots.pages, slots.offsets]
        wide = torch.empty(keys.shape, device=device), torch.empty(keys.shape, device=device)
        heads = [
            pointwise.rms_norm.reference(part.float(), weight, EPS)
            for part, weight in zip((q, k), norms, strict=True)
        ]
        wanted = attention.rotate_and_store.reference(*heads, v.float(), *turns, *wide, slots)
        kept = [pages[slots.pages, slots.offsets] for pages in wide]
        pairs = zip((got, *stored), (wanted, *kept), strict=True)
        return max(error(each, want) for each, want in pairs)

    moved = 2.0 * 2 * rows * (HEADS + 2 * KV_HEADS) * DIM
    return Case(f"norm, rotary and store, {rows} rows", run, check, moved, 0)


def norms(device: torch.device, rows: int) -> Iterator[Case]:
    x, added = (normal(device, rows, HIDDEN) for _ in range(2))
    weight = 1 + normal(device, HIDDEN, dtype=torch.float32) / 10
    size = 2.0 * rows * HIDDEN
    reference = pointwise.rms_norm.reference
    yield Case(
        f"rms_norm, {rows} x {HIDDEN}",
        lambda: gpu_pointwise.rms_norm(x, weight, EPS),
        lambda: error(gpu_pointwise.rms_norm(x, weight, EPS), reference(x.float(), weight, EPS)),
        2 * size,
        0,
    )

    def check() -> float:
        got = gpu_pointwise.add_rms_norm(x, added, weight, EPS)
        total = x.float() + added.float()
        return max(error(got[0], total), error(got[1], reference(total, weight, EPS)))

    yield Case(
        f"add_rms_norm, {rows} x {HIDDEN}",
        lambda: gpu_pointwise.add_rms_norm(x, added, weight, EPS),
        check,
        4 * size,
        0,
    )
    wide = normal(device, rows, VALUE_HEADS, VALUE_DIM, dtype=torch.float32)
    gate = normal(device, rows, VALUE_HEADS, VALUE_DIM)
    factor = 1 + normal(device, VALUE_DIM, dtype=torch.float32) / 10
    gated = pointwise.gated_rms_norm.reference
    yield Case(
        f"gated_rms_norm, {rows} x {VALUE_HEADS} x {VALUE_DIM}",
        lambda: gpu_pointwise.gated_rms_norm(wide, gate, factor, EPS),
        lambda: error(
            gpu_pointwise.gated_rms_norm(wide, gate, factor, EPS),
            gated(wide, gate.float(), factor, EPS),
        ),
        8.0 * wide.numel(),
        0,
    )


def products(device: torch.device, rows: int) -> Iterator[Case]:
    gate, up = normal(device, rows, 2 * SHARED).chunk(2, dim=-1)
    yield Case(
        f"swiglu, {rows} x {SHARED}",
        lambda: gpu_pointwise.swiglu(gate, up),
        lambda: error(
            gpu_pointwise.swiglu(gate, up), pointwise.swiglu.reference(gate.float(), up.float())
        ),
        6.0 * gate.numel(),
        0,
    )


def route(device: torch.device, rows: int) -> Case:
    x = normal(device, rows, HIDDEN)
    weight = normal(device, EXPERTS, HIDDEN, dtype=torch.float32) / HIDDEN**0.5

    def check() -> float:
        ids, weights = router.route(x, weight, TOP_K, True)
        wanted, shares = pointwise.route.reference(x, weight, TOP_K, True)
        if not torch.equal(ids, wanted):
            return float((ids != wanted).float().mean())
        return error(weights, shares)

    return Case(
        f"router, {rows} x {EXPERTS}",
        lambda: router.route(x, weight, TOP_K, True),
        check,
        4.0 * weight.numel() + 2.0 * x.numel(),
        2.0 * rows * weight.numel(),
    )


def draw(device: torch.device, count: int, parameters: Sampling) -> Case:
    logits = 2 * normal(device, count, VOCABULARY, dtype=torch.float32)
    rows = [SamplingRow(parameters, [], VOCABULARY, device) for _ in range(count)]
    settings = [parameters.temperature, parameters.top_k, parameters.top_p, parameters.min_p]
    values = [[*settings, row.draw()] for row in rows]
    packed = torch.tensor(values, dtype=torch.float64, device=device)

    def check() -> float:
        wanted = torch.tensor(sample(logits, rows), device=device)
        return float((sampling.sample_rows(logits, packed) != wanted).float().mean())

    return Case(
        f"sampling, {count} rows, temperature {parameters.temperature}, top_k {parameters.top_k}",
        lambda: sampling.sample_rows(logits, packed),
        check,
        4.0 * logits.numel(),
        0,
    )
