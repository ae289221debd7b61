"""Sampling on a GPU with nothing read back: temperature, top_k, top_p, min_p, one draw a row.

The first kernel ranks each block of the vocabulary and sums it; the second merges the blocks'
likeliest tokens and draws. It follows engine/runtime/sampler.py: filters in the same order, weights
and sums in float64, ties by ascending id. What it cannot know from MOST candidates it does not
guess: such a row's token is UNSETTLED, and the caller takes the sampler.

Tokens are taken one after another, so what counts is how long one takes: programs are single warps,
which need no barrier, and look for a maximum of 64 bits in halves, for which there is an
instruction.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.ahead import Ahead
from engine.kernels.gpu.ranking import LOWEST, highest_of, index_of, ranked, value_of
from engine.kernels.sampling import COLUMNS

MOST = 64
"""Tokens that filters may keep."""
_BLOCK = 1024


@triton.jit
def _wanted(parameters, MOST: tl.constexpr):
    """How many of the likeliest tokens a row looks at: none where nothing filters."""
    top_k = tl.load(parameters + 1).to(tl.int32)
    cut = (tl.load(parameters + 2) < 1) | (tl.load(parameters + 3) > 0)
    count = tl.where(top_k > 0, tl.where(top_k <= MOST, top_k, 0), tl.where(cut, MOST, 0))
    return tl.where(tl.load(parameters) == 0, 1, count)


@triton.jit
def _tempered(score, peak, temperature):
    """float32 (score - peak) / temperature, and -inf of a barred token whatever the peak is."""
    barred = score == float("-inf")
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    return tl.where(barred, score, (tl.where(barred, peak, score) - peak) / temperature)


@triton.jit
def _temperature(parameters):
    return tl.maximum(tl.load(parameters).to(tl.float32), 1e-30)


@triton.jit
def _rank_block(
    logits,
    parameters,
    candidates,
    peaks,
    masses,
    logits_row,
    blocks,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    FINITE: tl.constexpr,
):
    """candidates int64 [S, blocks, MOST]: keys of the likeliest, as many as the row wants, and as
    many as there are; peaks float32 [S, blocks]; masses float64 [S, blocks] relative to them, NaN
    if logits must be FINITE and one is not."""
    block = tl.program_id(0)
    row = tl.program_id(1)
    parameters += 5 * row
    i = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(
        logits + row.to(tl.int64) * logits_row + i, mask=i < VOCABULARY, other=float("-inf")
    ).to(tl.float32)
    peak = tl.max(score, 0)
    place = row * blocks + block
    tl.store(peaks + place, peak)
    weight = tl.exp(_tempered(score, peak, _temperature(parameters)))
    mass = tl.sum(weight.to(tl.float64), 0)
    if FINITE:
        # Not so of NaN either.
        sound = (tl.abs(score) < float("inf")) | (i >= VOCABULARY)
        mass = tl.where(tl.min(sound.to(tl.int32), 0) == 1, mass, float("nan"))
    tl.store(masses + place, mass)
    keys = tl.where(i < VOCABULARY, ranked(score, i), LOWEST)
    for rank in range(_wanted(parameters, MOST)):
        highest = highest_of(keys)
        tl.store(candidates + place * MOST + rank, highest)
        keys = tl.where(keys == highest, LOWEST, keys)


@triton.jit
def _choose(
    logits,
    parameters,
    candidates,
    peaks,
    masses,
    tokens,
    logits_row,
    blocks,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    MOST: tl.constexpr,
    FINITE: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    row = tl.program_id(0)
    parameters += 5 * row
    wanted = _wanted(parameters, MOST)
    b = tl.arange(0, BLOCK_B)
    tops = tl.load(peaks + row * blocks + b, mask=b < blocks, other=float("-inf"))
    mass = tl.load(masses + row * blocks + b, mask=b < blocks, other=0.0)
    # Relative to the row's peak, as the candidates' weights are.
    mass *= tl.exp(_tempered(tops, tl.max(tops, 0), _temperature(parameters)).to(tl.float64))
    if wanted > 0:
        token = _filtered(
            *(parameters, candidates + row * blocks * MOST, tl.sum(mass, 0), wanted, blocks),
            *(VOCABULARY, MOST, BLOCK_B),
        )
    elif tl.load(parameters + 1) > 0:
        token = -1
    else:
        token = _plain(
            *(parameters, logits + row.to(tl.int64) * logits_row, tops, mass, VOCABULARY),
            *(BLOCK, BLOCK_B),
        )
    token = tl.where(tl.max(tops, 0) == float("-inf"), -1, token)
    if FINITE:
        total = tl.sum(mass, 0)
        token = tl.where(total == total, token, -2)
    tl.store(tokens + row, token)


@triton.jit
def _filtered(
    parameters,
    candidates,
    mass,
    wanted,
    blocks,
    VOCABULARY: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """The token drawn among the `wanted` likeliest, or -1 where the filters may keep others."""
    block = tl.arange(0, BLOCK_B)
    # Each block's are in order: the row's next one is the first that is left of some block.
    past = tl.zeros([BLOCK_B], tl.int32)
    candidates += block * MOST
    first = tl.load(candidates, mask=block < blocks, other=LOWEST)
    rank = tl.arange(0, MOST)
    best = tl.full([MOST], LOWEST, tl.int64)
    for each in range(wanted):
        highest = highest_of(first)
        best = tl.where(rank == each, highest, best)
        taken = (first == highest) & (block < blocks)
        past += taken.to(tl.int32)
        following = tl.load(candidates + past, mask=taken & (past < wanted), other=LOWEST)
        first = tl.where(taken, following, first)
    top_k = tl.load(parameters + 1)
    top_p = tl.load(parameters + 2)
    min_p = tl.load(parameters + 3)
    score = tl.where(best == LOWEST, float("-inf"), value_of(best))
    exponent = _tempered(score, tl.max(score, 0), _temperature(parameters))
    weight = tl.exp(exponent.to(tl.float64))
    # The mass that top_p refers to is what top_k has left. A top_p of 1 keeps all.
    mass = tl.where(top_k > 0, tl.sum(weight, 0), mass)
    limit = tl.where(top_p >= 1, float("inf"), top_p * mass)
    before = tl.cumsum(weight, 0) - weight
    keep = (before < limit) & (weight >= min_p) & (best != LOWEST)
    keep = keep | (rank == 0)
    # Sorted: filters that cut the last candidate keep nothing beyond it.
    last_kept = tl.max(tl.where(rank == MOST - 1, keep.to(tl.int32), 0), 0)
    weight = tl.where(keep, weight, 0.0)
    index = _passed(weight, tl.load(parameters + 4) * tl.sum(weight, 0), rank)
    token = tl.max(tl.where(rank == index, index_of(best), 0), 0)
    if VOCABULARY > MOST:
        covered = (top_k > 0) | (tl.load(parameters) == 0) | (last_kept == 0)
        token = tl.where(covered, token, -1)
    return token


@triton.jit
def _plain(
    parameters,
    logits,
    tops,
    mass,
    VOCABULARY: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """The token at which the running sum in order of ids passes the draw's share."""
    b = tl.arange(0, BLOCK_B)
    target = tl.load(parameters + 4) * tl.sum(mass, 0)
    block = _passed(mass, target, b)
    peak = tl.max(tl.where(b == block, tops, float("-inf")), 0)
    i = block * BLOCK + tl.arange(0, BLOCK)
    score = tl.load(logits + i, mask=i < VOCABULARY, other=float("-inf")).to(tl.float32)
    temperature = _temperature(parameters)
    rest = target - tl.sum(tl.where(b < block, mass, 0.0), 0)
    # In the first kernel's terms: a block's weights add to its mass.
    share = tl.exp(_tempered(peak, tl.max(tops, 0), temperature).to(tl.float64))
    weight = tl.exp(_tempered(score, peak, temperature)).to(tl.float64) * share
    return block * BLOCK + _passed(weight, rest, tl.arange(0, BLOCK))


