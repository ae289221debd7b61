"""Token masks, made on a thread of their own while the model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from engine.errors import HeadraceError
from engine.runtime.grammar import TokenGrammar


@dataclass(frozen=True)
class Masks:
    """Of one step."""

    words: torch.Tensor
    """int32 [R, ceil(V / 32)], all bits set in rows without a grammar."""
    errors: Mapping[int, HeadraceError]
    """Rows whose grammar has failed."""


class MaskMaker:
    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._thread: ThreadPoolExecutor | None = None
        """Started by the first grammar."""

    def begin(self, grammars: Sequence[TokenGrammar | None]) -> Future[Masks] | None:
        """Masks for the rows of a step; None if no row has a grammar.

        The grammars must be left alone until the future is done.
        """
        if not any(grammars):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "masks")
        return self._thread.submit(self._make, grammars)

    def _make(self, grammars: Sequence[TokenGrammar | None]) -> Masks:
        words = np.full((len(grammars), self._words), -1, dtype=np.int32)
        errors = {}
        for row, grammar in enumerate(grammars):
            if grammar is None:
                continue
            try:
                words[row] = grammar.mask()[: self._words]
            except HeadraceError as error:
                errors[row] = error
        return Masks(torch.from_numpy(words), errors)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)
