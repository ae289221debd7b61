"""Typed errors. Each carries a stable code for programs and a sentence for the person.

The sentence says what happened and names the file, field or number; `hint` says what to do.
"""

from __future__ import annotations

import msgspec


def told(message: str, hint: str = "") -> str:
    """Message and hint on one line. A message may come without the full stop that is between."""
    if not hint:
        return message
    if message and message[-1] not in ".!?\u2026":
        message += "."
    return f"{message} {hint}".strip()


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as it crosses the pipe and leaves over HTTP."""

    code: str
    message: str
    hint: str = ""
    param: str = ""
    """The request field or command-line option at fault, if one is."""
    status: int = 500
    """HTTP status the server answers with."""


class HeadraceError(Exception):
    """Base of every error that Headrace raises on purpose."""

    code = "internal_error"
    status = 500

    def __init__(self, message: str, *, hint: str = "", param: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param

    def record(self) -> ErrorRecord:
        return ErrorRecord(
            code=self.code,
            message=self.message,
            hint=self.hint,
            param=self.param,
            status=self.status,
        )


class ModelNotFound(HeadraceError):
    """The model's path or name leads nowhere."""

    code = "model_not_found"
    status = 404


class ModelFilesError(HeadraceError):
    """A file of the model is missing, truncated, unreadable or contradicts another."""

    code = "model_files"


class ModelConfigError(HeadraceError):
    """config.json lacks a field, or a field has a value this engine cannot run."""

    code = "model_config"


class UnsupportedModel(HeadraceError):
    """A well-formed model of an architecture, format or dtype that this engine does not run."""

    code = "model_unsupported"


class DeviceUnavailable(HeadraceError):
    """The device that was asked for is not on this machine, or its driver does not answer."""

    code = "device_unavailable"
    status = 503


class OutOfMemory(HeadraceError):
    """The model or a request needs more memory than there is. The message has both numbers."""

    code = "out_of_memory"
    status = 503


class InvalidRequest(HeadraceError):
    """The client's request is malformed, or asks for something that is not supported."""

    code = "invalid_request"
    status = 400


class ContextLengthExceeded(InvalidRequest):
    """The prompt (or prompt plus asked-for output) is longer than the context."""

    code = "context_length_exceeded"


class Overloaded(HeadraceError):
    """Too many requests wait already."""

    code = "overloaded"
    status = 503


class RuntimeUnavailable(HeadraceError):
    """The runtime is loading, restarting or failed; the message says which."""

    code = "runtime_unavailable"
    status = 503


class RuntimeDied(HeadraceError):
    """The runtime process ended while it worked on this request."""

    code = "runtime_died"
    status = 502


class StepFailed(HeadraceError):
    """A step raised an error that belongs to one request; the engine goes on."""

    code = "step_failed"


class DeviceFault(HeadraceError):
    """The device's context is broken: nothing can be computed in this process any more."""

    code = "device_fault"
    status = 502


class DriverError(HeadraceError):
    """The GPU's driver refused a call and goes on; the message has its own name for the reason."""

    code = "driver_error"


class StepPoisoned(DeviceFault):
    """A wait between device and CPU experts did not end: the step's result does not count, and the
    process cannot go on."""

    code = "step_poisoned"


class IntegrityError(HeadraceError):
    """The engine's own books contradict each other: its defect, not a request's."""

    code = "integrity"


class PortInUse(HeadraceError):
    """Another program listens on the wanted port."""

    code = "port_in_use"