@triton.jit
def _passed(weight, target, places):
    """The first place at which the running sum passes `target`, or the last that adds to it."""
    passed = tl.sum((tl.cumsum(weight, 0) <= target).to(tl.int32), 0)
    return tl.minimum(passed, tl.max(tl.where(weight > 0, places, 0), 0))


def sample_rows(
    logits: Tensor, parameters: Tensor, finite: bool = False, out: Tensor | None = None
) -> Tensor:
    """As engine.kernels.sampling.sample_rows. Exact where top_k is 1 to
    MOST, where nothing filters, and where top_p or min_p alone keep fewer than MOST tokens. Any
    other row, and one whose logits are all -inf, is UNSETTLED: engine.runtime.sampler answers for
    it. A CUDA graph may hold this call.
    """
    rows, vocabulary = logits.shape
    if parameters.shape != (rows, len(COLUMNS)) or parameters.dtype != torch.float64:
        raise ValueError(f"parameters must be float64 [{rows}, {len(COLUMNS)}]")
    if logits.stride(1) != 1 or not parameters.is_contiguous():
        raise ValueError("the numbers of a row must lie side by side")
    device, constants = logits.device, _constants(vocabulary, finite)
    blocks = triton.cdiv(vocabulary, _BLOCK)
    candidates = torch.empty((rows, blocks, MOST), dtype=torch.int64, device=device)
    peaks = torch.empty((rows, blocks), dtype=torch.float32, device=device)
    masses = torch.empty((rows, blocks), dtype=torch.float64, device=device)
    if out is None:
        out = torch.empty(rows, dtype=torch.int64, device=device)
    found = candidates, peaks, masses
    _rank_block[(blocks, rows)](
        logits, parameters, *found, logits.stride(0), blocks, **constants, num_warps=1
    )
    _choose[(rows,)](
        *(logits, parameters, *found, out, logits.stride(0), blocks),
        **constants,
        BLOCK_B=triton.next_power_of_2(blocks),
        num_warps=1,
    )
    return out


def _constants(vocabulary: int, finite: bool) -> dict[str, int]:
    return {"VOCABULARY": vocabulary, "BLOCK": _BLOCK, "MOST": MOST, "FINITE": finite}


def _ahead(vocabulary: int) -> tuple[Ahead, Ahead]:
    found = {"candidates": "*i64", "peaks": "*fp32", "masses": "*fp64"}
    inputs = {"logits": "*bf16", "parameters": "*fp64", **found}
    sizes = {"logits_row": "i32", "blocks": "i32"}
    constants = _constants(vocabulary, finite=True)
    blocks = triton.next_power_of_2(triton.cdiv(vocabulary, _BLOCK))
    whole = frozenset({"logits_row"})
    return (
        Ahead(f"sampling rank {vocabulary}", _rank_block, inputs | sizes, constants, 1, 3, whole),
        Ahead(
            f"sampling choose {vocabulary}",
            _choose,
            {**inputs, "tokens": "*i64", **sizes},
            {**constants, "BLOCK_B": blocks},
            warps=1,
            multiples=whole,
        ),
    )


AHEAD = (*_ahead(248320), *_ahead(9216))
