"""What the server answers on /health."""

from __future__ import annotations

import msgspec


class HealthError(msgspec.Struct, frozen=True, kw_only=True):
    code: str = ""
    message: str = ""
    hint: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is ready, starting, loading, restarting, failed or stopped."""

    status: str = "starting"
    phase: str = ""
    done: int = 0
    total: int = 0
    unit: str = "bytes"
    model: str = ""
    error: HealthError | None = None


def parse(body: bytes) -> Health:
    """Raises ValueError where this is not a Headrace server's answer."""
    try:
        return msgspec.json.decode(body, type=Health)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a Headrace health record: {error}") from error


PHASES = {
    "starting": "Starting the runtime",
    "reading": "Reading the model",
    "experts": "Filling the expert store",
    "warming": "Warming up",
}


def describe_progress(health: Health) -> str:
    """The loading phase in words, with how far it is."""
    words = PHASES.get(health.phase, health.phase or "Loading")
    if health.total <= 0:
        return words
    share = min(100, round(100 * health.done / health.total))
    return f"{words}, {share} %"
