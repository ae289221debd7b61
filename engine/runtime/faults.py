"""What an exception of a step means: for one request, for the step's size, or for the process."""

from __future__ import annotations

import re

import torch

from engine.errors import DeviceFault, HeadraceError, OutOfMemory, StepFailed

# Sentences by which torch's CPU allocator, cuBLAS, the CUDA runtime and Triton report a lack of
# memory as a RuntimeError.
_MEMORY_SENTENCES = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
    "Triton Error [CUDA]: out of memory",
)
_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfMemory):
        return True
    return isinstance(error, RuntimeError) and any(each in str(error) for each in _MEMORY_SENTENCES)


def wanted_bytes(error: Exception) -> int:
    """What torch's allocator was asked for when it had no more; 0 where the error does not say."""
    found = _WANTED.search(str(error))
    return int(float(found[1]) * _UNITS[found[2]]) if found else 0


def is_device_fault(error: Exception) -> bool:
    """Whether the CUDA context is lost, or the device's wait for CPU experts was given up: every
    later call on it would raise the same error.

    Kernels run asynchronously, so the call that raises need not be the one at fault.
    """
    if isinstance(error, DeviceFault):
        return True
    return isinstance(error, torch.AcceleratorError) and not is_out_of_memory(error)


def lost(device: torch.device) -> Exception | None:
    """What everything on this device raises from now on; None while it works.

    Libraries and Triton have errors of their own for a call that finds the context broken by an
    earlier kernel, so it is the device that is asked, and not the error.
    """
    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
    except Exception as error:  # noqa: BLE001 - whatever it is, the device does not work
        return error
    return None


def device_fault(error: Exception) -> DeviceFault:
    if isinstance(error, DeviceFault):
        return error
    return DeviceFault(
        f"The GPU reported an error that this process cannot recover from: {_first_line(error)}",
        hint="The engine restarts. If this repeats, update the GPU driver and report the log.",
    )


def request_fault(error: Exception, request: int) -> HeadraceError:
    """The typed error that the request ends with."""
    if is_out_of_memory(error):
        return OutOfMemory(
            f"Request {request} ran out of memory twice, the second time alone in its step: "
            f"{_first_line(error)}",
            hint="Shorten the prompt, or lower --max-sequences or --moe-cache-rate.",
        )
    if isinstance(error, HeadraceError):
        return error
    return StepFailed(
        f"The step of request {request} raised {type(error).__name__}: {_first_line(error)}",
        hint="Other requests go on. The log has the traceback.",
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"
