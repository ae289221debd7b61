"""A limit of thinking: how far one request has come, and the closing tag when it is used up."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidRequest
from engine.messages import ThinkingBudget

_LONGEST_CHARACTER = 4
"""Bytes in UTF-8."""


class ThinkingLimit:
    """Follows from the tokens sampled so far alone, as a grammar's state does."""

    def __init__(self, budget: ThinkingBudget, spellings: Sequence[bytes], vocab_size: int) -> None:
        """`spellings`: of UseVocabulary. Raises InvalidRequest."""
        _check(budget, spellings, vocab_size)
        self._budget = budget
        self._spellings = spellings
        self._words = -(-vocab_size // 32)
        self._kept = max(map(len, budget.ends))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        """The newest of the output, as much as may have the begin of a tag."""
        self._thinks = not budget.opening
        self._over = False
        self._left = budget.tokens
        self._closing = list(budget.closing)

    @property
    def forced(self) -> int | None:
        """The only token that may come next; None: any may."""
        if self._over or not self._thinks or self._left > 0:
            return None
        # A character is completed first: no text may go on after a part of one.
        within_character = bool(self._decoder.getstate()[0])
        return None if within_character and self._left > -_LONGEST_CHARACTER else self._closing[0]

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
        known = token < len(self._spellings)
        self._text += self._decoder.decode(self._spellings[token] if known else b"")
        if self._thinks:
            self._left -= 1
        else:
            self._begin()
        if self._thinks:
            self._over = any(end in self._text for end in self._budget.ends)
            self._text = self._text[-self._kept :]

    def _begin(self) -> None:
        """Only what the output begins with can open thinking."""
        opening, text = self._budget.opening, self._text.lstrip()
        if text.startswith(opening):
            self._thinks, self._text = True, text.removeprefix(opening)
        else:
            self._over = not opening.startswith(text)


def _check(budget: ThinkingBudget, spellings: Sequence[bytes], vocab_size: int) -> None:
    if not spellings:
        raise InvalidRequest("A thinking budget came before the vocabulary.", param="thinking")
    if budget.tokens < 0:
        raise InvalidRequest(
            f"The thinking budget is {budget.tokens}; it must be at least 0.", param="thinking"
        )
    if not budget.ends or not budget.closing:
        raise InvalidRequest("A thinking budget has nothing that ends it.", param="thinking")
    if not all(0 <= token < vocab_size for token in budget.closing):
        raise InvalidRequest(
            f"The closing tag has tokens {budget.closing}; the vocabulary ends at "
            f"{vocab_size - 1}.",
            param="thinking",
        )
