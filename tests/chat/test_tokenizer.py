"""Tokenizers from files: hub folders and GGUF vocabularies, ends, and texts that are too long."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from engine.chat import gguf_tokenizer
from engine.chat.model_files import ModelPlace
from engine.chat.shields import SHIELDS
from engine.chat.templates import ChatTemplate, TemplateSource
from engine.chat.text_model import load_text_model
from engine.chat.tokenizer import Tokenizer as HeadraceTokenizer
from engine.chat.tokenizer import end_tokens, load_tokenizer
from engine.errors import ContextLengthExceeded, HeadraceError, ModelFilesError, UnsupportedModel
from tests.chat.vocabularies import SPECIAL, TEXT, byte_fallback, byte_level, metaspace
from tests.properties import examples

# As the hub's tokenizer.json of each family has it.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


PRE = {
    "qwen2": _split(QWEN2),
    "llama-bpe": _split(LLAMA3),
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    ),
}


def write_vocabulary(path: Path, pairs: dict[str, Any]) -> None:
    """A GGUF file of metadata alone."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))
    for key, value in pairs.items():
        out += text(key)
        if isinstance(value, bool):
            out += struct.pack("<IB", 7, value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        elif isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value[0], int):
            out += struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        else:
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    path.write_bytes(out + bytes(-len(out) % 32))


def gguf_pairs(inner: Tokenizer, pre: str) -> dict[str, Any]:
    model = json.loads(inner.to_str())["model"]
    tokens = sorted(inner.get_vocab(), key=lambda token: int(inner.token_to_id(token) or 0))
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
    }


@pytest.mark.parametrize("name", PRE)
def test_a_gguf_vocabulary_encodes_as_the_original(name: str, tmp_path: Path) -> None:
    original = byte_level(PRE[name], vocab_size=500)
    if name == "qwen2":
        original.normalizer = normalizers.NFC()
    path = tmp_path / "m.gguf"
    write_vocabulary(path, gguf_pairs(original, name))
    ours = load_text_model(ModelPlace(path, "m")).tokenizer

    @settings(max_examples=examples(60))
    @given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
    def same(text: str) -> None:
        assert ours.encode(text) == original.encode(text, add_special_tokens=False).ids

    same()
    for text in (*TEXT, "1234567 WE'LL\n\n x<|im_end|>y", "e\u0301"):
        assert ours.encode(text) == original.encode(text, add_special_tokens=False).ids


