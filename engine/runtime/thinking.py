"""A limit of thinking: how far one request has come, and the closing tag when it is used up."""

from __future__ import annotations

import codecs

import numpy as np
import numpy.typing as npt
import regex

from engine.errors import InvalidRequest
from engine.messages import ThinkingBudget, UseVocabulary

PATIENCE = 128
"""Most tokens beyond the budget, for the header of a call that has begun."""
HELD_CHARS = 1024
"""So much of the output is looked at at once; a header that is longer is not seen."""

_LONGEST_CHARACTER = 4
"""Bytes in UTF-8."""
_FIRST_MARK = 0xD800


class ThinkingLimit:
    """Follows from the tokens sampled so far alone, as a grammar's state does."""

    def __init__(self, budget: ThinkingBudget, vocabulary: UseVocabulary, vocab_size: int) -> None:
        """Raises InvalidRequest."""
        _check(budget, vocabulary, vocab_size)
        self._spellings = vocabulary.tokens
        marks = {token: chr(_FIRST_MARK + place) for place, token in enumerate(budget.marks)}
        self._controls = {**dict.fromkeys(vocabulary.special, ""), **marks}
        """Their text, by id."""
        self._words = -(-vocab_size // 32)
        self._opening = _compiled(budget.opening)
        self._end = _compiled(budget.end)
        self._call = _compiled(budget.call) if budget.call else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        """The newest of the output, as much as may be the begin of what is looked for."""
        self._enough = 0
        """How long it is when it is worth a look again, while there is budget left."""
        self._calls = False
        """Whether it may be the begin of a call's header."""
        self._thinks = not budget.opening
        self._over = False
        self._left = budget.tokens
        self._closing = list(budget.closing)

    @property
    def forced(self) -> int | None:
        """The only token that may come next; None: any may."""
        if self._over or not self._thinks or self._left > 0:
            return None
        # A character is completed first: no text may go on after a part of one. So is the header
        # of a call; thoughts that only mention its mark go on with something else.
        within_character = bool(self._decoder.getstate()[0])
        if within_character and self._left > -_LONGEST_CHARACTER:
            return None
        return None if self._calls and self._left > -PATIENCE else self._closing[0]

    def mask(self) -> npt.NDArray[np.int32]:
        """int32 [ceil(V / 32)], the one bit of `forced` set, which must be there."""
        token = self.forced
        assert token is not None
        words = np.zeros(self._words, dtype=np.uint32)
        words[token // 32] = 1 << token % 32
        return words.view(np.int32)

    def accept(self, token: int) -> None:
        """The token is part of the output now."""
        if self._over:
            return
        if self.forced is not None:
            del self._closing[0]
            self._over = not self._closing
            return
        self._text += self._said(token)
        if self._thinks:
            self._left -= 1
        else:
            self._begin()
        # What is held back for long is looked at again only when it has grown by a part of itself.
        if self._thinks and (self._left <= 0 or len(self._text) >= self._enough):
            self._look()
            self._enough = len(self._text) + len(self._text) // 16

    def _said(self, token: int) -> str:
        """As parsers see it: a control token that no pattern names has no text, and the spelling of
        one is text like any other."""
        if token in self._controls:
            return self._controls[token]
        known = token < len(self._spellings)
        return self._decoder.decode(self._spellings[token] if known else b"")

    def _begin(self) -> None:
        """Only what the output begins with can open thinking."""
        match = self._opening.match(self._text, partial=True)
        if match is None:
            self._over = True
        elif not match.partial:
            self._thinks, self._text = True, self._text[match.end() :]

    def _look(self) -> None:
        """For what ends thinking, and for what may become it."""
        patterns = [each for each in (self._end, self._call) if each is not None]
        if any(each.search(self._text) for each in patterns):
            self._over = True
            return
        begun = {each: _begun(each, self._text) for each in patterns}
        self._calls = self._call is not None and begun[self._call] < len(self._text)
        self._text = self._text[min(begun.values()) :][-HELD_CHARS:]


def _begun(pattern: regex.Pattern[str], text: str) -> int:
    """Where something begins that may become the pattern; the text's end: nowhere."""
    match = pattern.search(text, partial=True)
    return len(text) if match is None else match.start()


def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.DOTALL)


def _check(budget: ThinkingBudget, vocabulary: UseVocabulary, vocab_size: int) -> None:
    if not vocabulary.tokens:
        raise InvalidRequest("A thinking budget came before the vocabulary.", param="thinking")
    if budget.tokens < 0:
        raise InvalidRequest(
            f"The thinking budget is {budget.tokens}; it must be at least 0.", param="thinking"
        )
    if not budget.end or not budget.closing:
        raise InvalidRequest("A thinking budget has nothing that ends it.", param="thinking")
    if not all(0 <= token < vocab_size for token in budget.closing):
        raise InvalidRequest(
            f"The closing tag has tokens {budget.closing}; the vocabulary ends at "
            f"{vocab_size - 1}.",
            param="thinking",
        )
