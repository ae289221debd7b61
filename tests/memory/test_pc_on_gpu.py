"""What NVML tells of the GPU, beside what torch knows of it."""

from __future__ import annotations

import pytest
import torch

from engine.memory.pc import nvidia_gpu, this_pc

pytestmark = pytest.mark.gpu


def test_the_gpu_is_described_as_torch_sees_it() -> None:
    gpu, note = nvidia_gpu()
    assert gpu is not None and note == ""
    seen = torch.cuda.get_device_properties(0)
    assert gpu.name == seen.name
    # NVML counts what the driver keeps for itself, too.
    assert gpu.vram_total == pytest.approx(seen.total_memory, rel=0.05)
    assert 0 < gpu.vram_free <= gpu.vram_total
    assert 3 <= gpu.pcie[0] <= 7 and gpu.pcie[1] in (1, 2, 4, 8, 16)


def test_its_memory_and_cores_are_as_fast_as_a_copy_and_a_product_show() -> None:
    gpu, _ = nvidia_gpu()
    assert gpu is not None
    data = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    matrix = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")
    copied = 2 * data.nbytes / _seconds(data.clone)
    computed = 2 * 8192**3 / _seconds(lambda: matrix @ matrix)
    assert 0.5 * gpu.vram_rate.per_s < copied < 1.1 * gpu.vram_rate.per_s
    assert 0.3 * gpu.flops < computed < 1.1 * gpu.flops


def test_the_pc_has_a_link() -> None:
    pc = this_pc()
    assert pc.link is not None and pc.link.per_s > 1e9


def _seconds(work: object) -> float:
    """The fastest of five."""
    assert callable(work)
    taken = []
    for _ in range(6):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return min(taken)
