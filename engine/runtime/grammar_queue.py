"""Requests whose grammars are being compiled while the others go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from engine.errors import HeadraceError, InvalidRequest, StepFailed
from engine.messages import Submit, UseVocabulary
from engine.runtime.grammar import GrammarCompiler, TokenGrammar
from engine.scheduler.sequence import Sequence, State

logger = logging.getLogger(__name__)

COMPILE_SECONDS = 30.0
"""A request that waits longer for its grammar is refused."""
PATIENCE_SECONDS = 0.01
"""How long an engine without other work waits at a time: commands are taken in between."""


class GrammarQueue:
    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._compiler: GrammarCompiler | None = None
        self._compiling: list[tuple[Sequence, float, Future[TokenGrammar | None]]] = []
        """Each with the time at which it is given up."""

    def use(self, vocabulary: UseVocabulary) -> None:
        if self._compiler is not None:
            self._compiler.close()
        self._compiler = GrammarCompiler(vocabulary, self._vocab_size)

    def check(self, submit: Submit) -> None:
        """Raises InvalidRequest for a grammar before the vocabulary."""
        if submit.compiles and self._compiler is None:
            raise InvalidRequest("A grammar came before the vocabulary.", param="grammar")

    def enter(self, sequence: Sequence, submit: Submit) -> None:
        """Compile the grammars of a request that has passed `check`."""
        assert self._compiler is not None  # checked
        until = time.monotonic() + COMPILE_SECONDS
        future = self._compiler.compile_all(submit.grammar, submit.compiled_beside)
        self._compiling.append((sequence, until, future))

    def compiled(self) -> Iterator[tuple[Sequence, TokenGrammar | HeadraceError | None]]:
        """Those that have come to an end, each once; requests that ended meanwhile are dropped.
        None: the request is not held to a grammar."""
        if not self._compiling:
            return
        waiting, self._compiling = self._compiling, []
        now = time.monotonic()
        for entry in waiting:
            sequence, until, future = entry
            if sequence.state is State.FINISHED:
                future.cancel()
            elif future.done():
                yield sequence, _result(future)
            elif now > until:
                future.cancel()
                yield sequence, _too_long()
            else:
                self._compiling.append(entry)

    def wait(self) -> None:
        """Until one is compiled, but not for long."""
        if self._compiling:
            futures = [future for _, _, future in self._compiling]
            wait(futures, PATIENCE_SECONDS, FIRST_COMPLETED)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.close()


def _result(future: Future[TokenGrammar | None]) -> TokenGrammar | HeadraceError | None:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, HeadraceError):
        return error
    logger.error("compiling a grammar failed", exc_info=error)
    return StepFailed(f"Compiling the grammar raised {type(error).__name__}: {error}")


def _too_long() -> InvalidRequest:
    return InvalidRequest(
        f"The grammar was not compiled within {COMPILE_SECONDS:g} s.",
        hint="Simplify the schema or the grammar, or try again when the server is less busy.",
        param="grammar",
    )
