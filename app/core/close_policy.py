"""What the window's X does. Whatever it is, the window can always be had back."""

from __future__ import annotations

from enum import StrEnum

from app.core.settings import OnClose


class CloseStep(StrEnum):
    ASK = "ask"
    HIDE = "hide"
    """Into the tray."""
    MINIMISE = "minimise"
    """Where there is no tray to hide in."""
    QUIT = "quit"


def on_close(setting: OnClose, *, tray: bool) -> CloseStep:
    if setting == "quit":
        return CloseStep.QUIT
    if setting == "hide":
        return CloseStep.HIDE if tray else CloseStep.MINIMISE
    return CloseStep.ASK
