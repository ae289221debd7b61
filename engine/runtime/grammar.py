"""Grammars compiled beside the steps, and what a request's grammar allows next."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from engine.errors import InvalidRequest
from engine.messages import GrammarDocument, UseVocabulary

if TYPE_CHECKING:
    import llguidance

MAX_CHARS = 1 << 20
"""Longest grammar, a hundred times what an agent with many tools needs."""
CHECKED = 4096
"""So many grammars that were only to be checked are known to compile: all tools of several agents.
Of each a digest is kept, so that their length takes no memory."""
_HEADER = '%llguidance {"no_forcing": true}\n'
"""Without: masks would leave but one way to spell what is certain, and ask the tokenizer for it."""
_SPECIAL = b"\xff"
"""Put before a control token's spelling: no text has this byte."""


class TokenGrammar:
    """How far one request's output has come in its grammar. Not for two threads at once."""

    def __init__(self, matcher: llguidance.LLMatcher, param: str) -> None:
        """`param`: the request's field that an error names."""
        self._matcher = matcher
        self._param = param

    def mask(self) -> npt.NDArray[np.int32]:
        """int32 [ceil(V / 32)]: the tokens that may come next. Raises InvalidRequest."""
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        self._check()
        return words

    def accept(self, token: int) -> bool:
        """Go on by a token that the mask allows; whether nothing more can follow it.

        Raises InvalidRequest where the grammar's limits end it.
        """
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            why = self._matcher.get_error().splitlines()[0]
            raise InvalidRequest(
                f"The grammar could not be followed any further: {why}",
                hint="A simpler schema or grammar needs less work at each token.",
                param=self._param,
            )


class GrammarCompiler:
    """Compiles one grammar after another, on a thread of its own."""

    def __init__(self, vocabulary: UseVocabulary, vocab_size: int) -> None:
        """`vocab_size` is the model's: ids beyond the tokenizer's are never allowed."""
        self._vocabulary = _Vocabulary(vocabulary, vocab_size)
        self._thread = ThreadPoolExecutor(1, "grammars")
        self._compiles: dict[bytes, None] = {}
        """Digests of what was checked, newest last: agents send their tools with every request."""

    def compile(self, text: str) -> Future[TokenGrammar]:
        """`text`: JSON of a GrammarDocument. The future raises InvalidRequest."""
        return self._thread.submit(self._compile, text)

    def compile_all(self, text: str, beside: Sequence[str]) -> Future[TokenGrammar | None]:
        """The same, and None for no text. `beside`: further documents, which must compile."""
        return self._thread.submit(self._compile_all, text, beside)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _tokenizer(self) -> llguidance.LLTokenizer:
        import llguidance  # not at the top: no request without a grammar shall wait for it

        return llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self._vocabulary), eos_token=self._vocabulary.ends
        )

    def _compile_all(self, text: str, beside: Sequence[str]) -> TokenGrammar | None:
        for each in beside:
            self._check(each)
        return self._compile(text) if text else None

    def _check(self, text: str) -> None:
        digest = hashlib.sha256(text.encode()).digest()
        if digest not in self._compiles:
            self._compile(text)
        self._compiles.pop(digest, None)
        self._compiles[digest] = None
        if len(self._compiles) > CHECKED:
            del self._compiles[next(iter(self._compiles))]

    def _compile(self, text: str) -> TokenGrammar:
        import llguidance

        from engine.runtime.grammar_faults import LIMITS, fault_of

        try:
            document = msgspec.json.decode(text, type=GrammarDocument)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f"The grammar is no document: {error}", param="grammar") from error
        param = document.sources[0].param if document.sources else "grammar"
        if len(text) > MAX_CHARS:
            raise InvalidRequest(
                f"The grammar has {len(text)} characters; the limit is {MAX_CHARS}.", param=param
            )
        inner = [{"name": name, **each} for name, each in document.named.items()]
        whole = {"grammars": [{"lark_grammar": _HEADER + document.start}, *inner]}
        grammar = msgspec.json.encode(whole).decode()
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first one finds what is allowed, but takes too much
        if matcher.is_error():
            raise fault_of(document, matcher.get_error())
        return TokenGrammar(matcher, param)


class _Vocabulary:
    """A vocabulary as llguidance wants it, for models whose ids may go beyond the tokenizer's."""

    bos_token_id = None

    def __init__(self, vocabulary: UseVocabulary, vocab_size: int) -> None:
        self.ends = [end for end in vocabulary.ends if end < vocab_size]
        tokens = [*vocabulary.tokens[:vocab_size]]
        tokens += [b""] * (vocab_size - len(tokens))
        # An end is never text, even where the tokenizer takes it for such.
        for token in {*vocabulary.special, *self.ends}:
            if token < vocab_size:
                tokens[token] = _SPECIAL + (tokens[token] or b"<%d>" % token)
        if not self.ends:  # one has to be there, so it is one that no logits reach
            self.ends = [vocab_size]
            tokens.append(_SPECIAL + b"<end>")
        self.tokens = tokens
        self.eos_token_id = self.ends[0]
        self.special_token_ids: list[int] = []

    def __call__(self, _text: str | bytes) -> list[int]:
        """Only the forcing of tokens asks for this, which every grammar here switches off."""
        return []
