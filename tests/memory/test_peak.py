"""The measured memory of a step, by arithmetic on what is made."""

from __future__ import annotations

import pytest
import torch

from engine.memory.peak import peak_memory

KIB = 1 << 10


def make(kib: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(kib * KIB, dtype=torch.uint8, device=device)


def test_what_lives_at_once_counts_once() -> None:
    cpu = torch.device("cpu")
    kept = make(100, cpu)
    with peak_memory(cpu) as peak:
        first = make(8, cpu)
        assert first.view(torch.int32)[1:].view(-1).sum() == 0  # views are no memory of their own
        del first
        second = make(16, cpu)
        kept.add_(1)  # neither is what was there before
        third = make(4, cpu)
        del second, third
        make(1, cpu)
    assert 20 * KIB <= peak.nbytes < 21 * KIB


def test_a_step_that_fails_is_measured_too() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(RuntimeError, match="no room"), peak_memory(cpu) as peak:
        make(8, cpu)
        raise RuntimeError("no room")
    assert peak.nbytes == 8 * KIB


@pytest.mark.gpu
def test_on_a_gpu_the_allocator_s_books_count() -> None:
    cuda = torch.device("cuda")
    kept = make(4 * KIB, cuda)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    with peak_memory(cuda, held) as peak:
        first, second = make(64 * KIB, cuda), make(64 * KIB, cuda)
        del first, second
    assert 128 << 20 <= peak.nbytes <= 136 << 20
    del kept
