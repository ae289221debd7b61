"""Prompts in bfloat16, more tokens at once than are ever decoded: some tiers have kernels of their
own for them (`kernel_for` in `engine/native/source/tier.h`)."""

from __future__ import annotations

import math
from ctypes import byref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.linear import linear
from engine.kernels.moe import moe_expert_rows
from engine.kernels.native_linear import describe_matrix
from engine.native.library import BFLOAT16, FORMATS, OK, Library
from tests.experts import checkpoint_experts
from tests.experts.checkpoint_experts import random_experts
from tests.native.test_linear import plain, random_weight, relative
from tests.native.test_moe import rows_in_float64, stored
from tests.properties import examples

pytestmark = pytest.mark.usefixtures("tier")
FEW = 16
"""Up to here tokens are decoded."""
ROUNDED = ("q8_0", "q4_1", "q4_k", "q6_k")
"""Weights that need not be the sum of two bfloat16: tiles hold them to 2^-17."""


def products(native: Library, x: Tensor, weight: StoredWeight) -> Tensor:
    """float32 [tokens, out], before the operation rounds it to bfloat16."""
    matrix, held = describe_matrix(weight, None)
    out = torch.empty(len(x), weight.shape[0])
    native.set_threads(torch.get_num_threads())
    status = native.products(byref(matrix), 1, x.data_ptr(), BFLOAT16, len(x), out.data_ptr())
    assert status == OK
    del held
    return out


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 16), (5, 33), (16, 64), (17, 31), (37, 1000), (130, 2064)]
)
def test_they_match_float64(storage: str, rows: int, columns: int, native: Library) -> None:
    torch.manual_seed(rows)
    weight = random_weight(storage, rows, columns)
    exact = plain(weight).T
    x = torch.randn(300, weight.shape[1]).to(torch.bfloat16)
    expected, bound = x.double() @ exact, x.double().abs() @ exact.abs()
    limit = 1e-5 if storage in ROUNDED else 1e-6
    for tokens in (17, 31, 32, 33, 48, 49, 64, 300):
        got = products(native, x[:tokens], weight)
        assert relative(got, expected[:tokens], bound[:tokens]) < limit


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    storage=st.sampled_from(sorted(FORMATS)),
    rows=st.integers(1, 150),
    columns=st.integers(1, 700),
    tokens=st.integers(FEW + 1, 64),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_any_shape(
    storage: str,
    rows: int,
    columns: int,
    tokens: int,
    threads: int,
    seed: int,
    native: Library,
    tier: str,
) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    weight = random_weight(storage, rows, columns)
    x = torch.randn(tokens, weight.shape[1]).to(torch.bfloat16)
    bound = x.double().abs() @ plain(weight).abs().T
    limit = (1e-5 if storage in ROUNDED else 1e-6) * bound + 1e-30
    if tier == "avx2" and storage in ("nvfp4", "mxfp4"):
        # Activations are rounded to 18 bits of the largest of eight neighbours.
        eights = torch.nn.functional.pad(x.double().abs(), (0, -x.shape[1] % 8)).unflatten(
            1, (-1, 8)
        )
        largest = eights.amax(-1, keepdim=True).expand_as(eights).flatten(1)[:, : x.shape[1]]
        limit += 2.0**-17 * (largest @ plain(weight).abs().T)
    difference = products(native, x, weight).double() - x.double() @ plain(weight).T
    assert bool((difference.abs() <= limit).all())


@pytest.mark.parametrize("storage", FORMATS)
def test_a_row_depends_on_neither_company_nor_threads(storage: str, native: Library) -> None:
    weight = random_weight(storage, 149, 1100)
    x = torch.randn(300, weight.shape[1]).to(torch.bfloat16)
    together = products(native, x, weight)
    for tokens in (17, 18, 31, 32, 33, 48, 100, 257):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(products(native, x[:tokens], weight), together[:tokens])
    assert torch.equal(products(native, x.flip(0), weight), together.flip(0))


@pytest.mark.parametrize("storage", FORMATS)
def test_amx_changes_nothing_else(storage: str, native: Library, tier: str) -> None:
    """Decoding is to the bit what the tier below computes."""
    if tier != "amx":
        pytest.skip("amx is the tier with kernels of its own for prompts")
    weight = random_weight(storage, 130, 700)
    wide = torch.randn(FEW, weight.shape[1])
    halves = wide.to(torch.bfloat16)
    got = products(native, halves, weight), linear(wide, weight, None)
    native.set_tier("avx512")
    assert torch.equal(got[0], products(native, halves, weight))
    assert torch.equal(got[1], linear(wide, weight, None))


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("tokens", [17, 40])
def test_what_is_no_number_stays_in_its_row(storage: str, tokens: int, native: Library) -> None:
    weight = random_weight(storage, 20, 200)
    x = torch.randn(tokens, weight.shape[1]).to(torch.bfloat16)
    clean = products(native, x, weight)
    for bad in (math.nan, math.inf):
        for column in (0, 77, weight.shape[1] - 1):
            dirty = x.clone()
            dirty[-1, column] = bad
            got = products(native, dirty, weight)
            assert torch.equal(got[:-1], clean[:-1])
            expected = linear.reference(dirty.to(torch.float32), weight, None)
            assert torch.equal(got[-1].isfinite(), expected[-1].isfinite())
            if storage in ("float32", "bfloat16", "fp8_block", "nvfp4", "mxfp4"):
                assert torch.equal(got[-1].isnan(), expected[-1].isnan())


@pytest.mark.parametrize("storage", checkpoint_experts.FORMATS)
def test_an_expert_s_rows_depend_on_how_many_tokens_it_has_at_most(
    storage: str, native: Library, tier: str
) -> None:
    """Of 265 tokens expert 0 has all, 1 has 40, 2 has 17, 3 has 16 and 4 has one."""
    experts = random_experts(storage, experts=5, hidden=160, inner=96)
    bank, spec = stored(experts)
    x = torch.randn(265, 160).to(torch.bfloat16)
    ids = torch.full((265, 2), -1)
    ids[:, 0] = 0
    for expert, first, count in ((1, 0, 40), (2, 40, 17), (3, 57, 16), (4, 73, 1)):
        ids[first : first + count, 1] = expert
    rows = torch.zeros(265, 2, 160)
    moe_expert_rows(bank, spec, x, ids, rows)
    expected = rows_in_float64(experts, x, ids)
    assert float((rows.double() - expected).norm() / expected.norm()) < 2e-6
    # Half of the tokens, in another order and with other threads: experts 0 and 1 as before.
    torch.set_num_threads(2)
    some = torch.arange(49, -1, -1)
    half = torch.zeros(50, 2, 160)
    moe_expert_rows(bank, spec, x[some], ids[some], half)
    same = ids[some] < 2
    assert torch.equal(half[same], rows[some][same])
    # In groups, as where a layer has more experts than slots: all as before.
    apart = torch.zeros(265, 2, 160)
    for expert in range(5):
        moe_expert_rows(bank, spec, x, torch.where(ids == expert, ids, -1), apart)
    assert torch.equal(apart, rows)
    if tier == "amx":
        native.set_tier("avx512")
        below = torch.zeros(265, 2, 160)
        moe_expert_rows(bank, spec, x, ids, below)
        assert torch.equal(below[ids > 2], rows[ids > 2])
