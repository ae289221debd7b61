"""Products with stored weights, by format and instruction set, against float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.formats.weight import StoredWeight
from engine.kernels.dequantise import dequantise
from engine.kernels.linear import linear
from engine.kernels.native import decoded
from engine.kernels.native_linear import X_TYPES, described
from engine.native.library import FORMATS, OK, Library
from tests.experts import checkpoint_experts
from tests.experts.checkpoint_experts import store
from tests.native.tiles import has_tiles
from tests.properties import examples

pytestmark = pytest.mark.usefixtures("tier")
BLOCKS = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20)}
BLOCKS |= {"q4_k": (256, 144), "q6_k": (256, 210)}
"""GGUF's formats: columns and bytes of a block."""
HALVES = {"q8_0": (0,), "q4_0": (0,), "q4_1": (0, 2), "q4_k": (0, 2), "q6_k": (208,)}
"""Where a block has float16 numbers."""


def random_weight(storage: str, rows: int, columns: int) -> StoredWeight:
    """`columns` are rounded up to what the format can hold."""
    if storage not in BLOCKS:
        group = checkpoint_experts.GROUPS.get(storage, 1)
        return store(torch.randn(rows, math.ceil(columns / group) * group) * 0.3, storage)
    width, size = BLOCKS[storage]
    count = math.ceil(columns / width)
    blocks = torch.randint(256, (rows, count, size), dtype=torch.uint8)
    for at in HALVES[storage]:
        scale = (torch.randn(rows, count, 1) * 0.01).to(torch.float16)
        blocks[:, :, at : at + 2] = scale.view(torch.uint8)
    return StoredWeight(storage, (rows, count * width), {"weight": blocks.view(rows, -1)})


def plain(weight: StoredWeight) -> Tensor:
    """float64. GGUF's own reader stands for its formats; its tests have published vectors."""
    if weight.format in BLOCKS:
        return dequantise(weight, torch.float32).double()
    return checkpoint_experts.plain(weight)


def relative(got: Tensor, expected: Tensor, bound: Tensor) -> float:
    """Norm of the difference over the result's, or over a tenth of what its terms add up to where
    they cancel further than that."""
    size = max(float(expected.norm()), float(bound.norm()) / 10)
    return float((got.double() - expected).norm()) / size


def unrounded(native: Library, x: Tensor, weight: StoredWeight) -> Tensor:
    """float32, as the library hands out sums before `linear` rounds them to x's dtype."""
    out = torch.empty(x.shape[0], weight.shape[0])
    native.set_threads(torch.get_num_threads())
    found = described(weight)
    at = x.data_ptr(), X_TYPES[x.dtype], x.shape[0], out.data_ptr()
    assert native.products(found.matrices, 1, *at) == OK
    return out


