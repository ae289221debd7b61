"""Stop strings over a stream of text: found across token borders, never shown in part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StopResult:
    text: str
    """What may be shown now."""
    matched: str | None = None
    """The stop string that ended the output, if one did. It is not part of `text`."""


class StopStrings:
    """Feed pieces of text; get back what is certain not to belong to a stop string.

    The tail that could still grow into a stop string is held back until it does, or cannot.
    Of several stop strings the one that is complete first wins, then the longest: that does not
    depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def feed(self, text: str) -> StopResult:
        if not self._stops:
            return StopResult(text)
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops]
        matches = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if matches:
            _, start, stop = min(matches)
            shown, self._held = self._held[:start], ""
            return StopResult(shown, stop)
        keep = self._undecided()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return StopResult(shown)

    def finish(self) -> str:
        """The held-back tail, once it is known that nothing follows."""
        tail, self._held = self._held, ""
        return tail

    def _undecided(self) -> int:
        """Length of the longest tail that is a proper beginning of a stop string."""
        for length in range(min(len(self._held), self._longest - 1), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
