"""Attention with the products around it in one call: to the bit what the single calls give."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.context.batch import SequenceSlice
from engine.formats.weight import Projections
from engine.kernels.attention import attention_block
from engine.layers.linear import Linear, together
from tests.native.test_attention import PAGE, batch
from tests.native.test_linear import random_weight

pytestmark = pytest.mark.usefixtures("tier")
HEADS, KV_HEADS, DIM, HIDDEN, POOL = 6, 2, 64, 96, 40


@dataclass(frozen=True)
class Slots:
    pages: Tensor
    offsets: Tensor


def slots_of(sequences: tuple[SequenceSlice, ...]) -> Slots:
    positions = [torch.arange(s.context, s.context + s.length) for s in sequences]
    pages = [s.pages[p // PAGE] for s, p in zip(sequences, positions, strict=True)]
    return Slots(torch.cat(pages), torch.cat(positions) % PAGE)


def weights(storage: str, biased: bool) -> tuple[Projections, Projections]:
    maps = [
        Linear(random_weight(storage, rows, HIDDEN), torch.randn(rows) if biased else None)
        for rows in (HEADS * DIM, KV_HEADS * DIM, KV_HEADS * DIM)
    ]
    out_of = Linear(random_weight(storage, HIDDEN, HEADS * DIM))
    return together(*maps), together(out_of)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("storage", ["nvfp4", "q4_1", "float32"])
def test_it_equals_the_single_calls_to_the_bit(
    storage: str, biased: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(biased)
    qkv, output = weights(storage, biased)
    for shapes in ([(70, 1)], [(0, 40), (33, 1), (5, 9)]):
        sequences = batch(shapes, POOL)
        rows = sum(s.length for s in sequences)
        x, angles = torch.randn(rows, HIDDEN).to(dtype), torch.randn(rows, DIM // 2)
        pool = torch.randn(POOL, 2, PAGE, KV_HEADS, DIM).to(dtype)
        found = []
        for run in (attention_block, attention_block.reference):
            for threads in (1, 3):
                torch.set_num_threads(threads)
                mine = pool.clone()
                where = mine[:, 0], mine[:, 1], slots_of(sequences), sequences
                y = run(x, qkv, output, angles.cos(), angles.sin(), *where, DIM**-0.5)
                assert y.dtype == dtype
                found.append((y, mine))
        for y, stored in found[1:]:
            assert torch.equal(y, found[0][0])
            assert torch.equal(stored, found[0][1])


def test_what_does_not_fit_is_refused() -> None:
    qkv, output = weights("float32", False)
    sequences = batch([(0, 3)], POOL)
    pool = torch.zeros(POOL, 2, PAGE, KV_HEADS, DIM)
    angles = torch.zeros(3, DIM // 2)
    where = pool[:, 0], pool[:, 1], slots_of(sequences)
    with pytest.raises(ValueError, match="95 columns"):
        attention_block(
            torch.zeros(3, 95), qkv, output, angles, angles, *where, sequences, DIM**-0.5
        )
    beyond = (SequenceSlice(1, 3, 0, sequences[0].pages, 0),)
    with pytest.raises(RuntimeError, match="refused attention"):
        attention_block(
            torch.zeros(3, HIDDEN), qkv, output, angles, angles, *where, beyond, DIM**-0.5
        )
    with pytest.raises(RuntimeError, match="refused attention"):
        attention_block(
            torch.zeros(3, HIDDEN), qkv, together(Linear(random_weight("float32", 8, 64))),
            *(angles, angles, *where, sequences, DIM**-0.5),
        )  # fmt: skip