def test_a_gguf_model_has_its_ends_and_its_template(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = gguf_pairs(byte_level(), "smollm")
    write_vocabulary(path, {**pairs, "tokenizer.ggml.add_bos_token": True})
    model = load_text_model(ModelPlace(path, "m"))
    assert set(model.end_tokens) == {0, 2}
    tokens = model.chat_prompt([{"role": "user", "content": "x"}], context_tokens=99).tokens
    assert tokens[0] == 1 and tokens[-1] == 2
    assert model.text_prompt("x", context_tokens=99)[0] == 1  # what the tokenizer puts in front


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, UnsupportedModel, "'tekken'"),
        ({"tokenizer.ggml.model": "llama"}, UnsupportedModel, "'llama'"),
        ({"tokenizer.ggml.token_type": [1, 2]}, ModelFilesError, "token_type has 2 entries"),
        ({"tokenizer.ggml.merges": ["nospace"]}, ModelFilesError, "merges[0] is 'nospace'"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, ModelFilesError, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.eos_token_id": 9999}, ModelFilesError, "eos_token_id is 9999"),
    ],
)
def test_a_gguf_vocabulary_that_cannot_be_read(
    change: dict[str, Any], error: type[HeadraceError], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_vocabulary(path, {**gguf_pairs(byte_level(), "smollm"), **change})
    with pytest.raises(error) as raised:
        load_text_model(ModelPlace(path, "m"))
    assert words in raised.value.message and "m.gguf" in raised.value.message


def test_every_known_pre_tokenizer_is_tested() -> None:
    assert set(gguf_tokenizer._PRE_TOKENIZERS) == set(PRE)


# --- hub folders ------------------------------------------------------------------------------


def folder(tmp_path: Path, **files: Any) -> ModelPlace:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return ModelPlace(tmp_path, "m")


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        ({"eos_token_id": 2}, {"eos_token_id": [2, 0]}, {}, {0, 2}),
        ({"eos_token_id": 2}, {"eos_token_id": 0}, {}, {0, 2}),
        ({"eos_token_id": None}, {}, {"eos_token": "<|im_end|>"}, {2}),
        ({"eos_token_id": 0}, {}, {"eos_token": {"content": "<|im_end|>"}}, {0, 2}),
        ({"text_config": {"eos_token_id": [0]}}, {}, {}, {0}),
        ({}, {}, {}, set()),
    ],
)
def test_the_ends_are_the_union_of_all_that_files_name(
    config: dict[str, Any],
    generation: dict[str, Any],
    tokenizer: dict[str, Any],
    ends: set[int],
    tmp_path: Path,
) -> None:
    place = folder(
        tmp_path, config=config, generation_config=generation, tokenizer_config=tokenizer
    )
    assert set(load_text_model(place).end_tokens) == ends


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    place = folder(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json is missing"):
        load_tokenizer(place)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.model alone"):
        load_tokenizer(place)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Nope"}}'])
def test_a_broken_tokenizer_is_named(content: str, tmp_path: Path) -> None:
    place = folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelFilesError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(place)


@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_a_broken_side_file_is_named(name: str, tmp_path: Path) -> None:
    place = folder(tmp_path)
    (tmp_path / f"{name}.json").write_text("{ not json")
    with pytest.raises(ModelFilesError, match=rf"{name}\.json"):
        load_text_model(place)


def test_an_unknown_decoder_is_named(tmp_path: Path) -> None:
    from tokenizers import decoders

    inner = byte_level()
    inner.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        HeadraceTokenizer(inner, tmp_path)


def test_the_authors_padding_and_truncation_are_off(tmp_path: Path) -> None:
    inner = byte_level()
    inner.enable_truncation(4)
    inner.enable_padding(length=4)
    tokenizer = HeadraceTokenizer(inner, tmp_path)
    assert len(tokenizer.encode("a")) == 1
    assert len(tokenizer.encode("abcdefghijklmnop")) > 4


def test_added_tokens_that_are_not_special_are_text(tmp_path: Path) -> None:
    inner = byte_level()
    inner.add_tokens([AddedToken("<think>", special=False)])
    tokenizer = HeadraceTokenizer(inner, tmp_path)
    number = tokenizer.token_id("<think>")
    assert number is not None and tokenizer.token_bytes(number) == b"<think>"
    assert number not in tokenizer.special_ids


# --- shields and lengths ----------------------------------------------------------------------

SHIELD = "\ufdd0"


def test_shielded_control_tokens_are_plain_text(tmp_path: Path) -> None:
    tokenizer = HeadraceTokenizer(byte_level(), tmp_path)
    plain = "a <|im_end|> b"
    text = f"<|im_start|>{plain.replace('<|', '<' + SHIELD + '|')}<|im_end|>"
    tokens = tokenizer.encode_shielded(text, SHIELD)
    assert tokens[0] == 1 and tokens[-1] == 2
    assert not set(tokens[1:-1]) & tokenizer.special_ids
    assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == plain
    # And the tokenizer is as before.
    assert tokenizer.encode("<|im_end|>") == [2]


KINDS = [byte_level, byte_fallback, metaspace]
PARTS = st.lists(st.sampled_from([*TEXT, "hello ", " ", "\n", *SPECIAL, "<s>", "</s>"]), max_size=6)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(parts=PARTS)
def test_without_shields_both_encodings_agree(
    kind: Callable[[], Tokenizer], parts: list[str]
) -> None:
    tokenizer = HeadraceTokenizer(kind(), Path("x"))
    text = "".join(parts)
    assert tokenizer.encode_shielded(SHIELD + text, SHIELD) == tokenizer.encode(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40))
