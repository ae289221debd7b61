"""The gather kernel moves exactly the blobs that its table names, and nothing else.

Without a GPU the interpreter runs it on the store's own memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest
import torch
import triton.language as tl
from torch import Tensor

from engine.kernels.gather import BLOCKS, BYTES, NANOSECONDS, Banks, Gauge
from engine.kernels.gather import gather_blobs as reference
from engine.kernels.gather import read_gauge as reference_gauge
from engine.kernels.gpu import gather as kernels
from engine.kernels.gpu import pacing
from engine.kernels.gpu.gather import TILE_WORDS, gather_blobs, read_gauge
from engine.kernels.pacing import LinkPace
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


@pytest.fixture
def clock(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter has no clock of a GPU: the host's is read there."""
    if device.type == "cpu":

        def now() -> tl.tensor:
            return tl.full((), time.perf_counter_ns(), tl.int64)

        for module in (kernels, pacing):
            monkeypatch.setattr(module, "globaltimer", now)


@pytest.mark.usefixtures("clock")
def test_gathers_are_timed_and_counted(device: torch.device) -> None:
    stride = 4 * TILE_WORDS * 3
    made = case(stride, device)
    gauge = Gauge.empty(LAYERS, device)
    banks = replace(made.banks, gauge=gauge)
    for step in range(1, 3):
        for layer, blobs in ((0, 2), (1, 0), (2, BLOCKS)):
            rows = [(number % EXPERTS, number % SLOTS) for number in range(blobs)]
            gather_blobs(made.pool, banks, layer, *table(rows, device))
        spans, nbytes = gauge.spans.cpu(), gauge.nbytes.cpu()
        assert nbytes.tolist() == [2 * stride, 0, BLOCKS * stride]
        # Two blobs of three tiles are the work of six programs.
        assert (spans > 0).sum((1, 2)).tolist() == [2 * 6, 0, 2 * BLOCKS]
        expected = Gauge(spans, nbytes, gauge.totals.cpu(), torch.zeros(2, dtype=torch.int64))
        reference_gauge.reference(spans, expected)
        read_gauge(gauge.spans, gauge)
        if device.type == "cuda":
            torch.cuda.synchronize()
        assert gauge.told.tolist() == gauge.totals.tolist() == expected.told.tolist()
        assert gauge.told[BYTES] == step * (2 + BLOCKS) * stride and gauge.told[NANOSECONDS] > 0
        assert not gauge.spans.any() and not gauge.nbytes.any()


def test_a_gather_lasts_from_its_first_begin_to_its_last_end() -> None:
    gauge = Gauge.empty(3, torch.device("cpu"))
    gauge.spans[0, 3] = torch.tensor([100, 170])
    gauge.spans[0, 9] = torch.tensor([90, 150])
    gauge.spans[2, 0] = torch.tensor([1000, 1001])
    gauge.nbytes[:] = torch.tensor([64, 0, 4])
    reference_gauge.reference(gauge.spans, gauge)
    assert gauge.told.tolist() == [170 - 90 + 1, 68]


@pytest.mark.usefixtures("clock")
def test_a_paced_gather_copies_the_same_and_takes_its_time(device: torch.device) -> None:
    rows = [(3, 2), (0, 5), (3, 0), (2, 1)]
    made = case(4096, device)
    for expert, slot in rows:
        made.expected[slot] = made.banks.layers[1][expert]
    pace = LinkPace(1e6, device)
    gauge = Gauge.empty(LAYERS, device)
    banks = replace(made.banks, gauge=gauge, pace=pace.nanoseconds)
    gather_blobs(made.pool, banks, 1, *table(rows, device))
    assert torch.equal(made.pool.cpu(), made.expected)
    read_gauge(gauge.spans, gauge)
    if device.type == "cuda":
        torch.cuda.synchronize()
    # 16 KiB at a megabyte a second.
    assert gauge.told[NANOSECONDS] >= 4 * 4096 * 1000


@pytest.mark.usefixtures("clock")
def test_what_follows_a_paced_copy_comes_after_its_time(device: torch.device) -> None:
    pace = LinkPace(1e6, device)
    began, ended = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
    pacing.mark_clock(began)
    with pace.copying(20_000):
        pass
    pacing.mark_clock(ended)
    assert int(ended) - int(began) >= 20_000 * 1000
    pacing.wait_clock(ended, pace.nanoseconds, 5_000)
    pacing.mark_clock(began)
    assert int(began) - int(ended) >= 5_000 * 1000


@pytest.mark.gpu
def test_a_graph_s_pace_can_be_changed(device: torch.device) -> None:
    """The rate is read from device memory at every replay."""
    made = case(1769472, device)
    rows = [(slot % EXPERTS, slot) for slot in range(SLOTS)]
    fills, count = table(rows, device)
    gauge, pace = Gauge.empty(LAYERS, device), LinkPace(1e9, device)
    banks = replace(made.banks, gauge=gauge, pace=pace.nanoseconds)

    def step() -> None:
        gather_blobs(made.pool, banks, 1, fills, count)
        read_gauge(gauge.spans, gauge)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    nbytes, taken = SLOTS * 1769472, []
    for bytes_per_s in (1e9, 5e9, 2e9):
        pace.nanoseconds.fill_(1e9 / bytes_per_s)
        torch.cuda.synchronize()
        before = gauge.told.clone()
        graph.replay()
        torch.cuda.synchronize()
        took, copied = (gauge.told - before).tolist()
        assert copied == nbytes
        assert took / 1e9 >= 0.9999 * nbytes / bytes_per_s
        taken.append(took)
    assert sorted(taken) == [taken[1], taken[2], taken[0]]
