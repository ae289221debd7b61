"""The store holds what the checkpoint said, byte for byte, and refuses what does not fit."""

from __future__ import annotations

import psutil
import pytest
import torch

from engine.errors import ModelFilesError, UnsupportedModel
from engine.experts.store import ExpertStore, plan_layers, pool_needs
from engine.formats.weight import StoredWeight
from engine.kernels.moe import part_view
from engine.memory.budget import PoolNeed
from tests.experts.checkpoint_experts import FORMATS, RandomExperts, random_experts


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("storage", FORMATS)
def test_every_byte_is_as_stored(storage: str) -> None:
    experts = random_experts(storage, experts=3, hidden=288, inner=160)
    store = ExpertStore.load(experts, plan_layers(experts, [0]))
    bank, spec = store.bank(0), store.plan(0).spec
    used = 0
    for part in spec.parts:
        matrix, name = part.name.split(".")
        for number, (gate, up, down) in enumerate(experts.layers[0]):
            weights = (gate, up) if matrix == "gate_up" else (down,)
            expected = b"".join(bytes_of(weight.parts[name]) for weight in weights)
            assert bytes_of(part_view(bank, spec, part.name)[number]) == expected
        used += part.nbytes
    assert used == sum(weight.nbytes for weight in experts.layers[0][0])
    assert int(bank[:, spec.nbytes :].sum()) == 0


def test_progress_ends_at_the_total_and_never_goes_back() -> None:
    experts = random_experts(["float32", "nvfp4"], experts=2, hidden=64, inner=32)
    told: list[tuple[int, int]] = []
    store = ExpertStore.load(
        experts, plan_layers(experts, [0, 1]), lambda done, total: told.append((done, total))
    )
    total = sum(plan.nbytes for plan in store.plans)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (total, total)
    assert store.nbytes == total


def test_layers_of_one_stride_share_a_pool() -> None:
    experts = random_experts(["nvfp4", "float32", "nvfp4"], experts=4, hidden=64, inner=32)
    # 3 x 64 x 32 weights are 3.4 kB of NVFP4 and 24 kB of float32.
    assert pool_needs(plan_layers(experts, [0, 1, 2])) == (
        PoolNeed(stride=4096, blobs=8),
        PoolNeed(stride=24576, blobs=4),
    )


def test_loading_holds_one_copy() -> None:
    one = torch.randn(512, 512)
    weight = StoredWeight("float32", (512, 512), {"weight": one})
    experts = RandomExperts([[(weight, weight, weight)] * 16])
    before = psutil.Process().memory_info().rss
    store = ExpertStore.load(experts, plan_layers(experts, [0]))
    grown = psutil.Process().memory_info().rss - before
    assert store.nbytes == 48 << 20
    assert store.nbytes <= grown + (1 << 20)
    assert grown < store.nbytes + (8 << 20)


def one_layer(*changes: tuple[int, int, StoredWeight]) -> RandomExperts:
    """A float32 layer of three experts 32 x 16 with (expert, matrix) replaced."""
    experts = random_experts("float32", experts=3, hidden=32, inner=16)
    for number, matrix, weight in changes:
        matrices = list(experts.layers[0][number])
        matrices[matrix] = weight
        gate, up, down = matrices
        experts.layers[0][number] = (gate, up, down)
    return experts


def plain(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> StoredWeight:
    name = str(dtype).removeprefix("torch.")
    return StoredWeight(name, (rows, columns), {"weight": torch.zeros(rows, columns, dtype=dtype)})


def load(experts: RandomExperts) -> ExpertStore:
    return ExpertStore.load(experts, plan_layers(experts, [0]))


def test_wrong_experts_are_refused_by_number() -> None:
    half = plain(16, 32, torch.bfloat16)
    with pytest.raises(UnsupportedModel, match=r"expert 0 of layer 0: gate is stored as bfloat16"):
        load(one_layer((0, 0, half)))
    with pytest.raises(ModelFilesError, match=r"expert 2 of layer 0: gate \[16, 32\], up \[8"):
        load(one_layer((2, 1, plain(8, 32))))
    with pytest.raises(UnsupportedModel, match="expert 1 of layer 0 is stored as bfloat16"):
        load(one_layer((1, 0, half), (1, 1, half)))
    mislabelled = StoredWeight("float32", (16, 32), {"weight": torch.zeros(16, 16)})
    with pytest.raises(ModelFilesError, match=r"expert 1 of layer 0: gate_up\.weight"):
        load(one_layer((1, 0, mislabelled)))
    with pytest.raises(ModelFilesError, match="layer 0 is a MoE layer and has no experts"):
        load(RandomExperts([[]]))
