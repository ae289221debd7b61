from __future__ import annotations

from typing import cast

import pytest
import torch

from engine.errors import DeviceUnavailable
from engine.memory.device import resolve_device
from engine.options import DeviceName


def test_cpu_and_sim_share_host_memory_and_differ_in_slots() -> None:
    cpu, sim = resolve_device("cpu"), resolve_device("sim")
    assert cpu.torch == sim.torch == torch.device("cpu")
    assert (cpu.has_slots, sim.has_slots) == (False, True)
    assert cpu.in_host_memory and sim.in_host_memory


def test_auto_takes_what_there_is() -> None:
    assert resolve_device("auto").kind == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_absent_cuda_is_a_typed_error_that_says_why() -> None:
    with pytest.raises(DeviceUnavailable, match="cuda was asked for, but") as caught:
        resolve_device("cuda")
    assert caught.value.param == "device"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match="tpu"):
        resolve_device(cast(DeviceName, "tpu"))
