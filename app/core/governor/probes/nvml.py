"""NVIDIA's management library: the GPU's memory, all programs together, and who uses it.

On Windows the driver keeps to itself how much each program holds, and its list of users holds
every window. An open handle keeps a laptop's GPU awake, so it is opened only where the GPU is
awake anyway, and `rest` closes it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from app.core.governor.evidence import Engine, Gpu
from app.core.governor.probes.probe import NotAvailable

_WORDS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "No NVIDIA driver is installed.",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is not loaded.",
    pynvml.NVML_ERROR_NO_PERMISSION: "This user may not ask the NVIDIA driver.",
    pynvml.NVML_ERROR_GPU_IS_LOST: "The driver has lost the GPU.",
    pynvml.NVML_ERROR_RESET_REQUIRED: "The GPU has to be reset.",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver was updated; restart the PC.",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "The NVIDIA driver is too old to be asked for this.",
}


_UNTOLD = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
)


@dataclass(frozen=True)
class GpuReading:
    gpu: Gpu
    users: dict[int, int | None] | None = field(default_factory=dict)
    """VRAM by pid, None where it is not told; None altogether where the list means nothing."""


class NvmlProbe:
    name = "NVIDIA driver"

    def __init__(self, asleep: Callable[[], bool]) -> None:
        """`asleep`: whether every GPU that could be asked sleeps, so that asking would wake it."""
        self._asleep = asleep
        self._open = False

    def read(self, engine: Engine) -> GpuReading:
        """Raises NotAvailable. A driver that was reset is asked anew with the next call."""
        if not self._open and self._asleep():
            raise NotAvailable("The GPU sleeps, and asking would wake it.")
        try:
            if not self._open:
                pynvml.nvmlInit()
                self._open = True
            handle = _gpu_of(engine)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            users = _users(handle)
        except pynvml.NVMLError as error:
            self.rest()
            raise NotAvailable(_sentence(error)) from error
        # A list without the engine is one that this driver does not fill.
        told = sys.platform != "win32" and engine.pid in users
        gpu = Gpu(total_bytes=int(memory.total), used_bytes=int(memory.used))
        return GpuReading(gpu, users if told else None)

    def rest(self) -> None:
        if self._open:
            self._open = False
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _gpu_of(engine: Engine) -> Any:
    """Handle of the GPU that the engine's process uses."""
    count = pynvml.nvmlDeviceGetCount()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    if not handles:
        raise NotAvailable("The NVIDIA driver finds no GPU.")
    if len(handles) == 1:
        return handles[0]
    used = [handle for handle in handles if engine.pid in _users(handle)]
    if len(used) != 1:
        raise NotAvailable(
            f"The PC has {len(handles)} GPUs, and the driver does not tell which is the engine's."
        )
    return used[0]


def _users(handle: Any) -> dict[int, int | None]:
    """VRAM by pid. A program can be listed as computing, as drawing, or both."""
    users: dict[int, int | None] = {}
    for lists in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        try:
            for process in lists(handle):
                held = process.usedGpuMemory
                known = users.get(process.pid)
                users[process.pid] = known if held is None else max(held, known or 0)
        except _UNTOLD:
            continue  # not on this GPU, not by this driver, or not to this user
    return users


def _sentence(error: pynvml.NVMLError) -> str:
    return _WORDS.get(error.value, f"The NVIDIA driver answers: {error}.")
