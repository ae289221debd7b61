"""Text to tokens and back by the model's own tokenizer.json (or a GGUF file's vocabulary)."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from engine.chat.interruption import check
from engine.chat.model_files import ModelPlace
from engine.chat.pieces import PieceEncoder
from engine.chat.shields import Twin
from engine.errors import ModelFilesError, UnsupportedModel
from engine.formats.file_checks import require_file

log = logging.getLogger("headrace.model")

COUNT_PIECE = 1 << 16
"""Characters tokenised at a time while a long text is only being counted."""
PIECE_SLACK = 8
"""Tokens that cutting a text in two may add, generously: cutting never adds more than a few."""
_SPACE = "\u2581"
# Else the library tokenises in threads of its own, for which counts and prompts would queue.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """One model's vocabulary. Safe to use from several threads."""

    def __init__(self, inner: tokenizers.Tokenizer, origin: Path) -> None:
        # A tokenizer.json may carry the padding and truncation of its author's training run.
        inner.no_padding()
        inner.no_truncation()
        self._inner = inner
        self._lock = threading.Lock()
        self._twin: Twin | None = None
        """Made when the first message needs it."""
        self.origin = origin
        added = inner.get_added_tokens_decoder()
        self.special: dict[str, int] = {
            token.content: number for number, token in added.items() if token.special
        }
        self._added = {number: token.content for number, token in added.items()}
        self._special_ids = frozenset(self.special.values())
        kind, self.strips_first_space = _decoder_kind(inner, origin)
        self.vocab_size = int(inner.get_vocab_size(with_added_tokens=True))
        self._bytes = {
            number: self._bytes_of(text, number, kind)
            for text, number in inner.get_vocab(with_added_tokens=True).items()
        }
        self._pieces = PieceEncoder(inner, self._bytes.values())
        spellings = [len(text.encode("utf-8")) for text in self.special]
        self.longest_token_bytes = max([1, *spellings, *map(len, self._bytes.values())])
        """The most bytes of a text that one token can stand for."""

    @property
    def special_ids(self) -> frozenset[int]:
        return self._special_ids

    def _bytes_of(self, text: str, number: int, kind: str) -> bytes:
        if number in self._special_ids:
            return b""
        return text.encode("utf-8") if number in self._added else _token_bytes(text, kind)

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes, possibly part of a character; b"" for special and unknown ids."""
        return self._bytes.get(token, b"")

    def spellings(self) -> list[bytes]:
        """Bytes of every token by id; of special ones their spelling, of unknown ids b""."""
        special = {number: text.encode("utf-8") for text, number in self.special.items()}
        known = {**self._bytes, **special}
        return [known.get(token, b"") for token in range(max(known, default=-1) + 1)]

    def token_label(self, token: int) -> str:
        """The token as a person reads it: its text, with U+FFFD for parts of characters."""
        text = self._added.get(token)
        return text if text is not None else self.token_bytes(token).decode("utf-8", "replace")

    def token_id(self, text: str) -> int | None:
        found: int | None = self._inner.token_to_id(text)
        return found

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Tokens of a text in which the spelling of a special token means that token.

        Raises TextTooLarge where a long text has no places at which it can be divided.
        """
        return self._pieces.encode(text, add_special_tokens=add_special_tokens)

    def encode_shielded(self, text: str, shield: str) -> list[int]:
        """Tokens of a text in which spellings broken by `shield` are plain text."""
        if shield not in text:
            return self.encode(text)
        with self._lock:
            if self._twin is None:
                self._twin = Twin(self._inner, self.special, self._bytes.values())
        return self._twin.encode(text, shield)

    def at_least(self, text: str, limit: int) -> int:
        """A lower bound of the number of tokens, exact enough to say that `limit` is exceeded.

        Quick for texts far beyond the limit: no more than about `limit` tokens are ever made.
        Returns 0 when the text may fit, so that it is worth encoding.
        """
        nbytes = len(text) if text.isascii() else len(text.encode("utf-8"))
        floor = nbytes // self.longest_token_bytes
        if floor > limit:
            return floor
        if len(text) <= max(limit, 4 * COUNT_PIECE):
            return 0
        counted = 0
        for start in range(0, len(text), COUNT_PIECE):
            check()
            counted += max(0, len(self.encode(text[start : start + COUNT_PIECE])) - PIECE_SLACK)
            if counted > limit:
                return counted
        return 0


