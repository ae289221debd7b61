"""The largest step, computed before anybody asks for one, and memory divided by what it took."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from engine.context.batch import Batch, SequenceSlice
from engine.errors import OutOfMemory
from engine.memory.budget import Budget, Need, gb
from engine.memory.peak import Peak, peak_memory
from engine.runtime import faults
from engine.runtime.parts import Parts
from engine.scheduler.limits import Limits

MOST_PROOFS = 4
RIDING_SHARE = 1 / 16
"""Beside what the largest chunk took: single tokens of other sequences ride along, and torch's
allocator cannot use every piece again."""
SPARE_SHARE = 0.25
"""An estimate that is too high by no more than this is left alone."""

logger = logging.getLogger(__name__)


def settle(parts: Parts, need: Need, divide: Callable[[Need], Budget]) -> None:
    """Prove the budget by computing its largest step. Where that takes other memory than was
    estimated, divide anew by what was measured; what is larger then is proven again.

    Raises OutOfMemory.
    """
    for _ in range(MOST_PROOFS - 1):
        estimated, proven = parts.share.workspace, parts.limits
        peak = Peak()
        try:
            prove(parts, peak)
            fits, measured = True, int(peak.nbytes * (1 + RIDING_SHARE))
        except OutOfMemory as error:
            logger.info("%s", error.message)
            # Nobody knows how much more it would have taken.
            fits, measured = False, 2 * max(estimated, peak.nbytes)
        if measured <= estimated <= measured * (1 + SPARE_SHARE):
            return
        need = need.with_workspace(measured, estimated, proven.chunk_tokens)
        parts.adopt(divide(need))
        logger.info(
            "a step was measured to take %s, not %s: memory is divided anew, with %d tokens of a "
            "prompt in a step",
            *(gb(measured), gb(estimated), parts.limits.chunk_tokens),
        )
        if fits and not _other(parts.limits, proven):
            return
    prove(parts, Peak())


def _other(limits: Limits, proven: Limits) -> bool:
    """Whether the largest step is not the one that was computed, nor a part of it."""
    chunk = limits.chunk_tokens != proven.chunk_tokens
    return chunk or limits.request_tokens > proven.request_tokens


def prove(parts: Parts, peak: Peak | None = None) -> None:
    """The last full chunk of the longest request: memory that is too small is found at the start.
    `peak` is told what it took, whether it fits or not.

    Raises OutOfMemory.
    """
    end = parts.limits.request_tokens
    tokens = min(parts.limits.chunk_tokens, end)
    device = parts.device.torch
    pages = torch.arange(parts.kv.pages_for(end), device=device)
    rows = torch.arange(tokens, device=device)
    batch = Batch(
        tokens=rows % parts.limits.vocab_size,
        positions=rows + (end - tokens),
        sequences=(SequenceSlice(0, tokens, end - tokens, pages, 0),),
        logit_rows=rows[-1:],
    )
    experts = parts.experts
    try:
        with peak_memory(device, parts.held_by_torch) as measured, torch.inference_mode():
            try:
                if experts is not None:
                    experts.begin_step(tokens * parts.top_k)
                parts.model.forward(batch, parts.kv, parts.states).cpu()
            finally:
                if experts is not None:
                    experts.end_step()
    except Exception as error:
        if not faults.is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"The last {tokens} tokens of a context of {end} do not fit beside the model: {error}",
            hint="Lower --moe-cache-rate, --context or --prefill-chunk.",
        ) from error
    finally:
        if peak is not None:
            peak.nbytes = measured.nbytes
