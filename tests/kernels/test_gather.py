"""The gather kernel moves exactly the blobs that its table names, and nothing else.

Without a GPU the interpreter runs it on the store's own memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.kernels.gather import Banks
from engine.kernels.gather import gather_blobs as reference
from engine.kernels.gpu.gather import BLOCKS, TILE_WORDS, gather_blobs
from engine.memory.arena import HostArena
from engine.memory.pinned import Pinned

LAYERS, EXPERTS, SLOTS = 3, 5, 7
UNTOUCHED = 0xA5


@dataclass
class Case:
    banks: Banks
    pool: Tensor
    expected: Tensor
    pinned: list[Pinned]


def case(stride: int, device: torch.device) -> Case:
    torch.manual_seed(stride)
    layers, addresses, pinned = [], [], []
    for _ in range(LAYERS):
        arena = HostArena(EXPERTS * stride)
        arena.commit(EXPERTS * stride)
        bank = arena.view(0, (EXPERTS, stride), torch.uint8).random_(256)
        layers.append(bank)
        if device.type == "cuda":
            pinned.append(Pinned(bank, device))
        addresses.append(pinned[-1].device_address if pinned else bank.data_ptr())
    pool = torch.full((SLOTS, stride), UNTOUCHED, dtype=torch.uint8, device=device)
    banks = Banks(tuple(layers), torch.tensor(addresses, device=device))
    return Case(banks, pool, pool.cpu(), pinned)


def table(rows: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Its unused rows lead nowhere."""
    unused = [(-1, SLOTS)] * 2
    fills = torch.tensor([*rows, *unused], dtype=torch.int32, device=device)
    return fills, torch.tensor([len(rows)], dtype=torch.int32, device=device)


ROWS: list[list[tuple[int, int]]] = [
    [],
    [(0, 0)],
    [(4, 6)],
    [(3, 2), (0, 5), (3, 0), (2, 1)],
    [(expert, slot) for slot, expert in enumerate([2] * 3 + [1] * 4)],
]


@pytest.mark.parametrize(
    ("layer", "rows"), [(0, ROWS[0]), (2, ROWS[1]), (0, ROWS[2]), (2, ROWS[3]), (0, ROWS[4])]
)
@pytest.mark.parametrize(
    "stride",
    [
        4096,
        4 * TILE_WORDS,
        4 * TILE_WORDS + 4096,
        4 * TILE_WORDS * (BLOCKS + 1) - 4096,
        # No blob is so small or so odd.
        4,
        4 * 4099,
    ],
)
def test_it_copies_what_the_table_says(
    stride: int, rows: list[tuple[int, int]], layer: int, device: torch.device
) -> None:
    made = case(stride, device)
    for expert, slot in rows:
        made.expected[slot] = made.banks.layers[layer][expert]
    fills, count = table(rows, device)
    gather_blobs(made.pool, made.banks, layer, fills, count)
    assert torch.equal(made.pool.cpu(), made.expected)
    made.pool.fill_(UNTOUCHED)
    reference.reference(made.pool, made.banks, layer, fills, count)
    assert torch.equal(made.pool.cpu(), made.expected)


def test_a_tensor_on_a_gpu_gets_the_kernel() -> None:
    assert reference.kernel("cuda") is gather_blobs
    assert reference.kernel("cpu") is reference.reference


@pytest.mark.gpu
def test_one_graph_fills_any_number_beside_other_work(device: torch.device) -> None:
    """Blobs of real size, products on another stream, bits as those of the copy engine."""
    made = case(1769472, device)
    most = [(slot % EXPERTS, slot) for slot in range(SLOTS)]
    fills, count = table(most, device)

    def step() -> None:
        gather_blobs(made.pool, made.banks, 1, fills, count)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    busy = torch.cuda.Stream()
    a = torch.randn(2048, 2048, device=device, dtype=torch.bfloat16)
    wanted = a @ a
    torch.cuda.synchronize()
    for q in (0, 1, 7, 3, 0, 5):
        made.pool.fill_(UNTOUCHED)
        made.expected.fill_(UNTOUCHED)
        rows = [((3 * n + q) % EXPERTS, SLOTS - 1 - n) for n in range(q)]
        fills[:q] = torch.tensor(rows, dtype=torch.int32).view(q, 2)
        count.fill_(q)
        for expert, slot in rows:
            made.expected[slot].copy_(made.banks.layers[1][expert])
        torch.cuda.synchronize()
        with torch.cuda.stream(busy):
            products = [a @ a for _ in range(40)]
        graph.replay()
        with torch.cuda.stream(busy):
            products += [a @ a for _ in range(40)]
        torch.cuda.synchronize()
        assert torch.equal(made.pool.cpu(), made.expected)
        copied = torch.full_like(made.pool, UNTOUCHED)
        for expert, slot in rows:
            copied[slot].copy_(made.banks.layers[1][expert], non_blocking=True)
        assert torch.equal(made.pool, copied)
        assert all(torch.equal(product, wanted) for product in products)
