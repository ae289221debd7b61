"""Row kernels on the GPU (or the interpreter) against their definitions in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.context.kv import KvSlots
from engine.kernels.gpu import pointwise
from engine.kernels.gpu.rotary import norm_rotate_and_store, rotate_and_store

ULP = {torch.float32: 1e-6, torch.bfloat16: 2**-7}
"""The interpreter cuts bfloat16 off where a GPU rounds."""
DTYPES = [torch.float32, torch.bfloat16]


def close(got: Tensor, wanted: Tensor, dtype: torch.dtype, size: float = 1e-2) -> bool:
    """`size` is that of the terms of a sum, which may cancel."""
    assert got.dtype == dtype
    assert not got.isnan().any()
    difference = (got.double().cpu() - wanted.cpu()).abs()
    return bool((difference <= ULP[dtype] * (wanted.cpu().abs() + size)).all())


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape).to(device, dtype)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 576), (3, 2048), (5, 3, 24), (2, 1, 1)])
def test_norms_equal_their_definitions(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    x, added, gate = (random(*shape, dtype=dtype, device=device) for _ in range(3))
    weight = random(shape[-1], dtype=torch.float32, device=device)
    assert close(pointwise.rms_norm(x, weight, 1e-3), normed(x, weight, 1e-3), dtype)
    total, out = pointwise.add_rms_norm(x, added, weight, 1e-3)
    assert close(total, x.double() + added.double(), dtype)
    assert close(out, normed(total, weight, 1e-3), dtype)
    wide = x.to(torch.float32)
    wanted = normed(wide, weight, 1e-3) * torch.nn.functional.silu(gate.double())
    assert close(pointwise.gated_rms_norm(wide, gate, weight, 1e-3), wanted, dtype)


def test_norms_read_heads_that_lie_apart(device: torch.device) -> None:
    both = random(4, 3, 48, dtype=torch.float32, device=device)
    x, gate = both.chunk(2, dim=-1)
    weight = random(24, dtype=torch.float32, device=device)
    assert close(pointwise.rms_norm(x, weight, 1e-6), normed(x, weight, 1e-6), torch.float32)
    total, _ = pointwise.add_rms_norm(x, gate, weight, 1e-6)
    assert torch.equal(total, x + gate)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 1024, 1100])
def test_swiglu_equals_its_definition(width: int, dtype: torch.dtype, device: torch.device) -> None:
    both = random(3, 2 * width, dtype=dtype, device=device)
    gate, up = both.chunk(2, dim=-1)
    wanted = torch.nn.functional.silu(gate.double()) * up.double()
    assert close(pointwise.swiglu(gate, up), wanted, dtype)


def test_a_row_s_bits_do_not_depend_on_its_neighbours(device: torch.device) -> None:
    x, added = (random(37, 24, dtype=torch.float32, device=device) for _ in range(2))
    weight = random(24, dtype=torch.float32, device=device)
    _, together = pointwise.add_rms_norm(x, added, weight, 1e-6)
    for row in (0, 17, 36):
        one = slice(row, row + 1)
        _, alone = pointwise.add_rms_norm(x[one], added[one], weight, 1e-6)
        assert torch.equal(alone, together[one])


def test_no_rows_give_none(device: torch.device) -> None:
    x, weight = torch.empty((0, 24), device=device), torch.ones(24, device=device)
    assert pointwise.rms_norm(x, weight, 1e-6).shape == (0, 24)
    assert pointwise.swiglu(x, x).shape == (0, 24)


@dataclass(frozen=True)
class Heads:
    q: Tensor
    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    keys: Tensor
    values: Tensor
    slots: KvSlots


def heads(dim: int, half: int, dtype: torch.dtype, device: torch.device, rows: int = 5) -> Heads:
    # Query and gate of a head side by side, keys and values of a row too.
    q = random(rows, 4, 2 * dim, dtype=dtype, device=device)[..., :dim]
    kv = random(rows, 2 * 2 * dim, dtype=dtype, device=device)
    k, v = (part.view(rows, 2, dim) for part in kv.chunk(2, dim=1))
    angles = torch.rand(rows, half, device=device) * 6
    storage = torch.full((4, 3, 2, 4, 2, dim), torch.nan).to(device, dtype)
    places = torch.randperm(16)[:rows].to(device)
    slots = KvSlots(places // 4, places % 4)
    return Heads(
        *(q, k, v, angles.cos() * 1.2, angles.sin() * 1.2),
        *(storage[:, 1, 0], storage[:, 1, 1], slots),
    )


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[1]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turns = pairs * torch.complex(cos.double(), sin.double()).unsqueeze(1)
    return torch.cat([turns.real, turns.imag, x[..., 2 * half :].double()], -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("dim", "half"), [(64, 32), (24, 4), (256, 32)])
def test_heads_are_turned_and_stored(
    dim: int, half: int, dtype: torch.dtype, device: torch.device
) -> None:
    made = heads(dim, half, dtype, device)
    pages = made.cos, made.sin, made.keys, made.values, made.slots
    got = rotate_and_store(made.q, made.k, made.v, *pages)
    assert close(got, turned(made.q, made.cos, made.sin), dtype, size=1)
    places = made.slots.pages, made.slots.offsets
    assert close(made.keys[places], turned(made.k, made.cos, made.sin), dtype, size=1)
    assert torch.equal(made.values[places], made.v)
    assert int(made.keys.isnan().all(-1).sum()) == (16 - len(made.q)) * 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_of_heads_comes_before_their_turn(
    dtype: torch.dtype, device: torch.device
) -> None:
    made = heads(24, 8, dtype, device)
    weights = torch.rand(24, device=device), torch.rand(24, device=device)
    pages = made.cos, made.sin, made.keys, made.values, made.slots
    got = norm_rotate_and_store(made.q, made.k, made.v, weights, 1e-6, *pages)
    q, k = (
        pointwise.rms_norm(part, weight, 1e-6)
        for part, weight in zip((made.q, made.k), weights, strict=True)
    )
    # Both round the norm; the interpreter's cut of the turn is on top.
    assert close(got, turned(q, made.cos, made.sin), dtype, size=1)
    stored = made.keys[made.slots.pages, made.slots.offsets]
    assert close(stored, turned(k, made.cos, made.sin), dtype, size=1)


def test_a_row_without_a_page_stores_nothing(device: torch.device) -> None:
    made = heads(24, 8, torch.float32, device, rows=2)
    slots = KvSlots(torch.tensor([1, -1], dtype=torch.int32).to(device), made.slots.offsets)
    pages = made.cos, made.sin, made.keys, made.values, slots
    norms = torch.ones(24, device=device), torch.ones(24, device=device)
    got = norm_rotate_and_store(made.q, made.k, made.v, norms, 1e-6, *pages)
    assert not got.isnan().any()
    assert int((~made.keys.isnan()).all(-1).sum()) == int((~made.values.isnan()).all(-1).sum()) == 2
