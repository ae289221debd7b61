"""What does not fit its shape is refused before an address of it reaches the library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from engine.formats.weight import Projections, StoredWeight
from engine.kernels.attention import paged_attention, rotate_and_store
from engine.kernels.linear import linear, linears, mlp
from engine.kernels.moe import moe_combine, moe_expert_rows
from engine.kernels.native import decoded
from engine.kernels.pointwise import add_rms_norm, rms_norm
from engine.native.library import FORMATS
from tests.experts.checkpoint_experts import random_experts
from tests.native.test_linear import random_weight
from tests.native.test_moe import stored

pytestmark = pytest.mark.usefixtures("native")


@pytest.mark.parametrize("storage", FORMATS)
def test_a_weight_whose_parts_do_not_fit_is_refused(storage: str) -> None:
    good = random_weight(storage, 256, 512)
    x = torch.randn(2, 512)
    assert linear(x, good, None).shape == (2, 256)
    wrong = [StoredWeight(storage, (4096, 512), good.parts)]
    wrong += [StoredWeight(storage, (256, 4096), good.parts)]
    wrong += [StoredWeight(storage, (256 * 512,), good.parts)]
    for name, part in good.parts.items():
        rest = {other: value for other, value in good.parts.items() if other != name}
        wrong += [StoredWeight(storage, good.shape, rest)]
        smaller = part[:-1] if part.dim() else part.half()
        wrong += [StoredWeight(storage, good.shape, rest | {name: smaller})]
        other = torch.int8 if part.dtype != torch.int8 else torch.uint8
        wrong += [
            StoredWeight(storage, good.shape, rest | {name: torch.zeros(part.shape, dtype=other)})
        ]
    for weight in wrong:
        asked = torch.randn(2, weight.shape[-1])
        for call in (
            lambda: linear(asked, weight, None),  # noqa: B023
            lambda: linears(asked, Projections((weight,), (None,))),  # noqa: B023
            lambda: mlp(asked, Projections((weight, weight, weight), (None,) * 3)),  # noqa: B023
            lambda: decoded(weight),  # noqa: B023
        ):
            with pytest.raises(
                ValueError, match=storage if len(weight.shape) == 2 else "no matrix"
            ):
                call()


@pytest.mark.parametrize("storage", ["nvfp4", "mxfp4", "q8_0", "q4_k"])
def test_columns_that_are_no_whole_groups_are_refused(storage: str) -> None:
    good = random_weight(storage, 4, 256)
    weight = StoredWeight(storage, (4, 250), good.parts)
    with pytest.raises(ValueError, match="250 columns are not whole groups"):
        linear(torch.zeros(1, 250), weight, None)


def test_a_bias_of_another_size_is_refused() -> None:
    weight, x = random_weight("bfloat16", 40, 64), torch.zeros(1, 64)
    for bias in (torch.zeros(3), torch.zeros(1), torch.zeros(40, 1)):
        with pytest.raises(ValueError, match="bias of bfloat16"):
            linear(x, weight, bias)
        with pytest.raises(ValueError, match="bias of bfloat16"):
            linears(x, Projections((weight,), (bias,)))


def test_a_norm_s_weight_of_another_size_is_refused() -> None:
    x = torch.randn(2, 64)
    for weight in (torch.ones(3), torch.ones(1), torch.ones(1, 64)):
        with pytest.raises(ValueError, match="norm's weight"):
            rms_norm(x, weight, 1e-5)
        with pytest.raises(ValueError, match="norm's weight"):
            add_rms_norm(x, x, weight, 1e-5)


def test_slots_and_routes_of_another_kind_are_refused() -> None:
    bank, spec = stored(random_experts("float32", experts=2, hidden=32, inner=16))
    x, rows = torch.zeros(2, 32), torch.zeros(2, 1, 32)
    for slots in (torch.zeros((2, 1), dtype=torch.int32), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="slots are"):
            moe_expert_rows(bank, spec, x, slots, rows)
    with pytest.raises(ValueError, match="the bank"):
        moe_expert_rows(bank.view(-1), spec, x, torch.zeros((2, 1), dtype=torch.int64), rows)
    with pytest.raises(ValueError, match="weights are"):
        moe_combine(rows, torch.ones(2, 2), torch.float32)
    with pytest.raises(ValueError, match="rows is"):
        moe_combine(rows.double(), torch.ones(2, 1), torch.float32)


def test_a_rotation_of_another_shape_is_refused() -> None:
    q, k, angles = torch.randn(3, 4, 64), torch.randn(3, 2, 64), torch.randn(3, 8)
    keys, values = torch.zeros(5, 16, 2, 64), torch.zeros(5, 16, 2, 64)
    places = torch.zeros(3, dtype=torch.int64)
    good = SimpleNamespace(pages=places, offsets=torch.arange(3))
    rotate_and_store(q, k, k, angles, angles, keys, values, good)
    narrow = SimpleNamespace(pages=places.to(torch.int32), offsets=torch.arange(3))
    short = SimpleNamespace(pages=places, offsets=torch.arange(2))
    for parts in (
        (q, k[:1], k, angles, angles, keys, values, good),
        (q, k, k[:, :1], angles, angles, keys, values, good),
        (q[..., :32], k, k, angles, angles, keys, values, good),
        (q, k, k, angles[:1], angles, keys, values, good),
        (q, k, k, angles, angles[:, :4], keys, values, good),
        (q, k, k, angles, angles, keys, values[:2], good),
        (q, k, k, angles, angles, keys, values, narrow),
        (q, k, k, angles, angles, keys, values, short),
    ):
        with pytest.raises(ValueError, match="is float32|is int|columns|differ"):
            rotate_and_store(*parts)


def test_sequences_beyond_the_rows_are_refused() -> None:
    q, pool = torch.randn(3, 4, 64), torch.zeros(2, 5, 16, 2, 64)
    pages = torch.arange(2)

    def sequence(start: int, length: int, pages: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(start=start, length=length, context=0, pages=pages)

    paged_attention(q, pool[0], pool[1], (sequence(0, 3, pages),), 1.0)
    for wrong in (
        sequence(0, 4, pages),
        sequence(-1, 3, pages),
        sequence(0, 3, pages.to(torch.int32)),
        sequence(0, 3, torch.arange(4)[::2]),
    ):
        with pytest.raises(ValueError, match="sequence|pages"):
            paged_attention(q, pool[0], pool[1], (wrong,), 1.0)
    same = (sequence(0, 3, pages),)
    paged_attention(q, pool[0], pool[1], same, 1.0)
    with pytest.raises(ValueError, match="row 3 of 2"):
        paged_attention(q[:2], pool[0], pool[1], same, 1.0)
    with pytest.raises(ValueError, match="columns"):
        paged_attention(q[..., :32], pool[0], pool[1], same, 1.0)
