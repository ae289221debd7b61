"""Streaming text from tokens: joined pieces equal the whole, and no character comes in halves."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.chat.detokenizer import Detokenizer
from engine.chat.tokenizer import Tokenizer
from tests.chat.vocabularies import SPECIAL, byte_fallback, byte_level
from tests.properties import examples

INNER = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}
KINDS = {kind: Tokenizer(inner, Path(kind)) for kind, inner in INNER.items()}
ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)


def byte_tokens(raw: bytes) -> list[int]:
    """One token for each byte: the hardest split there is."""
    tokenizer = KINDS["byte_level"]
    single = {tokenizer.token_bytes(number): number for number in range(tokenizer.vocab_size)}
    return [single[bytes([byte])] for byte in raw]


def pieces_of(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.push(token) for token in tokens]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60))
@given(text=ANY_TEXT)
def test_joined_pieces_are_the_librarys_decoding(kind: str, text: str) -> None:
    tokens = INNER[kind].encode(text, add_special_tokens=False).ids
    expected = INNER[kind].decode(tokens, skip_special_tokens=True)
    assert "".join(pieces_of(KINDS[kind], tokens)) == expected


@given(ANY_TEXT, st.lists(st.integers(0, 160), max_size=8))
def test_any_split_of_the_bytes_comes_back_whole(text: str, cuts: list[int]) -> None:
    tokens = byte_tokens(text.encode())
    for special in cuts:  # special tokens between the bytes show nothing and break nothing
        tokens.insert(min(special, len(tokens)), special % len(SPECIAL))
    pieces = pieces_of(KINDS["byte_level"], tokens)
    assert "".join(pieces) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@example(b"\xed\xa0")
@example(b"a\xed\xbf")
@example(b"\xed\x9f")
@given(st.binary(max_size=24))
def test_bytes_that_are_no_text_decode_as_python_does(raw: bytes) -> None:
    shown = "".join(pieces_of(KINDS["byte_level"], byte_tokens(raw)))
    whole = raw.decode("utf-8", "replace")
    # Only an unfinished character at the very end may be missing.
    assert whole in (shown, shown + "\ufffd")


def test_an_incomplete_tail_is_dropped() -> None:
    tokenizer = KINDS["byte_level"]
    detokenizer = Detokenizer(tokenizer)
    raw = "ok 👩".encode()
    assert detokenizer.decode(byte_tokens(raw[:-1])) == "ok "
    assert detokenizer.decode(byte_tokens(raw)) == "ok 👩"


def test_the_first_space_of_sentencepiece_is_dropped_once() -> None:
    tokenizer = KINDS["byte_fallback"]
    tokens = INNER["byte_fallback"].encode("ab cd", add_special_tokens=False).ids
    assert Detokenizer(tokenizer).decode(tokens) == "ab cd"
