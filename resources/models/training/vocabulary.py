"""The teacher's tokenizer, and the student's: the most used part of it, closed under merging."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from settings import END_OF_TEXT, IM_END, IM_START, SPECIAL_TOKENS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ROLES = ["system", "user", "assistant"]


def byte_letters() -> dict[str, int]:
    """The printable letter that stands for each byte in byte-level BPE vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in plain}
    for count, byte in enumerate(b for b in range(256) if b not in plain):
        letters[chr(256 + count)] = byte
    return letters


def build(tokens: dict[str, int], merges: list[tuple[str, str]], specials: list[str]) -> Tokenizer:
    """A byte-level BPE tokenizer that, like SmolLM2's, also splits digits apart."""
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=merges))
    split: list[Any] = [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return tokenizer


class TeacherVocabulary:
    """Tokens, merges and a tokenizer from the GGUF file's metadata."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.tokens: list[str] = list(metadata["tokenizer.ggml.tokens"])
        self.merges = [
            (left, right)
            for left, right in (m.split(" ") for m in metadata["tokenizer.ggml.merges"])
        ]
        self.chat_template: str = metadata["tokenizer.chat_template"]
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        kinds = metadata["tokenizer.ggml.token_type"]
        special = [t for t, kind in zip(self.tokens, kinds, strict=True) if kind == 3]
        self.tokenizer = build(self.ids, self.merges, special)
        self.im_start, self.im_end = self.ids[IM_START], self.ids[IM_END]
        letters = byte_letters()
        self.bytes = [
            token.encode() if kind == 3 else bytes(letters[c] for c in token)
            for token, kind in zip(self.tokens, kinds, strict=True)
        ]

    def text(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens spelled out; raises on broken UTF-8."""
        return b"".join([self.bytes[i] for i in ids]).decode("utf-8")


class StudentVocabulary:
    """The kept tokens: student id -> teacher id, and every teacher id's first kept piece."""

    def __init__(self, teacher: TeacherVocabulary, kept: list[int]) -> None:
        self.teacher = teacher
        self.kept = kept
        chosen = {teacher.tokens[i]: new for new, i in enumerate(kept)}
        self.merges = [
            (a, b) for a, b in teacher.merges if a in chosen and b in chosen and a + b in chosen
        ]
        self.tokenizer = build(chosen, self.merges, SPECIAL_TOKENS)
        self.im_start, self.im_end = chosen[IM_START], chosen[IM_END]
        self.end_of_text = chosen[END_OF_TEXT]
        # "assistant" is two tokens: a role is known by its first one and its number of them.
        self.roles = {name: self.tokenizer.encode(name).ids for name in ROLES}
        self.to_teacher: npt.NDArray[np.int64] = np.array(kept, dtype=np.int64)
        # A teacher token that was not kept begins with its merge's left part, and so on down.
        left = {a + b: a for a, b in reversed(teacher.merges)}
        first = np.zeros(len(teacher.tokens), dtype=np.int64)
        for i, token in enumerate(teacher.tokens):
            while token not in chosen and token in left:
                token = left[token]
            first[i] = chosen.get(token, chosen[END_OF_TEXT])
        self.first_piece: npt.NDArray[np.int64] = first

    def save(self) -> str:
        return json.dumps(self.kept)


def choose(teacher: TeacherVocabulary, counts: npt.NDArray[np.int64], size: int) -> list[int]:
    """The `size` teacher ids to keep: specials, bytes, roles, then the most frequent ones.

    A token comes in only together with everything its merge is made of, so that byte-pair
    encoding over the kept merges can still reach it.
    """
    parts: dict[str, tuple[str, str]] = {}
    for a, b in teacher.merges:
        parts.setdefault(a + b, (a, b))
    kept: dict[int, None] = {}

    def need(token: str, wanted: list[int]) -> None:
        number = teacher.ids[token]
        if number in kept or number in wanted:
            return
        for part in parts.get(token, ()):
            need(part, wanted)
        wanted.append(number)

    def add(token: str) -> None:
        wanted: list[int] = []
        need(token, wanted)
        if len(kept) + len(wanted) <= size:
            kept.update(dict.fromkeys(wanted))

    roles = [piece for name in ROLES for piece in teacher.tokenizer.encode(name).tokens]
    for token in [*SPECIAL_TOKENS, *byte_letters(), *roles]:
        if token in teacher.ids:
            add(token)
    for number in np.argsort(-counts, kind="stable"):
        if len(kept) == size:
            break
        token = teacher.tokens[int(number)]
        if token in parts:
            add(token)
    # Specials keep the lowest ids, the rest the teacher's order: merges then stay sorted by rank.
    specials = [teacher.ids[s] for s in SPECIAL_TOKENS]
    return specials + sorted(set(kept) - set(specials))
