"""NVFP4 rounding and packing."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from engine.formats import nvfp4

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = [*E2M1, *(-v for v in E2M1)]


def test_every_code_comes_back_exactly() -> None:
    # The largest magnitude is 6, so with 448 as the group's scale code every value is exact.
    weight = torch.tensor(VALUES).repeat(4, 2) * 448 * 0.5
    packed, scale, scale_2 = nvfp4.quantise(weight)
    assert packed.dtype == torch.uint8 and packed.shape == (4, 16)
    assert scale.dtype == torch.float8_e4m3fn and scale.shape == (4, 2)
    assert scale_2.dtype == torch.float32 and scale_2.shape == ()
    assert torch.equal(nvfp4.dequantise(packed, scale, scale_2), weight)


def test_the_low_half_holds_the_even_column() -> None:
    weight = torch.zeros(1, 16)
    weight[0, 0], weight[0, 1] = 6.0, -1.0
    packed, _, _ = nvfp4.quantise(weight)
    assert int(packed[0, 0]) & 15 == 7
    assert int(packed[0, 0]) >> 4 == 8 + 2


def test_codes_are_the_nearest_with_ties_to_even() -> None:
    torch.manual_seed(0)
    table = torch.tensor(E2M1)
    sizes = torch.cat([torch.rand(2000) * 6, (table[1:] + table[:-1]) / 2])
    codes = nvfp4._codes(sizes)
    distance = (sizes[:, None] - table).abs()
    assert torch.equal((sizes - table[codes.long()]).abs(), distance.amin(1))
    assert all(int(code) % 2 == 0 for code in codes[-7:])


def test_the_error_stays_within_half_a_step() -> None:
    torch.manual_seed(1)
    weight = torch.randn(8, 64) * torch.logspace(-3, 0, 8)[:, None]
    packed, scale, scale_2 = nvfp4.quantise(weight)
    back = nvfp4.dequantise(packed, scale, scale_2)
    step = (scale.float() * scale_2).repeat_interleave(16, 1)
    # One step at the top of the range spans two units; the scale's own rounding can clip there.
    assert bool(((weight - back).abs() <= 1.0 * step + 0.07 * weight.abs()).all())


def test_training_rounds_as_what_is_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a formula of its own, which knows no codes: the spacing of e2m1 in each of its ranges."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "resources/models/training"))
    rounded = importlib.import_module("student").round_to_nvfp4
    torch.manual_seed(2)
    for weight in (torch.randn(15, 48), torch.zeros(2, 16), torch.randn(4, 32) * 1e-6):
        assert torch.equal(rounded(weight), nvfp4.dequantise(*nvfp4.quantise(weight)))


def test_output_type_and_refusals() -> None:
    packed, scale, scale_2 = nvfp4.quantise(torch.randn(2, 16))
    assert nvfp4.dequantise(packed, scale, scale_2, torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="groups of 16"):
        nvfp4.quantise(torch.randn(2, 24))
    with pytest.raises(ValueError, match="not finite"):
        nvfp4.quantise(torch.full((1, 16), float("nan")))
    with pytest.raises(ValueError, match="do not fit"):
        nvfp4.dequantise(packed, scale[:1], scale_2)
    with pytest.raises(ValueError, match="uint8"):
        nvfp4.unpack(packed.to(torch.int32))
