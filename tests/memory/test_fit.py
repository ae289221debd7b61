"""Whether a model fits: verdicts, what is short, and that the runtime's solver agrees."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.errors import OutOfMemory
from engine.memory.budget import STAGING_BYTES
from engine.memory.fit import fit
from engine.memory.machine_profile import MachineProfile, Measured, host_hardware
from engine.memory.pc import Gpu, Pc, Rate, pc_of, processor, this_pc, with_figures
from engine.memory.solver import solve
from engine.options import EngineOptions
from tests.memory.measured import qwen35_35b

FACTS = qwen35_35b()
OPTIONS = EngineOptions(model="x")
GB = 10**9


def pc(vram: float = 24 * GB, ram: float = 64 * GB) -> Pc:
    base = Pc(0, 0, 8, Rate(40e9, "measured", measured=True))
    return with_figures(base, vram=vram, ram=ram, link=25e9)


def test_a_large_gpu_holds_all_experts() -> None:
    found = fit(FACTS, pc(vram=80 * GB), OPTIONS)
    assert (found.verdict, found.backend, found.cached) == ("fits", "fused", 1.0)
    assert found.ram == FACTS.store + STAGING_BYTES, "the store has all, whatever is cached"


def test_a_small_gpu_holds_a_part() -> None:
    found = fit(FACTS, pc(vram=12 * GB), OPTIONS)
    assert (found.verdict, found.backend) == ("fits", "offload")
    assert 0 < found.cached < 1 and found.hits is not None and found.hits.high < 1
    assert found.vram <= 12 * GB
    larger = fit(FACTS, pc(vram=16 * GB), OPTIONS)
    assert larger.cached > found.cached
    assert found.decode is not None and larger.decode is not None
    assert larger.decode.middle > found.decode.middle


def test_without_a_gpu_the_cpu_computes() -> None:
    found = fit(FACTS, pc(vram=0), OPTIONS)
    assert (found.verdict, found.backend, found.vram, found.hits) == ("fits", "cpu", 0, None)


def test_a_gpu_too_small_for_the_dense_weights_leaves_it_to_the_cpu() -> None:
    assert fit(FACTS, pc(vram=4 * GB), OPTIONS).backend == "cpu"
    asked = fit(FACTS, pc(vram=4 * GB), EngineOptions(model="x", device="cuda"))
    assert (asked.verdict, asked.ram_short) == ("too_large", 0)
    assert asked.vram_short > 0 and asked.decode is None


@pytest.mark.parametrize(("vram", "ram"), [(12, 8), (0, 16), (4, 12)])
def test_what_is_short_is_exactly_what_the_solver_wants(vram: int, ram: int) -> None:
    found = fit(FACTS, pc(vram * GB, ram * GB), OPTIONS)
    assert found.verdict == "too_large"
    if found.backend == "cpu":
        need = FACTS.need(OPTIONS, "float32", on_cpu=True)
        device = None
    else:
        need = FACTS.need(OPTIONS, "bfloat16", on_cpu=False)
        device = vram * GB + found.vram_short
    host = ram * GB + found.ram_short
    slots = device is not None
    solve(need, has_slots=slots, host_free=host, device_free=device)
    with pytest.raises(OutOfMemory):
        solve(need, has_slots=slots, host_free=host - 1, device_free=device)


def test_memory_that_other_programs_hold_is_told_apart_from_too_little() -> None:
    busy = replace(pc(vram=0), ram_free=10 * GB)
    found = fit(FACTS, busy, OPTIONS)
    assert found.verdict == "when_free" and found.decode is not None
    assert found.ram_short > 0
    assert fit(FACTS, replace(busy, ram_free=10 * GB + found.ram_short), OPTIONS).verdict == "fits"


def test_a_context_that_is_asked_for_counts() -> None:
    asked = EngineOptions(model="x", context_tokens=262144)
    assert fit(FACTS, pc(vram=8 * GB), asked).backend != "offload"
    found = fit(FACTS, pc(vram=24 * GB), asked)
    assert found.budget is not None and found.budget.context_tokens == 262144
    assert found.cached < fit(FACTS, pc(vram=24 * GB), OPTIONS).cached


class TestRates:
    def test_what_is_not_measured_is_said(self) -> None:
        found = pc_of(
            ram_total=32 * GB,
            ram_free=20 * GB,
            cores=8,
            gpu=Gpu("RTX", 8 * GB, 7 * GB, Rate(272e9, "by its clock"), 60e12, (4, 8)),
            profile=MachineProfile(),
        )
        assert found.unmeasured == (
            "Host memory is not measured yet: 20 GB/s is assumed.",
            "The link to the GPU is not measured yet: 12 GB/s is assumed for PCIe 4.0 x8.",
        )
        assert found.unmeasured[0] in fit(FACTS, found, OPTIONS).notes
        given = with_figures(found, host=50e9, link=12e9)
        assert given.unmeasured == ()

    def test_measured_rates_count_for_the_hardware_they_were_measured_on(self) -> None:
        here = host_hardware(processor(), 32 * GB)
        profile = MachineProfile(
            link=Measured(gb_per_s=11.8, when="2026-11-30T10:00:00+00:00", hardware="RTX"),
            host=Measured(gb_per_s=47.5, when="2026-11-30T10:00:00+00:00", hardware=here),
        )
        gpu = Gpu("RTX", 8 * GB, 7 * GB, Rate(272e9, "by its clock"), 60e12, (4, 8))

        def rates(ram: int, name: str) -> tuple[float, float]:
            found = pc_of(
                ram_total=ram,
                ram_free=ram,
                cores=8,
                gpu=replace(gpu, name=name),
                profile=profile,
            )
            assert found.link is not None
            return found.host.per_s, found.link.per_s

        assert rates(32 * GB, "RTX") == (47.5e9, 11.8e9)
        host, link = rates(64 * GB, "another")
        assert host != 47.5e9 and link != 11.8e9

    def test_this_pc_is_described(self) -> None:
        found = this_pc()
        assert 0 < found.ram_free <= found.ram_total
        assert found.cores >= 1 and found.host.per_s > 0
        assert (found.gpu is None) == (found.link is None)
