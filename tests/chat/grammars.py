"""Grammars tried without a model: a vocabulary of bytes, and walks through what masks allow."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable

import numpy as np

from engine.chat.parsers.events import Piece
from engine.messages import UseVocabulary
from engine.runtime.grammar import GrammarCompiler, TokenGrammar

LONGEST_WALK = 4000
# Text that ends things; a walk that is to come to an end takes it when it may.
CLOSERS = (
    *('"', "}", "]", "null", "false", '"a"', "1", "</think>", "<|end|>", "</arg_value>", "</"),
    *("\n</parameter>", "</parameter>", "</function>", "</tool_call>", "</｜DSML｜parameter>"),
)


class ByteModel:
    """Every byte is a token, so is every closer, and so are the control tokens of a family."""

    def __init__(self, special: Collection[str]) -> None:
        closers = [each for each in CLOSERS if each not in special]
        self._texts = [bytes([byte]) for byte in range(256)] + [each.encode() for each in closers]
        self.special = {each: len(self._texts) + index for index, each in enumerate(special)}
        self._first_special = len(self._texts)
        self.end = self._first_special + len(special)
        self._compiler = GrammarCompiler(
            UseVocabulary(
                tokens=[*self._texts, *(each.encode() for each in special), b"<end>"],
                special=[*self.special.values(), self.end],
                ends=[self.end],
            ),
            self.end + 1,
        )

    def compile(self, document: str) -> TokenGrammar:
        return self._compiler.compile(document).result()

    def tokens(self, pieces: Iterable[Piece]) -> list[int]:
        """Text byte by byte."""
        return [
            token
            for piece in pieces
            for token in ([self.special[piece.text]] if piece.control else piece.text.encode())
        ]

    def pieces(self, tokens: Iterable[int]) -> list[Piece]:
        """What a detokenizer makes of them: text in one piece between control tokens."""
        names = {token: name for name, token in self.special.items()}
        pieces, text = [], b""
        for token in [*tokens, self.end]:
            if token < self._first_special:
                text += self._texts[token]
                continue
            if text:
                pieces.append(Piece(text.decode()))
            text = b""
            if token in names:
                pieces.append(Piece(names[token], control=True))
        return pieces

    def walk(self, grammar: TokenGrammar, draw: random.Random) -> list[int]:
        """Tokens of a random output that the grammar takes as a whole."""
        tokens: list[int] = []
        while len(tokens) < LONGEST_WALK:
            allowed = np.flatnonzero(
                np.unpackbits(grammar.mask().view(np.uint8), bitorder="little")
            ).tolist()
            token = draw.choice(allowed)
            if draw.random() < 0.5:
                ends = [token for token in allowed if token >= self._first_special]
                closing = [token for token in allowed if token >= 256]
                token = draw.choice(ends or closing or allowed)
            if token == self.end:
                return tokens
            tokens.append(token)
            if grammar.accept(token):
                return tokens
        raise AssertionError(f"no end after {LONGEST_WALK} tokens")


def takes(grammar: TokenGrammar, tokens: Iterable[int], end: int) -> bool:
    """Whether the grammar allows this output and that it ends there."""
    over = False
    for token in tokens:
        if over or not allows(grammar, token):
            return False
        over = grammar.accept(token)
    return over or allows(grammar, end)


def allows(grammar: TokenGrammar, token: int) -> bool:
    return bool(int(grammar.mask()[token // 32]) >> token % 32 & 1)
