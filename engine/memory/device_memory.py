"""How much memory the device has, or plays to have, and what this process takes of it."""

from __future__ import annotations

import logging
import os

import pynvml
import torch

from engine.errors import InvalidRequest
from engine.memory.budget import gb
from engine.memory.cuda_arena import has_virtual_memory
from engine.memory.device import Device

logger = logging.getLogger(__name__)


class DeviceMemory:
    """Made before anything is placed on the device. `cpu` has none."""

    def __init__(self, device: Device, emulate_bytes: int = 0) -> None:
        """`emulate_bytes`: play a device that has so much in all. Raises InvalidRequest if a real
        one has less."""
        self._device = device.torch
        self._real = device.kind == "cuda"
        self.emulated = emulate_bytes > 0
        self._total = emulate_bytes
        self.overhead = 0
        """Bytes of this process that are nobody's in particular: the driver's context, kernels,
        what a captured graph takes of the driver. Known once `measure_overhead` was called."""
        if not self._real:
            return
        self._used_before = _used_bytes(self._device)
        _, real = torch.cuda.mem_get_info(self._device)  # makes the context
        if emulate_bytes > real:
            raise InvalidRequest(
                f"--emulate-vram asks for {gb(emulate_bytes)}; this GPU has {gb(real)}.",
                param="emulate_vram_bytes",
            )
        self._total = emulate_bytes or real

    @property
    def resizes(self) -> bool:
        """Whether arenas on it can grow and shrink."""
        return not self._real or has_virtual_memory(self._device)

    @property
    def total(self) -> int:
        """0: a device that is as large as what it holds."""
        return self._total

    def free(self) -> int | None:
        """What can still be had; None: as much as the host has. A played GPU's other programs are
        the real one's; a device that is played in host memory has none, and nothing is taken."""
        if not self._real:
            return self._total or None
        free, real = torch.cuda.mem_get_info(self._device)
        return max(0, free - (real - self._total))

    def cap_torch(self, nbytes: int) -> None:
        """Torch's allocator may hold no more than this; what it keeps for later goes first."""
        if self._real:
            real = torch.cuda.mem_get_info(self._device)[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / real), self._device)

    def measure_overhead(self, owned: int) -> None:
        """What this process has beside the `owned` bytes."""
        if self._real:
            self.overhead = max(0, self.process_bytes() - owned)

    def process_bytes(self) -> int:
        """Of a GPU's memory, what this process has. Where the driver does not tell it by process:
        what the device has in use more than before, so that others must have been quiet."""
        told = _process_bytes(self._device)
        if told is not None:
            return told
        free, real = torch.cuda.mem_get_info(self._device)
        return real - free - (self._used_before or 0)


def _used_bytes(device: torch.device) -> int | None:
    """In use by all programs, without making a context."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(_handle(device)).used)
    except pynvml.NVMLError as error:
        logger.info("NVML does not tell how much of the GPU is in use: %s", error)
        return None


def _process_bytes(device: torch.device) -> int | None:
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(_handle(device))
    except pynvml.NVMLError:
        return None
    own = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
    return int(own[0]) if own and own[0] is not None else None


def _handle(device: torch.device) -> object:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
