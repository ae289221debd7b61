"""Computes one plan: batch, forward, sample. Tells which member of a step an error belongs to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from engine.errors import HeadraceError, StepFailed
from engine.kernels.sampling import NOT_FINITE, UNSETTLED, all_finite
from engine.messages import TokenLogprob
from engine.runtime import faults
from engine.runtime.debug import DebugFaults
from engine.runtime.decode_graphs import DecodeGraphs
from engine.runtime.grammar import TokenGrammar
from engine.runtime.masks import MaskMaker, TokenMask
from engine.runtime.parts import Parts
from engine.runtime.sampler import logprobs, sample
from engine.runtime.sampling_row import SamplingRow
from engine.runtime.step import BatchBuilder
from engine.runtime.thinking import ThinkingLimit
from engine.scheduler.sequence import Piece, Plan

logger = logging.getLogger(__name__)


@dataclass
class Request:
    """The runtime's own side of a live request."""

    sampling: SamplingRow
    logprobs: int
    """As in Submit."""
    submitted: float
    """Monotonic clock, seconds."""
    grammar: TokenGrammar | None = None
    thinking: ThinkingLimit | None = None
    answered: bool = False
    """Its first token has been sampled."""

    @property
    def allowed(self) -> TokenMask | None:
        """What its next token must be in; None: in the vocabulary. Every grammar allows thinking
        to be closed."""
        closes = self.thinking is not None and self.thinking.forced is not None
        return self.thinking if closes else self.grammar

    @property
    def plain(self) -> bool:
        """Whether its token follows from logits, filters and draw alone."""
        return not self.sampling.adjusts and self.allowed is None


@dataclass
class Outcome:
    """What a piece came to. Without error and token it was a part of a prompt."""

    piece: Piece
    token: int | None = None
    logprob: float | None = None
    top: list[TokenLogprob] = field(default_factory=list)
    error: HeadraceError | None = None

    @property
    def request(self) -> int:
        return self.piece.sequence.request


