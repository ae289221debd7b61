"""How a runtime ended, in words: what its exit status means, and what may have caused it."""

from __future__ import annotations

import signal
import sys
from typing import NamedTuple


class RuntimeEnd(NamedTuple):
    reason: str
    """Continues a sentence about the runtime: `it ...`, without a full stop."""
    hint: str = ""
    """The likely cause and what to do, as whole sentences."""


_MEMORY = "Choose a smaller model or a shorter --context, or close other programs."
_NATIVE = (
    "Most likely a fault of native code: a kernel, a library or the driver of the GPU. "
    "If it happens again, report it with the log."
)
_CRASHES = {
    "SIGSEGV": RuntimeEnd("it reached for memory that is not its own", _NATIVE),
    "SIGILL": RuntimeEnd(
        "the CPU does not know an instruction that it was given",
        "Most likely a library or a kernel was built for a newer CPU than this one: "
        "install Headrace anew on this machine.",
    ),
    "SIGBUS": RuntimeEnd(
        "a page of memory or of a mapped file could not be had",
        "Most likely a file of the model was replaced or cut short while it was in use, its disk "
        "failed, or a memory limit was reached. Check the model's files.",
    ),
    "SIGFPE": RuntimeEnd("it divided by zero", _NATIVE),
    "SIGABRT": RuntimeEnd("native code in it gave up", _NATIVE),
    "SIGKILL": RuntimeEnd(
        "it was killed from outside",
        f"If nobody did so on purpose, the system did because memory ran out. {_MEMORY}",
    ),
    "SIGTERM": RuntimeEnd(
        "it was told to end from outside", "Some program or person asked it to; Headrace did not."
    ),
}
_OF_WINDOWS = {
    0xC0000005: "SIGSEGV",
    0xC00000FD: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000006: "SIGBUS",
    0xC0000094: "SIGFPE",
    0xC0000409: "SIGABRT",
}
"""Windows has exit statuses where others have signals."""


def runtime_end(code: int, last_line: str = "", platform: str = sys.platform) -> RuntimeEnd:
    """`code` as subprocess gives it: of a signal, minus its number; on Windows, an NTSTATUS.

    What the process said last tells something where it ended by itself. After a crash it is the
    middle of a dump, which the log has whole.
    """
    if platform == "win32" and code in _OF_WINDOWS:
        reason, hint = _CRASHES[_OF_WINDOWS[code]]
        return RuntimeEnd(f"{reason} (status 0x{code:08X})", hint)
    if code < 0:
        name = _signal_name(-code)
        reason, hint = _CRASHES.get(name, RuntimeEnd("it was ended by a signal"))
        return RuntimeEnd(f"{reason} ({name})", hint)
    said = f"; it last said: {last_line}" if last_line else ""
    return RuntimeEnd(f"it ended with exit code {code}{said}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
