"""What the runtime is told of a tokenizer, so that it can hold outputs to grammars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from engine.chat.model_files import locate
from engine.chat.text_model import load_text_model
from engine.chat.tokenizer import Tokenizer
from engine.messages import UseVocabulary
from engine.runtime.grammar import GrammarCompiler
from tests.chat.grammars import takes
from tests.chat.vocabularies import TEXT, byte_fallback, byte_level, metaspace


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_spellings_are_the_bytes_of_a_text(make: Callable[[], tokenizers.Tokenizer]) -> None:
    tokenizer = Tokenizer(make(), Path("x"))
    spellings = tokenizer.spellings()
    assert len(spellings) == tokenizer.vocab_size
    for text in TEXT if make is byte_level else ["the quick"]:
        joined = b"".join(spellings[token] for token in tokenizer.encode(text))
        assert joined.decode().removeprefix(" ") == text
    for spelling, token in tokenizer.special.items():
        assert spellings[token] == spelling.encode()


@pytest.mark.parametrize("make", [byte_level, byte_fallback, metaspace])
def test_a_tokenizers_own_tokens_pass_through_a_grammar(
    make: Callable[[], tokenizers.Tokenizer],
) -> None:
    tokenizer = Tokenizer(make(), Path("x"))
    end = next(iter(tokenizer.special.values()))
    vocabulary = UseVocabulary(
        tokens=tokenizer.spellings(), special=sorted(tokenizer.special_ids), ends=[end]
    )
    compiler = GrammarCompiler(vocabulary, tokenizer.vocab_size + 50)
    grammar = compiler.compile('{"start": "start: / ?the quick/"}').result()
    assert takes(grammar, tokenizer.encode("the quick"), end)


def test_the_demo_models_vocabulary() -> None:
    text = load_text_model(locate("demo"))
    vocabulary = text.vocabulary()
    assert len(vocabulary.tokens) == text.tokenizer.vocab_size
    assert vocabulary.ends == list(text.end_tokens)
    assert all(vocabulary.tokens[end] for end in vocabulary.ends)


def test_an_end_that_the_tokenizer_takes_for_text_is_none() -> None:
    """Else it could be sampled within a text, and end the answer there."""
    vocabulary = UseVocabulary(tokens=[b"a", b"b", b"</s>"], special=[], ends=[2])
    compiler = GrammarCompiler(vocabulary, 3)
    grammar = compiler.compile('{"start": "start: /.{4}b*/"}').result()
    assert not takes(grammar, [2], 2)
    assert takes(grammar, [0, 1, 1, 0, 1], 2)


def test_a_model_without_an_end_stops_where_nothing_can_follow() -> None:
    compiler = GrammarCompiler(UseVocabulary(tokens=[b"a", b"b"], special=[], ends=[]), 64)
    grammar = compiler.compile('{"start": "start: /ab/"}').result()
    assert not grammar.accept(0) and grammar.accept(1)
