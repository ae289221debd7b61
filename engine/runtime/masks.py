"""Token masks, made on a thread of their own while the model computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine.errors import HeadraceError


class TokenMask(Protocol):
    """What the next token of one request may be."""

    def mask(self) -> npt.NDArray[np.int32]:
        """int32 [ceil(V / 32)] or longer: bit b of word w is that of token 32 w + b. Raises
        HeadraceError."""
        ...


@dataclass(frozen=True)
class Masks:
    """Of one step."""

    words: torch.Tensor
    """int32 [R, ceil(V / 32)], all bits set in rows that may be anything."""
    errors: Mapping[int, HeadraceError]
    """Rows whose mask could not be made."""


class MaskMaker:
    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._thread: ThreadPoolExecutor | None = None
        """Started by the first mask."""

    def begin(self, allowed: Sequence[TokenMask | None]) -> Future[Masks] | None:
        """Masks for the rows of a step; None if no row needs one.

        What makes them must be left alone until the future is done.
        """
        if not any(allowed):
            return None
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "masks")
        return self._thread.submit(self._make, allowed)

    def _make(self, allowed: Sequence[TokenMask | None]) -> Masks:
        words = np.full((len(allowed), self._words), -1, dtype=np.int32)
        errors = {}
        for row, tokens in enumerate(allowed):
            if tokens is None:
                continue
            try:
                words[row] = tokens.mask()[: self._words]
            except HeadraceError as error:
                errors[row] = error
        return Masks(torch.from_numpy(words), errors)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)