class StepRunner:
    def __init__(self, parts: Parts, debug: DebugFaults, *, captures: bool = True) -> None:
        """Without `captures` no step is a captured graph, on a GPU too: for comparisons."""
        self._parts = parts
        self._debug = debug
        self._batches = BatchBuilder(parts.device.torch)
        self._masks = MaskMaker(parts.limits.vocab_size)
        self._graphs = DecodeGraphs(parts) if captures and parts.device.kind == "cuda" else None

    @property
    def graph_bytes(self) -> int:
        """What captured steps hold of torch's memory."""
        return self._graphs.nbytes if self._graphs is not None else 0

    @property
    def replays(self) -> int:
        """Steps so far that were captured graphs."""
        return self._graphs.replays.total() if self._graphs is not None else 0

    @torch.inference_mode()
    def logits(self, plan: Plan, requests: Mapping[int, Request]) -> torch.Tensor:
        """Compute a plan as `run` does, and sample nothing: float32 [S, vocab], the logits of the
        pieces that sample in their order, valid until the next step."""
        try:
            return self._forward(plan, requests)[0]
        finally:
            if self._parts.experts is not None:
                self._parts.experts.seed()

    @torch.inference_mode()
    def run(self, plan: Plan, requests: Mapping[int, Request]) -> list[Outcome]:
        """Compute a plan. What this raises concerns the step as a whole; a sampler's error or
        logits that are no numbers concern one member and stand in its outcome."""
        try:
            return self._run(plan, requests)
        finally:
            # After sampling: the first token does not wait for what later ones use.
            if self._parts.experts is not None:
                self._parts.experts.seed()

    def _run(self, plan: Plan, requests: Mapping[int, Request]) -> list[Outcome]:
        outcomes = [Outcome(piece) for piece in plan.pieces]
        sampling = [outcome for outcome in outcomes if outcome.piece.samples]
        making = self._masks.begin([requests[each.request].allowed for each in sampling])
        try:
            logits, drawn = self._forward(plan, requests)
        finally:
            masks = making.result() if making is not None else None
        if not sampling:
            return outcomes
        good = []
        for row, outcome in enumerate(sampling):
            if drawn[row] == NOT_FINITE:
                outcome.error = _not_a_number(outcome.piece)
            elif masks is not None and row in masks.errors:
                outcome.error = masks.errors[row]
            else:
                good.append(row)
        words = masks.words.to(logits.device) if masks is not None else None
        members = [requests[each.request] for each in sampling]
        ready = [row for row in good if drawn[row] != UNSETTLED and members[row].plain]
        self._tell(logits, ready, [drawn[row] for row in ready], sampling, members)
        self._sample(logits, words, [row for row in good if row not in ready], sampling, requests)
        return outcomes

    def close(self) -> None:
        self._masks.close()

    def _forward(
        self, plan: Plan, requests: Mapping[int, Request]
    ) -> tuple[torch.Tensor, list[int]]:
        """Logits of the rows that sample, and for each a token, NOT_FINITE or UNSETTLED."""
        held = self._debug.apply(plan, self._parts.device.torch)
        if self._graphs is not None and self._graphs.hold(plan):
            rows = [requests[piece.sequence.request].sampling for piece in plan.pieces]
            return self._graphs.run(plan, rows)
        logits = self._by_layers(plan)
        if self._parts.device.kind == "cuda":
            # A fault of this step's kernels must surface in this step, and its time be its own.
            torch.cuda.synchronize(self._parts.device.torch)
        del held
        sound = all_finite(logits).tolist()
        return logits, [UNSETTLED if finite else NOT_FINITE for finite in sound]

    def _by_layers(self, plan: Plan) -> torch.Tensor:
        parts = self._parts
        try:
            if parts.experts is not None:
                routes = sum(piece.length for piece in plan.pieces) * parts.top_k
                seeds = any(piece.prefill and piece.samples for piece in plan.pieces)
                parts.experts.begin_step(routes, self._debug.stream, seeds=seeds)
            return parts.model.forward(self._batches.build(plan), parts.kv, parts.states)
        finally:
            if parts.experts is not None:
                parts.experts.end_step()

    def _sample(
        self,
        logits: torch.Tensor,
        masks: torch.Tensor | None,
        rows: list[int],
        outcomes: list[Outcome],
        requests: Mapping[int, Request],
    ) -> None:
        """Fill in tokens and logprobs of `rows`; an error that one of them causes is its own."""
        if not rows:
            return
        members = [requests[outcomes[row].request] for row in rows]
        chosen = logits if len(rows) == logits.shape[0] else logits[rows]
        chosen = chosen.to(torch.float32)
        mask = None
        if masks is not None and any(member.allowed for member in members):
            mask = masks[rows]
        try:
            tokens = sample(chosen, [member.sampling for member in members], mask)
            told = logprobs(chosen, tokens, [member.logprobs for member in members])
        except Exception as error:
            if faults.is_device_fault(error):
                raise
            if len(rows) > 1:
                for row in rows:
                    self._sample(logits, masks, [row], outcomes, requests)
                return
            request = outcomes[rows[0]].request
            logger.exception("sampling for request %d failed", request)
            outcomes[rows[0]].error = faults.request_fault(error, request)
            return
        _fill_in(outcomes, rows, tokens, told)

    def _tell(
        self,
        logits: torch.Tensor,
        rows: list[int],
        tokens: list[int],
        outcomes: list[Outcome],
        members: list[Request],
    ) -> None:
        """Fill in tokens that the device has sampled, and the logprobs asked for."""
        wanted = [members[row].logprobs for row in rows]
        if any(count >= 0 for count in wanted):
            told = logprobs(logits[rows].to(torch.float32), tokens, wanted)
        else:
            told = [(None, [])] * len(rows)
        _fill_in(outcomes, rows, tokens, told)


def _fill_in(
    outcomes: list[Outcome],
    rows: list[int],
    tokens: list[int],
    told: list[tuple[float | None, list[TokenLogprob]]],
) -> None:
    for row, token, (logprob, top) in zip(rows, tokens, told, strict=True):
        outcomes[row].token, outcomes[row].logprob, outcomes[row].top = token, logprob, top


def _not_a_number(piece: Piece) -> StepFailed:
    position = piece.start + piece.length - 1
    return StepFailed(
        f"The model's output at position {position} is not a number (NaN or infinite), "
        "so no token can be chosen.",
        hint="A damaged weight file or a format that overflows causes this; other requests go on.",
    )
