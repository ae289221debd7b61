"""What a layer does beside single products: against the torch references and float64."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine.formats.weight import Projections
from engine.kernels.attention import rotate_and_store
from engine.kernels.linear import linear, linears, mlp
from engine.kernels.pointwise import add_rms_norm, rms_norm
from engine.native.library import FORMATS
from tests.native.test_linear import plain, random_weight, relative
from tests.native.tiles import has_tiles

pytestmark = pytest.mark.usefixtures("tier")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tokens", [0, 1, 5, 40])
@pytest.mark.parametrize("storages", [("q4_k", "q4_k", "q6_k"), ("nvfp4",) * 3, ("q4_1", "q8_0")])
def test_products_together_equal_each_alone_to_the_bit(
    storages: tuple[str, ...], tokens: int, threads: int
) -> None:
    torch.manual_seed(tokens)
    torch.set_num_threads(threads)
    weights = tuple(random_weight(kind, 40 + 30 * i, 512) for i, kind in enumerate(storages))
    biases = (torch.randn(40), *(None for _ in weights[1:]))
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(tokens, 512).to(dtype)
        got = linears(x, Projections(weights, biases))
        for part, weight, bias in zip(got, weights, biases, strict=True):
            assert torch.equal(part, linear(x, weight, bias))


@pytest.mark.parametrize("storage", FORMATS)
@pytest.mark.parametrize(("hidden", "inner"), [(256, 512), (288, 1088), (160, 96)])
def test_a_feed_forward_equals_its_definition(
    storage: str, hidden: int, inner: int, tier: str
) -> None:
    if storage in ("q4_k", "q6_k") and hidden != 256:
        pytest.skip("rows are whole blocks of 256")
    torch.manual_seed(hidden)
    gate, up = random_weight(storage, inner, hidden), random_weight(storage, inner, hidden)
    down = random_weight(storage, hidden, inner)
    biases = (torch.randn(inner), None, torch.randn(hidden))
    gate_up_down = Projections((gate, up, down), biases)
    x = torch.randn(70, hidden).to(torch.bfloat16).to(torch.float32)
    wide = x.double()
    gates = wide @ plain(gate).T + biases[0].double()
    middle = gates * torch.sigmoid(gates) * (wide @ plain(up).T)
    expected = middle @ plain(down).T + biases[2].double()
    got = mlp(x, gate_up_down)
    bound = middle.abs() @ plain(down).abs().T
    assert relative(got, expected, bound) <= 2e-6
    for threads in (1, 3):
        torch.set_num_threads(threads)
        for rows in (slice(0, 1), slice(3, 20), slice(50, 70)):
            if rows.stop == 1 and has_tiles(tier, storage, torch.float32):
                continue  # they are for prompts, and add in an order of their own
            assert torch.equal(mlp(x[rows], gate_up_down), got[rows])


def test_a_feed_forward_of_mixed_formats_is_the_references() -> None:
    weights = (random_weight("q4_k", 256, 256), random_weight("q6_k", 256, 256))
    projections = Projections((*weights, random_weight("q8_0", 256, 256)), (None,) * 3)
    x = torch.randn(3, 256)
    assert torch.equal(mlp(x, projections), mlp.reference(x, projections))


@pytest.mark.parametrize("columns", [1, 15, 64, 577, 4096])
def test_norms_equal_their_definition(columns: int) -> None:
    torch.manual_seed(columns)
    x, added, weight = torch.randn(40, columns), torch.randn(40, columns), torch.randn(columns)

    def norm(rows: Tensor) -> Tensor:
        wide = rows.double()
        return wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()

    for threads in (1, 3):
        torch.set_num_threads(threads)
        total, normed = add_rms_norm(x, added, weight, 1e-5)
        assert torch.equal(total, x + added)
        for got, expected in ((rms_norm(x, weight, 1e-5), norm(x)), (normed, norm(total))):
            assert float((got.double() - expected).norm()) <= 1e-6 * float(expected.norm())
    assert torch.equal(rms_norm(x[7:8], weight, 1e-5), rms_norm(x, weight, 1e-5)[7:8])
    assert rms_norm(x.view(4, 10, columns), weight, 1e-5).shape == (4, 10, columns)
    broken = x.clone()
    broken[3, 0], broken[4, 0] = math.nan, math.inf
    assert torch.isnan(rms_norm(broken, weight, 1e-5)).any(1).tolist() == [
        row in (3, 4) for row in range(40)
    ]


@pytest.mark.parametrize(("half", "rows"), [(32, 1), (8, 40), (0, 3)])
def test_rotation_and_storing_equal_the_references(half: int, rows: int) -> None:
    torch.manual_seed(half)
    q, k, v = torch.randn(rows, 6, 64), torch.randn(rows, 2, 64), torch.randn(rows, 2, 64)
    angles = torch.randn(rows, half)
    slots = SimpleNamespace(pages=torch.randperm(50)[:rows], offsets=torch.arange(rows) % 16)
    stores, turned = [], []
    for run in (rotate_and_store, rotate_and_store.reference):
        pool = torch.zeros(50, 2, 16, 2, 64)
        turned.append(run(q, k, v, angles.cos(), angles.sin(), pool[:, 0], pool[:, 1], slots))
        stores.append(pool)
    assert torch.allclose(turned[0], turned[1], rtol=0, atol=1e-6)
    assert torch.allclose(stores[0], stores[1], rtol=0, atol=1e-6)
    slots.pages[0] = 50
    with pytest.raises(RuntimeError, match="refused a rotation"):
        rotate_and_store(q, k, v, angles, angles, stores[0][:, 0], stores[0][:, 1], slots)
