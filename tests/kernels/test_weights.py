"""Products with stored weights, against the format's definition and sums in float64."""

from __future__ import annotations

import pytest
import torch

from engine.formats.weight import Projections
from engine.kernels.dequantise import dequantise
from engine.kernels.gpu.codes import e4m3
from engine.kernels.gpu.linear import linear, linears
from engine.kernels.gpu.linear_few import linear_few
from engine.kernels.gpu.linear_many import linear_many
from tests.kernels.stored import error, stored

FORMATS = ("bfloat16", "fp8_block", "nvfp4", "mxfp4")
ROUNDED = 4e-3 if torch.cuda.is_available() else 2**-7
"""Of a bfloat16 output; the interpreter cuts bits off where a GPU rounds."""


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (10, 160), (50, 288)])
def test_few_rows(storage: str, rows: int, columns: int) -> None:
    torch.manual_seed(rows)
    if storage == "fp8_block" and rows == 50:
        rows = 150  # of more than one block of 128
    weight = stored(storage, rows, columns)
    x = torch.randn(3, columns).to(torch.bfloat16)
    bias = torch.randn(rows).to(torch.bfloat16)
    got = linear_few(x, weight, bias)
    exact = x.double() @ dequantise(weight, torch.float32).double().T + bias.double()
    assert error(got, exact) < ROUNDED
    for row in range(3):
        assert torch.equal(linear_few(x[row : row + 1], weight, bias)[0], got[row])


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize(("tokens", "rows", "columns"), [(17, 5, 32), (70, 150, 288)])
def test_many_rows(storage: str, tokens: int, rows: int, columns: int) -> None:
    torch.manual_seed(tokens)
    weight = stored(storage, rows, columns)
    x = torch.randn(tokens, columns).to(torch.bfloat16)
    got = linear_many(x, weight, None)
    exact = x.double() @ dequantise(weight, torch.float32).double().T
    assert error(got, exact) < ROUNDED
    assert torch.equal(linear_many(x[tokens - 4 :], weight, None), got[tokens - 4 :])


def test_matrices_end_to_end_are_one_product() -> None:
    torch.manual_seed(4)
    weights = [stored(storage, rows, 32) for storage, rows in (("bfloat16", 9), ("bfloat16", 2))]
    weights.append(stored("nvfp4", 3, 32))
    biases = [torch.randn(9).to(torch.bfloat16), torch.randn(2).to(torch.bfloat16), None]
    x = torch.randn(3, 32).to(torch.bfloat16)
    got = linears(x, Projections.end_to_end(weights, biases), 2)
    for each, weight, bias in zip(got, weights, biases, strict=True):
        assert torch.equal(each, linear(x, weight, bias, 2))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's NumPy
def test_nothing_but_nan_is_lost() -> None:
    """A number that is not finite reaches every output that it belongs to, and no other row."""
    weight = stored("nvfp4", 6, 64)
    x = torch.randn(2, 64).to(torch.bfloat16)
    x[0, 5] = float("inf")
    got = linear_few(x, weight, None)
    exact = x.float() @ dequantise(weight, torch.float32).T
    assert torch.equal(got[0].isnan(), exact[0].isnan())
    assert torch.equal(got[0].isinf(), exact[0].isinf())
    assert got[1].isfinite().all()


def test_every_e4m3_code() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def decode(codes, out):  # type: ignore[no-untyped-def]
        at = tl.arange(0, 256)
        tl.store(out + at, e4m3(tl.load(codes + at)))

    codes = torch.arange(256, dtype=torch.uint8)
    out = torch.empty(256)
    decode[(1,)](codes, out)
    wanted = codes.view(torch.float8_e4m3fn).to(torch.float32)
    assert torch.equal(out.nan_to_num(nan=1e9), wanted.nan_to_num(nan=1e9))
