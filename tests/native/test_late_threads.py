"""Layer steps whose threads lose their cores to other programs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.experts.store import ExpertStore, plan_layers
from engine.formats.blob import BlobSpec
from engine.kernels.moe import moe_expert_rows
from engine.native.library import Library
from tests.experts.checkpoint_experts import random_experts

HIDDEN, INNER, EXPERTS, ROUTES = 256, 192, 6, 4


@pytest.fixture
def busy() -> Iterator[None]:
    """A process for each CPU computes for nothing."""
    command = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    yield
    for process in started:
        process.kill()
        process.wait()


def stored(storage: str) -> tuple[Tensor, BlobSpec]:
    experts = random_experts(storage, experts=EXPERTS, hidden=HIDDEN, inner=INNER)
    store = ExpertStore.load(experts, plan_layers(experts, [0]))
    return store.bank(0), store.plan(0).spec


def step(bank: Tensor, spec: BlobSpec, tokens: int) -> Tensor:
    chance = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, HIDDEN, generator=chance)
    ids = torch.rand(tokens, EXPERTS, generator=chance).argsort(1)[:, :ROUTES]
    rows = torch.full((tokens, ROUTES, HIDDEN), 7.0)
    moe_expert_rows(bank, spec, x, ids, rows)
    return rows


@pytest.fixture
def any_threads(native: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library has as many threads as torch, however many CPUs there are."""
    set_threads = native.functions.headrace_set_threads
    monkeypatch.setattr(native, "set_threads", set_threads)
    yield
    set_threads(1)


@pytest.mark.usefixtures("busy", "any_threads")
@pytest.mark.parametrize("storage", ["bfloat16", "fp8_block", "nvfp4"])
@pytest.mark.parametrize("threads", [2, 8])
def test_rows_beside_load_are_those_of_one_thread(
    storage: str, threads: int, native: Library
) -> None:
    """From banks that nobody but the library keeps."""
    bank, spec = stored(storage)
    sizes = (1, 3, 9, 16, 17)
    alone = [step(bank, spec, tokens) for tokens in sizes]
    torch.set_num_threads(threads)
    for _ in range(10):
        for tokens, rows in zip(sizes, alone, strict=True):
            assert torch.equal(step(bank.clone(), spec, tokens), rows)
    native.settle()


@pytest.mark.usefixtures("any_threads")
def test_more_rows_of_one_expert_than_are_computed_at_once(native: Library) -> None:
    """Few tokens, each routed to it many times."""
    bank, spec = stored("nvfp4")
    x = torch.randn(16, HIDDEN)
    rows = torch.empty(2, 16, 12, HIDDEN)
    for threads, out in zip((1, 3), rows, strict=True):
        torch.set_num_threads(threads)
        moe_expert_rows(bank, spec, x, torch.full((16, 12), 2), out)
    native.settle()
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[0][:, :1].expand(-1, 12, -1))


def test_a_bank_is_kept_until_no_thread_can_read_it(native: Library) -> None:
    bank, spec = stored("nvfp4")
    step(bank, spec, 1)
    seen = weakref.ref(bank)
    del bank
    gc.collect()
    assert seen() is not None
    native.settle()
    gc.collect()
    assert seen() is None