def greatest_of_eight(x: Tensor) -> Tensor:
    """|x| [M, in], for each number the largest of the eight that lie beside it."""
    tokens, columns = x.shape
    wide = torch.zeros(tokens, -(-columns // 8) * 8)
    wide[:, :columns] = x.abs()
    eights = wide.view(tokens, wide.shape[1] // 8, 8).amax(-1)
    return eights.repeat_interleave(8, 1)[:, :columns]


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("columns", [16, 48, 127, 128, 129, 576, 1000, 2064])
def test_decoding_equals_the_formats_own_to_the_bit(storage: str, columns: int) -> None:
    torch.manual_seed(columns)
    weight = random_weight(storage, 131, columns)
    got = decoded(weight)
    assert torch.equal(got, dequantise(weight, torch.float32))


@pytest.mark.parametrize("storage", ["fp8_block", "nvfp4", "mxfp4"])
def test_every_code_and_every_scale_decodes_to_the_bit(storage: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    if storage == "fp8_block":
        parts = {
            "weight": codes.repeat(2, 1).view(torch.float8_e4m3fn),
            "scale": torch.tensor([[1.0, 0.37]]),
        }
        weight = StoredWeight(storage, (2, 256), parts)
    else:
        # Row r has scale code r in all its groups; the codes run through all pairs.
        parts = {"weight": codes.repeat(256, 1), "scale": codes.view(256, 1).repeat(1, 16)}
        if storage == "nvfp4":
            scale = codes.view(256, 1).repeat(1, 32).view(torch.float8_e4m3fn)
            parts |= {"scale": scale, "scale_2": torch.tensor(0.37)}
        weight = StoredWeight(storage, (256, 512), parts)
    got, expected = decoded(weight), dequantise(weight, torch.float32)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got.nan_to_num(0.0), expected.nan_to_num(0.0))


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 16), (5, 33), (64, 576), (576, 64), (37, 1000), (130, 2064)]
)
def test_products_match_float64(storage: str, dtype: torch.dtype, rows: int, columns: int) -> None:
    torch.manual_seed(rows)
    weight = random_weight(storage, rows, columns)
    exact = plain(weight).T
    bias = torch.randn(rows)
    x = torch.randn(33, weight.shape[1]).to(dtype)
    expected, bound = x.double() @ exact + bias.double(), x.double().abs() @ exact.abs()
    for tokens in (1, 2, 3, 4, 7, 16, 33):
        got = linear(x[:tokens], weight, bias)
        assert got.dtype == dtype
        # A float32 result keeps float32's accuracy; a bfloat16 one is rounded once, at the end.
        limit = 1e-6 if dtype == torch.float32 else 4e-3
        assert relative(got, expected[:tokens], bound[:tokens]) < limit


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("tokens", [1, 3, 16])
def test_bfloat16_products_match_float64_before_rounding(
    storage: str, tokens: int, native: Library
) -> None:
    torch.manual_seed(tokens)
    weight = random_weight(storage, 130, 576)
    x = torch.randn(tokens, weight.shape[1]).to(torch.bfloat16)
    exact = plain(weight).T
    got = unrounded(native, x, weight)
    assert relative(got, x.double() @ exact, x.double().abs() @ exact.abs()) < 1e-5


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_depends_on_neither_company_nor_threads_nor_place(
    storage: str, dtype: torch.dtype, native: Library, tier: str
) -> None:
    """But for tiles, which add in an order of their own: there prompts equal one another."""
    torch.manual_seed(3)
    weight = random_weight(storage, 149, 1100)
    x = torch.randn(70, weight.shape[1]).to(dtype)
    alone = torch.cat([linear(row.unsqueeze(0), weight, None) for row in x])
    prompt = linear(x, weight, None)
    assert has_tiles(tier, storage, dtype) or torch.equal(prompt, alone)
    for tokens in (2, 3, 5, 8, 16, 17, 18, 23, 70):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            expected = alone if tokens <= 16 else prompt
            assert torch.equal(linear(x[:tokens], weight, None), expected[:tokens])
    # One number further on in memory: no vector boundary may matter.
    shifted = torch.empty(x.numel() + 1, dtype=dtype)[1:].view_as(x).copy_(x)
    assert torch.equal(linear(shifted, weight, None), prompt)
    assert torch.equal(linear(x.flip(0), weight, None), prompt.flip(0))


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 6, 20])
def test_what_is_no_number_stays_in_its_row(
    storage: str, dtype: torch.dtype, tokens: int, tier: str
) -> None:
    """Where weights are the sum of two numbers (tiles), infinity may become NaN."""
    in_one = storage in ("bfloat16", "nvfp4", "mxfp4")
    in_two = tokens > 16 and has_tiles(tier, storage, dtype) and not in_one
    weight = random_weight(storage, 20, 200)
    x = torch.randn(tokens, weight.shape[1]).to(dtype)
    clean = linear(x, weight, None)
    for bad in (math.nan, math.inf):
        for column in (0, 77, weight.shape[1] - 1):
            dirty = x.clone()
            dirty[-1, column] = bad
            got = linear(dirty, weight, None)
            assert torch.equal(got[:-1], clean[:-1])
            expected = linear.reference(dirty, weight, None)
            assert torch.equal(got[-1].isfinite(), expected[-1].isfinite())
            assert in_two or torch.equal(got[-1].isnan(), expected[-1].isnan())


def test_a_weight_that_is_no_number_reaches_its_output_only() -> None:
    codes = torch.full((3, 256), 0x38, dtype=torch.uint8)
    codes[1, 130] = 0xFF
    parts = {"weight": codes.view(torch.float8_e4m3fn), "scale": torch.ones(1, 2)}
    for tokens in (1, 5, 20):
        got = linear(torch.ones(tokens, 256), StoredWeight("fp8_block", (3, 256), parts), None)
        assert got.isnan().tolist() == [[False, True, False]] * tokens


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    storage=st.sampled_from(sorted(FORMATS)),
    rows=st.integers(1, 150),
    columns=st.integers(1, 700),
    tokens=st.integers(0, 40),
    threads=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**31),
)
def test_any_shape(
    native: Library,
    storage: str,
    rows: int,
    columns: int,
    tokens: int,
    threads: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    weight = random_weight(storage, rows, columns)
    x = torch.randn(tokens, weight.shape[1]).to(dtype)
    expected = x.double() @ plain(weight).T
    got = unrounded(native, x, weight)
    assert torch.equal(linear(x, weight, None), got.to(dtype))
    assert got.shape == (tokens, rows)
    bound = 1e-6 * x.double().abs() @ plain(weight).abs().T
    if dtype == torch.bfloat16:
        # Some tiers round what is far below the largest of eight neighbours.
        bound += 1e-5 * greatest_of_eight(x).double() @ plain(weight).abs().T
    assert bool(((got.double() - expected).abs() <= bound + 1e-30).all())


def test_leading_dimensions_stay() -> None:
    weight = random_weight("float32", 8, 32)
    x = torch.randn(2, 3, 32)
    assert torch.equal(linear(x, weight, None).view(6, 8), linear(x.view(6, 32), weight, None))
    with pytest.raises(ValueError, match="31 columns"):
        linear(torch.zeros(1, 31), weight, None)