@given(before=PARTS, inside=PARTS, after=PARTS)
def test_shielded_text_is_encoded_as_where_it_has_no_control_tokens(
    kind: Callable[[], Tokenizer], before: list[str], inside: list[str], after: list[str]
) -> None:
    """Held to the library: a vocabulary to which these spellings never meant anything."""
    state = json.loads(kind().to_str())
    foreign = "<|foreign|>"
    ours = Tokenizer.from_str(json.dumps(state))
    ours.add_special_tokens([foreign])
    tokenizer = HeadraceTokenizer(ours, Path("x"))
    reference = HeadraceTokenizer(Tokenizer.from_str(json.dumps(state)), Path("x"))
    said = foreign.join(inside) + foreign
    broken = said.replace(foreign, foreign[0] + SHIELD + foreign[1:])
    around = "".join(before), "".join(after)
    assert tokenizer.encode_shielded(broken.join(around), SHIELD) == reference.encode(
        said.join(around)
    )


def test_nobody_can_write_a_control_token(tmp_path: Path) -> None:
    """Neither by its name, nor by one name inside another, nor by what stands for it inside."""
    inner = byte_level()
    inner.add_special_tokens(["|im_end|", "\u2603"])
    tokenizer = HeadraceTokenizer(inner, tmp_path)
    source = TemplateSource("{{ messages[0].content }}", "x")
    names = [*tokenizer.special, "<|im_end|><|im_end|>", "<<|im_end|>", "\u2603\u2603"]
    for said in [*names, "".join(SHIELDS[1:]) + "<|im_end|>"]:
        message = {"role": "user", "content": said}
        rendered = ChatTemplate(source, {}).render([message], control_tokens=tokenizer.special)
        tokens = tokenizer.encode_shielded(rendered.text, rendered.shield)
        assert not set(tokens) & tokenizer.special_ids
        assert b"".join(map(tokenizer.token_bytes, tokens)).decode() == said


def test_many_control_tokens_and_a_long_text_are_refused_quickly(tmp_path: Path) -> None:
    inner = byte_level()
    inner.add_special_tokens([f"<|reserved_{number}|>" for number in range(250)])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    model = load_text_model(ModelPlace(tmp_path, "m"))
    began = time.monotonic()
    for said in ("<|" * 5_000_000, "<|reserved_7" * 800_000, "<|im_end|>" * 1_000_000):
        with pytest.raises(ContextLengthExceeded):
            model.chat_prompt([{"role": "user", "content": said}], context_tokens=4096)
    assert time.monotonic() - began < 6


def test_a_bound_is_found_quickly_and_is_a_bound(tmp_path: Path) -> None:
    tokenizer = HeadraceTokenizer(byte_level(), tmp_path)
    huge = "word " * 3_000_000
    began = time.monotonic()
    assert tokenizer.at_least(huge, 4096) > 4096
    assert time.monotonic() - began < 2.0
    for text in ("word " * 40_000, "x" * 400_000, "é" * 150_000):
        count = len(tokenizer.encode(text))
        assert 0 < tokenizer.at_least(text, 1000) <= count
        assert tokenizer.at_least(text, count) == 0


def test_an_end_that_is_no_token_is_named_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = HeadraceTokenizer(byte_level(), Path("tokenizer.json"))
    size = tokenizer.vocab_size
    sources = {
        "config.json: eos_token_id": [1, size + 5],
        "generation_config.json: eos_token_id": [10_000_000, -1, True, 2],
        "tokenizer_config.json: eos_token": "nothing like it",
        "elsewhere": None,
    }
    assert end_tokens(tokenizer, sources, vocab_size=size + 6) == (1, size + 5, 2)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert said[0].startswith("generation_config.json: eos_token_id is 10000000, no token")
    assert "tokenizer_config.json: eos_token is 'nothing like it'" in said[3]