def load_tokenizer(place: ModelPlace) -> Tokenizer:
    """The tokenizer of a model's folder.

    Raises ModelFilesError naming the file that is missing or broken, UnsupportedModel for a
    vocabulary of a kind this engine cannot read.
    """
    path = place.path / "tokenizer.json"
    if not os.path.lexists(path):
        others = [
            name for name in ("tokenizer.model", "tiktoken.model") if (place.path / name).exists()
        ]
        if others:
            raise UnsupportedModel(
                f"{path} is missing; {others[0]} alone cannot be read.",
                hint="Convert the tokenizer to tokenizer.json, or take a copy that has one.",
            )
    require_file(path)
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception with its parser's message
        raise ModelFilesError(
            f"{path} is not a tokenizer that can be read: {error}.", hint="Fetch the file again."
        ) from error
    return Tokenizer(inner, path)


def end_tokens(
    tokenizer: Tokenizer, sources: dict[str, Any], *, vocab_size: int = 0
) -> tuple[int, ...]:
    """Union of the ends that several files name: an id, a list of ids, a token's text, nothing.

    `sources` is named by file and field. What is no token, be it of the tokenizer or of the model
    with its `vocab_size` ids, is left out with a warning: it could never end an answer.
    """
    size = max(tokenizer.vocab_size, vocab_size)
    ends: dict[int, None] = {}
    for name, source in sources.items():
        for given in source if isinstance(source, list | tuple) else [source]:
            item = given.get("content") if isinstance(given, dict) else given
            number = tokenizer.token_id(item) if isinstance(item, str) else item
            if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < size:
                ends[number] = None
            elif given is not None:
                log.warning("%s is %r, no token of this model; it is left out", name, given)
    return tuple(ends)


def _decoder_kind(inner: tokenizers.Tokenizer, origin: Path) -> tuple[str, bool]:
    """How a token's spelling becomes bytes, and whether a text's first space is dropped."""
    decoder = inner.decoder
    state: dict[str, Any] = {"type": "none"}
    if decoder is not None:
        state = json.loads(decoder.__getstate__())
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = [str(step["type"]) for step in steps]
    if "ByteLevel" in kinds:
        return "byte_level", False
    if "ByteFallback" in kinds or kinds == ["Metaspace"]:
        strips = any(step["type"] == "Strip" and step.get("start", 0) > 0 for step in steps)
        prepends = any(
            step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"
            for step in steps
        )
        return "sentencepiece", strips or prepends
    raise UnsupportedModel(
        f"{origin}: the decoder {' + '.join(kinds)} is not supported.",
        hint="Byte-level and SentencePiece-like vocabularies are.",
    )


def _byte_alphabet() -> dict[str, int]:
    """The byte-level spelling: printable Latin-1 stands for itself, the rest from U+0100 up."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


_ALPHABET = _byte_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _token_bytes(text: str, kind: str) -> bytes:
    if kind == "byte_level":
        return b"".join(
            bytes([_ALPHABET[char]]) if char in _ALPHABET else char.encode("utf-8") for char in text
        )
    byte = _BYTE_TOKEN.fullmatch(text)
    if byte:
        return bytes([int(byte.group(1), 16)])
    return text.replace(_SPACE, " ").encode("utf-8")


def special_map(*configs: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and their like as text, for templates; earlier configs win."""
    names: Iterable[str] = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")
    found: dict[str, str] = {}
    for config in configs:
        for name in names:
            value = config.get(name)
            if isinstance(value, dict):
                value = value.get("content")
            if isinstance(value, str) and name not in found:
                found[name] = value
    return found
