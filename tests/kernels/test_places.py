"""Places, rotations and embeddings of rows, against the torch operations."""

from __future__ import annotations

import pytest
import torch

from engine.formats.weight import StoredWeight
from engine.kernels.gpu.embedding import embedding
from engine.kernels.gpu.places import decode_places, rotations
from engine.kernels.linear import embedding as embedding_operation
from engine.kernels.places import decode_places as places_operation
from engine.kernels.places import rotations as rotations_operation

FACTOR = 1.25
NEAR = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture
def inverse(device: torch.device) -> torch.Tensor:
    return (1e4 ** (-torch.arange(12, dtype=torch.float32) / 12)).to(device)


def test_rotations_of_any_position(inverse: torch.Tensor, device: torch.device) -> None:
    positions = torch.tensor([0, 1, 17, 4095, 262_143], device=device)
    got = rotations(positions, inverse, FACTOR)
    wanted = rotations_operation.reference(positions, inverse, FACTOR)
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == (5, 12)
        torch.testing.assert_close(mine, theirs, **NEAR)
    none = rotations(positions[:0], inverse, FACTOR)
    assert [part.shape for part in none] == [(0, 12), (0, 12)]


def test_places_of_next_tokens(inverse: torch.Tensor, device: torch.device) -> None:
    numbers = torch.tensor([[31, 0, 32], [32, 0, 33]], device=device)
    table = torch.tensor([[5, 2, -1], [-1, -1, -1], [7, 4, 9]], dtype=torch.int32, device=device)
    got = decode_places(*numbers, table, 16, inverse, FACTOR)
    wanted = places_operation.reference(*numbers, table, 16, inverse, FACTOR)
    assert got.pages.tolist() == wanted.pages.tolist() == [2, -1, 9]
    assert got.offsets.tolist() == wanted.offsets.tolist() == [15, 0, 0]
    assert got.lengths.tolist() == wanted.lengths.tolist() == [32, 0, 33]
    for name in ("pages", "offsets", "lengths"):
        assert getattr(got, name).dtype == getattr(wanted, name).dtype
    cos, sin = rotations(numbers[0], inverse, FACTOR)
    assert torch.equal(got.cos, cos)
    assert torch.equal(got.sin, sin)


@pytest.mark.parametrize("storage", ["bfloat16", "float32", "mxfp4"])
def test_rows_of_an_embedding(storage: str, device: torch.device) -> None:
    torch.manual_seed(1)
    parts = {"weight": torch.randint(256, (7, 32), dtype=torch.uint8, device=device)}
    if storage == "mxfp4":
        parts["scale"] = torch.full((7, 2), 127, dtype=torch.uint8, device=device)
    else:
        parts["weight"] = torch.randn(7, 64, device=device).to(getattr(torch, storage))
    weight = StoredWeight(storage, (7, 64), parts)
    tokens = torch.tensor([6, 0, 6], device=device)
    for chosen in (tokens, tokens[:0]):
        got = embedding(chosen, weight, torch.float32)
        assert torch.equal(got, embedding_operation.reference(chosen, weight, torch.float32))
