"""What of a PC decides whether a model fits and how fast it runs. Torch-free.

Sizes come from the system, rates from what was measured here (machine_profile.py). A rate that was
not measured is assumed, low rather than high, and says so wherever it is shown.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from engine.memory import machine_profile
from engine.memory.machine_profile import MachineProfile

OLDEST = (8, 0)
"""Compute capability from which on the kernels are compiled."""
PCIE_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes a second of one lane, by generation, after line coding (PCI-SIG)."""
LINK_SHARE = 0.75
"""Of the lanes' rate, for a link that was not measured; 0.88 was measured on PCIe 5.0 x16
(benchmarks/results/gpu-xeon-16-link.json)."""
ASSUMED_LANES = (3, 16)
ASSUMED_HOST = 20e9
"""Two cores of a server read 22 (benchmarks/results/cpu-xeon-2-host.json), two channels of
DDR4-2400 carry 38."""
ASSUMED_VRAM_RATE = 250e9
"""Of a GPU of which only the memory's size is known: a laptop's with 128 lines of GDDR6."""
TENSOR_FLOPS = {(8, 0): 2048, (8, 6): 512, (8, 7): 1024, (8, 9): 512, (9, 0): 4096, (12, 0): 512}
"""bfloat16 operations a clock and multiprocessor with float32 sums, from the makers' peak rates."""
ASSUMED_FLOPS = 30e12
_DOUBLE_RATE = 2
"""NVML tells the clock; memory transfers on both its edges."""


@dataclass(frozen=True)
class Rate:
    """Bytes a second, and where the figure comes from."""

    per_s: float
    source: str
    measured: bool = False


@dataclass(frozen=True)
class Gpu:
    name: str
    vram_total: int
    vram_free: int
    vram_rate: Rate
    flops: float
    """Peak of bfloat16 products a second."""
    pcie: tuple[int, int] = ASSUMED_LANES
    """Generation and lanes."""


@dataclass(frozen=True)
class Pc:
    ram_total: int
    ram_free: int
    """What programs can still get."""
    cores: int
    """Physical ones."""
    host: Rate
    gpu: Gpu | None = None
    link: Rate | None = None
    """None without a GPU."""
    notes: tuple[str, ...] = ()

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """A sentence on each rate that is assumed."""
        rates = {"Host memory": self.host}
        if self.link is not None:
            rates["The link to the GPU"] = self.link
        return tuple(
            f"{name} is not measured yet: {rate.per_s / 1e9:.0f} GB/s is {rate.source}."
            for name, rate in rates.items()
            if not rate.measured
        )


def this_pc(*, with_gpu: bool = True) -> Pc:
    """This PC, now. A sleeping GPU is woken for a moment by being asked."""
    memory = psutil.virtual_memory()
    gpu, note = nvidia_gpu() if with_gpu else (None, "")
    return pc_of(
        ram_total=int(memory.total),
        ram_free=int(memory.available),
        cores=psutil.cpu_count(logical=False) or psutil.cpu_count() or 1,
        gpu=gpu,
        profile=machine_profile.load(),
        notes=(note,) if note else (),
    )


def pc_of(
    *,
    ram_total: int,
    ram_free: int,
    cores: int,
    gpu: Gpu | None,
    profile: MachineProfile,
    notes: tuple[str, ...] = (),
) -> Pc:
    """With the rates that were measured on this hardware, or else assumed ones."""
    hardware = machine_profile.host_hardware(processor(), ram_total)
    host = _measured(profile.host, hardware) or Rate(ASSUMED_HOST, "assumed")
    link = None
    if gpu is not None:
        link = _measured(profile.link, gpu.name) or assumed_link(*gpu.pcie)
    return Pc(ram_total, ram_free, cores, host, gpu, link, notes)


def with_figures(
    pc: Pc,
    *,
    vram: float | None = None,
    ram: float | None = None,
    link: float | None = None,
    host: float | None = None,
) -> Pc:
    """The same PC with other figures: memory in bytes (all of it free), rates in bytes a second.
    A `vram` of 0 takes its GPU away."""
    if ram is not None:
        pc = replace(pc, ram_total=int(ram), ram_free=int(ram))
    if host is not None:
        pc = replace(pc, host=Rate(host, "given", measured=True))
    if vram == 0:
        pc = replace(pc, gpu=None, link=None)
    elif vram is not None:
        gpu = pc.gpu or Gpu(
            name="a GPU",
            vram_total=0,
            vram_free=0,
            vram_rate=Rate(ASSUMED_VRAM_RATE, "assumed"),
            flops=ASSUMED_FLOPS,
        )
        gpu = replace(gpu, vram_total=int(vram), vram_free=int(vram))
        pc = replace(pc, gpu=gpu, link=pc.link or assumed_link(*gpu.pcie))
    if link is not None and pc.gpu is not None:
        pc = replace(pc, link=Rate(link, "given", measured=True))
    return pc


def assumed_link(generation: int, lanes: int) -> Rate:
    rate = PCIE_LANE.get(generation, PCIE_LANE[ASSUMED_LANES[0]]) * lanes * LINK_SHARE
    return Rate(rate, f"assumed for PCIe {generation}.0 x{lanes}")


def processor() -> str:
    """The processor's name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _measured(found: machine_profile.Measured | None, hardware: str) -> Rate | None:
    if found is None or found.hardware != hardware or found.gb_per_s <= 0:
        return None
    return Rate(found.gb_per_s * 1e9, f"measured on {found.when[:10]}", measured=True)


# --- the GPU, by NVML ----------------------------------------------------------------------------


def nvidia_gpu() -> tuple[Gpu | None, str]:
    """The first NVIDIA GPU that the kernels run on, and a sentence where that is none."""
    with _nvml() as nvml:
        if nvml is None or not nvml.nvmlDeviceGetCount():
            return None, ""
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        name = nvml.nvmlDeviceGetName(handle)
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
        if capability < OLDEST:
            words = "{}.{}".format(*capability)
            return None, f"{name} is not used: its compute capability {words} is below 8.0."
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return (
            Gpu(
                name=name,
                vram_total=int(memory.total),
                vram_free=int(memory.free),
                vram_rate=_vram_rate(nvml, handle),
                flops=_flops(nvml, handle, capability),
                pcie=_pcie(nvml, handle),
            ),
            "",
        )


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """NVML while it is needed, since an open handle keeps a laptop's GPU awake; None without it."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _vram_rate(nvml: Any, handle: Any) -> Rate:
    try:
        clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
        width = nvml.nvmlDeviceGetMemoryBusWidth(handle)
    except nvml.NVMLError:
        return Rate(ASSUMED_VRAM_RATE, "assumed")
    return Rate(_DOUBLE_RATE * clock * 1e6 * width / 8, "by its clock and width")


def _flops(nvml: Any, handle: Any, capability: tuple[int, ...]) -> float:
    try:
        clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        units = nvml.nvmlDeviceGetAttributes(handle).multiprocessorCount
    except nvml.NVMLError:
        try:
            # Only GPUs that can be divided tell of multiprocessors; all tell of CUDA cores.
            units = nvml.nvmlDeviceGetNumGpuCores(handle) // 128
            clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        except nvml.NVMLError:
            return ASSUMED_FLOPS
    a_clock = TENSOR_FLOPS.get((capability[0], capability[1]), 512)
    return float(a_clock * units * clock * 1e6)


def _pcie(nvml: Any, handle: Any) -> tuple[int, int]:
    """The most that GPU and slot agree on: an idle link is slower than it can be."""
    try:
        return (
            int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
            int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        )
    except nvml.NVMLError:
        return ASSUMED_LANES
