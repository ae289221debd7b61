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


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has", 5 << 29),
        ("CUDA out of memory. Tried to allocate 20.00 MiB.", 20 << 20),
        ("CUDA out of memory. Tried to allocate 512.00 KiB.", 512 << 10),
        ("CUDA error: out of memory", 0),
    ],
)
def test_what_was_asked_for_in_vain_is_read(text: str, nbytes: int) -> None:
    error = torch.OutOfMemoryError(text)
    assert faults.wanted_bytes(error) == nbytes and faults.is_out_of_memory(error)


def test_torchs_own_words_for_host_memory_are_read() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert faults.wanted_bytes(caught.value) == 1 << 50


@pytest.mark.parametrize(
    "text", ["CUDA error: out of memory", "Triton Error [CUDA]: out of memory"]
)
def test_a_lack_of_memory_outside_the_allocator_breaks_nothing(text: str) -> None:
    for kind in (RuntimeError, torch.AcceleratorError):
        assert faults.is_out_of_memory(kind(text)) and not faults.is_device_fault(kind(text))


def test_host_memory_is_never_lost() -> None:
    assert faults.lost(torch.device("cpu")) is None
