"""Tokenising piece by piece: the library's tokens of the whole text, and an end on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors

from engine.chat import pieces
from engine.chat.interruption import GivenUp, interruptible
from engine.chat.pieces import TextTooLarge
from engine.chat.templates import ChatTemplate, TemplateSource
from engine.chat.tokenizer import Tokenizer as HeadraceTokenizer
from tests.chat.vocabularies import SPECIAL, TEXT, byte_fallback, byte_level, metaspace
from tests.properties import examples

ROUNDS = "{% for i in range(90000) %}"
ENDLESS = f"{ROUNDS}{ROUNDS}{{% set x = i %}}{{% endfor %}}{{% endfor %}}"

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def by_words() -> Tokenizer:
    """As GPT-4 and most models since, with text made canonical first."""
    words = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner = byte_level(pre_tokenizers.Sequence([words, spelled]))
    inner.normalizer = normalizers.NFC()
    inner.add_tokens([AddedToken("<think>", special=False, lstrip=True)])
    return inner


def marked() -> Tokenizer:
    """With a token in front of every text, and one behind."""
    inner = metaspace()
    inner.post_processor = processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 1), ("[EOS]", 2)]
    )
    return inner


KINDS = [byte_level, by_words, byte_fallback, metaspace, marked]
PARTS = st.lists(
    st.sampled_from(
        [
            *(*TEXT, *SPECIAL, "hello ", " ", "   ", "\n", "\n\n", "<think>", "</s>", "e\u0301"),
            *("aaaaa", "1234567", "x = y;\n", "\ub2e4", "\u1103\u1161", "\u3002\u4e2d\u6587"),
        ]
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_have_the_tokens_of_the_whole(kind: Callable[[], Tokenizer]) -> None:
    inner = kind()
    tokenizer = HeadraceTokenizer(kind(), Path("x"))

    @settings(max_examples=examples(100), deadline=None)
    @given(PARTS, st.integers(3, 40), st.booleans())
    def agree(parts: list[str], piece: int, special: bool) -> None:
        text = "".join(parts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pieces, "PIECE", piece)
            tokens = tokenizer.encode(text, add_special_tokens=special)
        assert tokens == inner.encode(text, add_special_tokens=special).ids

    agree()


@pytest.mark.parametrize("piece", range(1, 27))
def test_spaces_between_control_tokens_that_strip_them(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", piece)
    text = "<|im_start|>   <|im_end|>  a"
    tokenizer = HeadraceTokenizer(metaspace(), Path("x"))
    assert tokenizer.encode(text) == metaspace().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_cut_where_it_has_borders(
    kind: Callable[[], Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces, or it would be refused here."""
    monkeypatch.setattr(pieces, "PIECE", 300)
    monkeypatch.setattr(pieces, "UNBROKEN", 300)
    inner = kind()
    tokenizer = HeadraceTokenizer(kind(), Path("x"))
    text = "the quick brown fox jumps over the lazy dog " * 400
    assert tokenizer.encode(text) == inner.encode(text, add_special_tokens=False).ids


def test_shielded_text_is_cut_nowhere_inside_a_control_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = HeadraceTokenizer(byte_level(), Path("x"))
    template = ChatTemplate(
        TemplateSource(
            "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}", "x"
        ),
        {},
    )
    messages = [{"role": "user", "content": f"{n} <|im_end|> and so on"} for n in range(40)]
    rendered = template.render(messages, control_tokens=tokenizer.special)
    whole = tokenizer.encode_shielded(rendered.text, rendered.shield)
    for piece in (1, 7, 30, 100):
        monkeypatch.setattr(pieces, "PIECE", piece)
        assert tokenizer.encode_shielded(rendered.text, rendered.shield) == whole


def test_a_text_without_borders_is_refused_by_its_size() -> None:
    inner = byte_level()
    state = json.loads(inner.to_str())
    state["model"]["vocab"]["aa"] = len(state["model"]["vocab"])
    state["model"]["merges"].append(["a", "a"])
    tokenizer = HeadraceTokenizer(Tokenizer.from_str(json.dumps(state)), Path("x"))
    unbroken = "a" * (pieces.UNBROKEN - 1)
    assert len(tokenizer.encode(unbroken)) == len(unbroken) // 2 + 1
    assert len(tokenizer.encode(f"{unbroken} {unbroken}")) == len(unbroken) + 2
    with pytest.raises(TextTooLarge, match=f"{pieces.UNBROKEN} characters") as raised:
        tokenizer.encode(unbroken * 2)
    assert raised.value.status == 413


def test_work_that_nobody_waits_for_ends() -> None:
    tokenizer = HeadraceTokenizer(byte_level(), Path("x"))
    given_up = threading.Event()
    given_up.set()
    text = "word " * pieces.PIECE
    endless = ChatTemplate(TemplateSource(ENDLESS, "x"), {})
    with interruptible(given_up):
        with pytest.raises(GivenUp):
            tokenizer.encode(text)
        with pytest.raises(GivenUp):
            tokenizer.at_least(text, 300_000)
        with pytest.raises(GivenUp):
            endless.render([])
    assert len(tokenizer.encode(text)) > 1
