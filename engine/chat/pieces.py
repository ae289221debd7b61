"""Long texts are tokenised piece by piece, with the tokens that the whole text would have.

A text may be cut between two characters when nothing of the tokenizer reaches across:
- no token of the vocabulary holds the two bytes that meet there, so that no merge joins them;
- what is around the place has the same tokens in one and in two, which covers the normaliser and
  the pre-tokenizer, as far as they look no further than BORDER_REACH characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

import tokenizers

from engine.chat.interruption import check
from engine.errors import InvalidRequest

PIECE = 1 << 16
"""Characters of a piece, at most, where the text has borders: some hundredths of a second."""
UNBROKEN = 1 << 20
"""Characters of a text without a border. The time for such a one grows faster than its length, and
nothing can stop it."""
BORDER_REACH = 64
_TRIES = 32
"""Places that are looked at closely for one border."""


class TextTooLarge(InvalidRequest):
    code = "text_too_large"
    status = 413


class PieceEncoder:
    """Safe to use from several threads."""

    def __init__(self, inner: tokenizers.Tokenizer, vocabulary: Iterable[bytes]) -> None:
        """`vocabulary`: the bytes of all tokens that can be merged."""
        self._inner = inner
        added = inner.get_added_tokens_decoder().values()
        spellings = [*vocabulary, *(token.content.encode("utf-8") for token in added)]
        self._joined = {pair for spelling in spellings for pair in pairwise(spelling)}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Raises TextTooLarge for a long text without borders, and GivenUp between pieces."""
        if not add_special_tokens:
            return [token for part in self._encodings(text) for token in part.ids]
        whole = tokenizers.Encoding.merge(list(self._encodings(text)))
        return list(self._inner.post_process(whole, add_special_tokens=True).ids)

    def _encodings(self, text: str) -> Iterator[tokenizers.Encoding]:
        begin = 0
        while begin < len(text):
            check()
            end, following = self._piece(text, begin)
            # Unlike `encode`, this lets other threads run meanwhile.
            yield self._inner.encode_batch_fast([text[begin:end]], add_special_tokens=False)[0]
            begin = following

    def _piece(self, text: str, begin: int) -> tuple[int, int]:
        """Where the piece that starts at `begin` ends, and where the next one starts."""
        low = begin
        while len(text) - low > PIECE:
            border = self._border(text, begin, low, low + PIECE)
            if border is not None:
                return border
            check()
            low += PIECE
            if low - begin >= UNBROKEN:
                raise TextTooLarge(
                    f"A text of the request goes on for more than {UNBROKEN} characters without a "
                    "place, such as a space, at which this model's tokenizer can divide it.",
                    hint="Divide it by spaces or line ends, or leave it out.",
                )
        return len(text), len(text)

    def _border(self, text: str, begin: int, low: int, high: int) -> tuple[int, int] | None:
        """The last border after `low` up to `high` of the piece that starts at `begin`: the end of
        what is before it, the start of what is after."""
        tries = 0
        following = text[high].encode("utf-8")
        for place in range(high, low, -1):
            before = text[place - 1].encode("utf-8")
            if (before[-1], following[0]) not in self._joined:
                for start in (place, place + 1) if following == b" " else (place,):
                    if self._divides(text, begin, place, start):
                        return place, start
                tries += 1
                if tries == _TRIES:
                    return None
            following = before
        return None

    def _divides(self, text: str, begin: int, end: int, start: int) -> bool:
        """Whether what is around a place has the same tokens in one and in two.

        `start` is after a space that the vocabulary puts in front of every text. What is before the
        piece does not count: a control token there no longer strips the spaces behind it.
        """
        left = text[max(begin, end - BORDER_REACH) : end]
        between, right = text[end:start], text[start : start + BORDER_REACH]
        tokens = (self._inner.encode(part, add_special_tokens=False).ids for part in (left, right))
        whole = self._inner.encode(left + between + right, add_special_tokens=False).ids
        return bool(whole == [token for ids in tokens for token in ids])
