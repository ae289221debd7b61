"""Host memory that a GPU reads by itself: registered once it is filled, so that filling it touches
its pages and nothing has to zero them before."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from engine.memory.cuda_driver import Driver
from engine.memory.device import driver_of


class Pinned:
    """Memory whose pages stay where they are, and out of the swap, until `close` or its end."""

    def __init__(self, memory: Tensor, device: torch.device) -> None:
        """`memory` begins with a page. Raises OutOfMemory or DriverError where the system has no
        more to pin, which Windows allows of about half of its memory."""
        driver, address = driver_of(device), memory.data_ptr()
        self.nbytes = memory.nbytes
        driver.register(address, memory.nbytes)
        self._end = weakref.finalize(self, _unpin, driver, memory)
        # The process's end unpins everything by itself.
        self._end.atexit = False
        self.device_address = driver.device_address(address)
        """Where kernels find the first byte."""

    def close(self) -> None:
        """Unpin once the GPU has done everything that it was asked for. A second call does
        nothing."""
        self._end()


def _unpin(driver: Driver, memory: Tensor) -> None:
    driver.synchronise()
    driver.unregister(memory.data_ptr())
