"""Tokens to text, one at a time: joined pieces equal the decoding of the whole."""

from __future__ import annotations

import codecs

from engine.chat.parsers.events import Piece
from engine.chat.tokenizer import Tokenizer


class Detokenizer:
    """Holds back bytes of a character until the character is complete.

    Tokens of byte-level vocabularies may end inside a character. An incomplete tail is never
    shown: the next token completes it, or `finish` drops it. Bytes that cannot become UTF-8 any
    more (a model can sample anything) do turn into U+FFFD, as in a decoding of the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_space = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """The text that this token makes certain; special tokens have none."""
        raw = self._tokenizer.token_bytes(token)
        if raw and self._strip_space:
            self._strip_space = False
            raw = raw.removeprefix(b" ")
        text = self._decoder.decode(raw)
        held = self._decoder.getstate()[0]
        if held[:1] == b"\xed" and held[1:] >= b"\xa0":
            # Half of a surrogate: Python waits for its end, though no character begins so.
            text += self._decoder.decode(b"", final=True)
        return text

    def piece(self, token: int) -> Piece:
        """The same for parsers, which want to see control tokens too."""
        if token in self._tokenizer.special_ids:
            return Piece(self._tokenizer.token_label(token), control=True)
        return Piece(self.push(token))

    def token_bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)

    def finish(self) -> None:
        """Drop the incomplete tail and be ready for another text."""
        self._decoder.reset()
        self._strip_space = self._tokenizer.strips_first_space

    def decode(self, tokens: list[int]) -> str:
        """The text of a whole list of tokens."""
        self.finish()
        text = "".join(self.push(token) for token in tokens)
        self.finish()
        return text
