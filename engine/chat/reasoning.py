"""Reasoning on one scale, in the words that a model's own template understands.

Clients say how much a model shall reason in several ways, and templates have as many names for it.
What a template understands is found by rendering it: a variable that changes nothing is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.chat.conversation import Message
from engine.errors import InvalidRequest

Variables = dict[str, Any]
Probe = Callable[[list[Message], Variables], "str | None"]
"""The prompt of messages with variables; None where the template does not render them."""

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The scale, from no reasoning to the most."""
_USUAL = ("low", "medium", "high")
"""What is known to those who are told any word."""
SWITCHES: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_mode": ("enabled", "disabled"),
    "thinking_option": ("on", "off"),
    "reasoning": (True, False),
}
"""Variables that switch reasoning, with what they are for on and off."""
_EFFORT_NAMES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_OFF_WORDS = ("none", "no_think", "off")
_BUDGET = "thinking_budget"
_BUDGETS = {"minimal": 512, "low": 2048, "medium": 8192}
"""Tokens of reasoning; more effort than these has no budget."""
_HISTORY: dict[str, tuple[Any, Any]] = {
    "preserve_thinking": (True, False),
    "preserved_thinking": (True, False),
    "keep_past_thinking": (True, False),
    "clear_thinking": (False, True),
    "drop_thinking": (False, True),
    "truncate_history_thinking": (False, True),
}
"""Variables that keep the reasoning of earlier turns, with what they are for keeping and not."""
PRESERVE = "preserve_thinking"
"""The name under which clients ask for it here."""
_NO_WORD = "unheard-of"

ASKED: list[Message] = [{"role": "user", "content": "Hi"}]
"""What is rendered to see what a template does."""
_THOUGHT: list[Message] = [
    *ASKED,
    {"role": "assistant", "content": "Yes?", "reasoning_content": "Hm.", "thinking": "Hm."},
    *ASKED,
]


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a client asks of reasoning."""

    on: bool | None = None
    effort: str = ""
    """Of EFFORTS, or "": not asked."""
    budget: int | None = None
    """Tokens."""

    @property
    def none(self) -> bool:
        return self.on is False or self.effort == "none" or self.budget == 0


@dataclass(frozen=True, kw_only=True)
class ReasoningControls:
    """What a template offers, as variables for it."""

    on: Variables | None = None
    """None: it has no switch."""
    off: Variables | None = None
    efforts: dict[str, Variables] = field(default_factory=dict)
    """By effort, in their order; the empty variables are what happens without any."""
    budget: bool = False
    """Whether it is told of a budget in tokens."""
    history: dict[bool, Variables] = field(default_factory=dict)
    """Whether reasoning of earlier turns is kept."""

    def variables(self, wish: Wish) -> Variables:
        """For as much reasoning as is asked; {} where nothing is, or the template offers nothing.

        A budget and an effort stand for each other where the template knows only one of them. An
        effort that it does not know is the next lower one that it does, or its lowest.
        """
        if wish.none:
            return dict(self.off or {})
        if wish == Wish():
            return {}
        return {**(self.on or {}), **self._amount(wish)}

    @property
    def words(self) -> list[str]:
        """Efforts that make a difference, from the least on; [] where none does. Of a template
        that only has a switch, `none` and `high`."""
        levels = list(self.efforts) or (["high"] if self.on is not None else [])
        switched = self.off is not None and "none" not in levels
        return ["none", *levels] if switched else levels

    @property
    def always(self) -> bool:
        """Whether there is more and less reasoning, but not none."""
        return bool(self.efforts) and self.off is None

    def translated(self, name: str, value: Any) -> Variables | None:
        """What a client's variable is called here; None where there is nothing of the kind."""
        if not isinstance(value, bool):
            return None
        if name == PRESERVE:
            return self.history.get(value)
        if name in ("enable_thinking", "thinking"):
            return self.on if value else self.off
        return None

    def _amount(self, wish: Wish) -> Variables:
        if self.budget and wish.budget is not None:
            return {_BUDGET: wish.budget}
        effort = wish.effort
        if not effort and wish.budget is not None:
            fitting = [name for name, tokens in _BUDGETS.items() if wish.budget <= tokens]
            effort = fitting[0] if fitting else "high"
        if not effort or not self.efforts:
            return {}
        rank = EFFORTS.index(effort)
        known = [name for name in self.efforts if EFFORTS.index(name) <= rank]
        return self.efforts[known[-1] if known else next(iter(self.efforts))]


def checked_effort(effort: str | None, param: str) -> str | None:
    """Raises InvalidRequest for a word that is not on the scale. None is absent."""
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequest(
            f'{param} is "{effort[:40]}"; {", ".join(EFFORTS)} are known.', param=param
        )
    return effort


def probed(probe: Probe, reads: Callable[[str], bool]) -> ReasoningControls:
    """What a template offers. `reads`: whether it reads a variable at all."""
    plain = probe(ASKED, {})
    if plain is None:
        return ReasoningControls()
    on, off = _switch(probe, reads)
    efforts: dict[str, Variables] = {}
    name = next((name for name in _EFFORT_NAMES if reads(name)), "")
    if name:
        efforts, silent = _levels(probe, name, on or {})
        off = off if off is not None else silent
    budget = reads(_BUDGET) and probe(ASKED, {_BUDGET: 1024}) not in (None, plain)
    if budget:
        off = off if off is not None else {_BUDGET: 0}
        efforts = efforts or {effort: {_BUDGET: tokens} for effort, tokens in _BUDGETS.items()} | {
            "high": {}
        }
    return ReasoningControls(
        on=on, off=off, efforts=efforts, budget=budget, history=_history(probe, reads, on or {})
    )


def _switch(
    probe: Probe, reads: Callable[[str], bool]
) -> tuple[Variables | None, Variables | None]:
    for name, (on, off) in SWITCHES.items():
        if reads(name):
            with_it, without = probe(ASKED, {name: on}), probe(ASKED, {name: off})
            if None not in (with_it, without) and with_it != without:
                return {name: on}, {name: off}
    return None, None


def _levels(
    probe: Probe, name: str, on: Variables
) -> tuple[dict[str, Variables], Variables | None]:
    """Efforts, and what stands for none."""

    def prompt(word: str) -> str | None:
        return probe(ASKED, {**on, name: word})

    unset, unheard = probe(ASKED, on), prompt(_NO_WORD)
    words = {word: prompt(word) for word in (*EFFORTS[1:], *_OFF_WORDS)}
    if unheard is not None and _NO_WORD in unheard:  # it passes on whatever it is told
        return {effort: {name: effort} for effort in _USUAL}, None
    known = {
        effort: {name: effort} for effort in EFFORTS[1:] if words[effort] not in (None, unheard)
    }
    if known and unheard is not None and unset == unheard:
        known.setdefault("medium", {})  # what happens without a word that it knows
    known = {effort: known[effort] for effort in EFFORTS if effort in known}
    silent = (word for word in _OFF_WORDS if words[word] not in (None, unheard))
    off = next(silent, None)
    return known, None if off is None else {name: off}


def _history(probe: Probe, reads: Callable[[str], bool], on: Variables) -> dict[bool, Variables]:
    for name, (keep, drop) in _HISTORY.items():
        if reads(name):
            kept, dropped = (probe(_THOUGHT, {**on, name: value}) for value in (keep, drop))
            if None not in (kept, dropped) and kept != dropped:
                return {True: {name: keep}, False: {name: drop}}
    return {}
