"""Where the model computes: `cpu`, `sim` (a CPU that plays a GPU) or `cuda`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from engine.errors import DeviceUnavailable
from engine.memory.cuda_driver import Driver, driver
from engine.options import DeviceName

DeviceKind = Literal["cpu", "sim", "cuda"]


@dataclass(frozen=True)
class Device:
    """`cpu` computes experts in place in the store. `sim` and `cuda` compute them from slots only;
    `sim` keeps those slots in host memory, so the whole expert cache runs without a GPU.
    """

    kind: DeviceKind
    torch: torch.device

    @property
    def has_slots(self) -> bool:
        return self.kind != "cpu"

    @property
    def in_host_memory(self) -> bool:
        """What this device holds lies in host memory: true for `cpu` and for `sim`."""
        return self.torch.type == "cpu"


def resolve_device(name: DeviceName) -> Device:
    """The device of this name; `auto` is cuda where there is one, else cpu.

    Raises DeviceUnavailable if cuda was asked for by name and torch cannot use one.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu" or name == "sim":
        return Device(name, torch.device("cpu"))
    if name == "cuda":
        if not torch.cuda.is_available():
            raise DeviceUnavailable(
                f"The device cuda was asked for, but {_why_no_cuda()}.",
                hint="Use --device cpu, or --device auto to take what there is.",
                param="device",
            )
        return Device("cuda", torch.device("cuda", torch.cuda.current_device()))
    raise DeviceUnavailable(
        f"There is no device called {name!r}.",
        hint="Devices are auto, cpu, sim and cuda.",
        param="device",
    )


def driver_of(device: torch.device) -> Driver:
    """The driver's calls for this GPU, once torch has initialised it."""
    # An empty tensor knows the GPU's number where `device` names none.
    return driver(torch.empty(0, device=device).device.index)


def _why_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"this build of torch ({torch.__version__}) has no CUDA support"
    if torch.cuda.device_count() == 0:
        return "the driver reports no CUDA device"
    return "torch cannot initialise the CUDA driver"
