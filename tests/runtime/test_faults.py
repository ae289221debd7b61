"""Which exceptions mean what, with real ones where this machine can raise them."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InvalidRequest, OutOfMemory, StepPoisoned
from engine.runtime import faults


def test_torchs_own_lack_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert faults.is_out_of_memory(caught.value)
    error = faults.request_fault(caught.value, 7)
    assert isinstance(error, OutOfMemory) and "Request 7" in error.message


@pytest.mark.parametrize(
    ("error", "memory", "device"),
    [
        (MemoryError(), True, False),
        (OutOfMemory("all slots are locked"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory"), True, False),
        (torch.AcceleratorError("CUDA error: unspecified launch failure"), False, True),
        (StepPoisoned("A step was given up."), False, True),
        (RuntimeError("shapes differ"), False, False),
        (IndexError(), False, False),
    ],
)
def test_kinds_of_errors(error: Exception, memory: bool, device: bool) -> None:
    assert faults.is_out_of_memory(error) is memory
    assert faults.is_device_fault(error) is device


def test_a_poisoned_step_ends_the_process_and_says_why() -> None:
    poisoned = StepPoisoned("A step was given up: the step did not end in time.")
    assert faults.device_fault(poisoned) is poisoned
    lost = faults.device_fault(torch.AcceleratorError("CUDA error: unspecified launch failure"))
    assert "unspecified launch failure" in lost.message


def test_typed_errors_keep_their_code_and_others_get_one() -> None:
    typed = InvalidRequest("no token is left", param="grammar")
    assert faults.request_fault(typed, 1) is typed
    error = faults.request_fault(ZeroDivisionError("by zero\nsecond line"), 3)
    assert error.code == "step_failed"
    assert "request 3" in error.message and "ZeroDivisionError: by zero" in error.message
    assert "second line" not in error.message
    assert "no message" in faults.request_fault(KeyError(), 3).message
