"""From logits to tokens. A row's token depends on its own logits, parameters and draw alone.

Order: bias, repetition penalty, frequency and presence penalties, token mask; then temperature,
top_k, top_p, min_p (each over what the one before has left); then inverse sampling with one number
of the request's own generator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.errors import InvalidRequest
from engine.messages import TokenLogprob
from engine.runtime.sampling_row import SamplingRow

# Filters look at so many of the likeliest tokens; a row whose filters keep more takes all of the
# vocabulary. Picking 1,024 of 150,000 costs a tenth of sorting them.
CANDIDATES = 1024


def sample(
    logits: torch.Tensor, rows: Sequence[SamplingRow], mask: torch.Tensor | None = None
) -> list[int]:
    """One token for each row.

    `logits` float32 [R, V], finite, left as they are. `mask` int32 [R, ceil(V / 32)]: bit b of word
    w set means that token 32 w + b is allowed. Raises InvalidRequest if a row has no token left.
    """
    scores = _adjusted(logits, rows, mask)
    tokens = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    greedy = [i for i, row in enumerate(rows) if row.greedy]
    if len(greedy) == len(rows):
        return [int(token) for token in scores.argmax(dim=-1).tolist()]
    if greedy:
        where = torch.tensor(greedy, device=logits.device)
        tokens[where] = scores[where].argmax(dim=-1)
    for indices, draw in (
        ([i for i, row in enumerate(rows) if not row.greedy and not row.filtered], _draw_plain),
        ([i for i, row in enumerate(rows) if not row.greedy and row.filtered], _draw_filtered),
    ):
        if indices:
            where = torch.tensor(indices, device=logits.device)
            tokens[where] = draw(scores[where], [rows[i] for i in indices])
    return [int(token) for token in tokens.tolist()]


def logprobs(
    logits: torch.Tensor, tokens: Sequence[int], wanted: Sequence[int]
) -> list[tuple[float | None, list[TokenLogprob]]]:
    """For each row the chosen token's logprob and the `wanted` likeliest ones (-1: nothing at all).

    Of the model's own distribution: `logits` float32 [R, V] before bias, penalties and temperature.
    """
    results: list[tuple[float | None, list[TokenLogprob]]] = []
    for row, (token, count) in enumerate(zip(tokens, wanted, strict=True)):
        if count < 0:
            results.append((None, []))
            continue
        distribution = torch.log_softmax(logits[row], dim=-1)
        top: list[TokenLogprob] = []
        if count:
            values, ids = torch.topk(distribution, count)
            pairs = zip(ids.tolist(), values.tolist(), strict=True)
            top = [TokenLogprob(token=each, logprob=value) for each, value in pairs]
        results.append((float(distribution[token]), top))
    return results


def unpack_mask(mask: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """int32 [R, ceil(V / 32)] to bool [R, V]."""
    bits = torch.arange(32, dtype=torch.int32, device=mask.device)
    allowed = (mask.unsqueeze(-1) >> bits) & 1
    return allowed.reshape(mask.shape[0], -1)[:, :vocab_size].bool()


def _adjusted(
    logits: torch.Tensor, rows: Sequence[SamplingRow], mask: torch.Tensor | None
) -> torch.Tensor:
    if mask is None and not any(row.adjusts for row in rows):
        return logits
    scores = logits.clone()
    for index, row in enumerate(rows):
        if row.adjusts:
            row.adjust(scores[index])
    if mask is not None:
        scores.masked_fill_(~unpack_mask(mask, logits.shape[1]), -torch.inf)
        if bool(torch.isinf(scores.amax(dim=-1)).any()):
            raise InvalidRequest("The grammar leaves no token that could come next.")
    return scores


def _tempered(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    """Scores over temperature, highest 0. Shifted first, so that no temperature overflows."""
    temperature = [max(row.sampling.temperature, 1e-30) for row in rows]
    shifted = scores - scores.amax(dim=-1, keepdim=True)
    return shifted / torch.tensor(temperature, device=scores.device).unsqueeze(-1)


def _draw_plain(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    weights = _tempered(scores, rows).exp()
    return _inverse(weights, [row.draw() for row in rows])


def _draw_filtered(scores: torch.Tensor, rows: Sequence[SamplingRow]) -> torch.Tensor:
    tempered = _tempered(scores, rows)
    tokens, covered = _draw_among(tempered, rows, min(CANDIDATES, tempered.shape[1]))
    for index in (~covered).nonzero().flatten().tolist():
        row = slice(index, index + 1)
        tokens[row], _ = _draw_among(tempered[row], rows[row], tempered.shape[1])
    return tokens


def _draw_among(
    scores: torch.Tensor, rows: Sequence[SamplingRow], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw within the `width` likeliest tokens; also whether a row's filters kept no more."""
    values, ids = _likeliest(scores, width)
    keep, weights = _kept(values, torch.logsumexp(scores, dim=-1).double(), rows)
    # Sorted: no filter keeps what is beyond the candidates if it cuts the last of them. But with a
    # top_k beyond them, the mass that top_p refers to is not known here.
    top_k = torch.tensor([row.sampling.top_k for row in rows], device=scores.device)
    covered = torch.where(top_k > 0, top_k <= width, ~keep[:, -1])
    if width == scores.shape[1]:
        covered = torch.ones_like(covered)
    rank = _inverse(weights * keep, [row.draw() for row in rows])
    return ids.gather(1, rank.unsqueeze(1)).squeeze(1), covered


def _likeliest(scores: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids [R, width], highest first, ties by ascending id on every device."""
    values, ids = torch.topk(scores, width, dim=-1, sorted=False)
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _kept(
    values: torch.Tensor, log_total: torch.Tensor, rows: Sequence[SamplingRow]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of the sorted candidates [R, W] pass top_k, top_p and min_p, and their weights float64.

    `log_total` float64 [R] is the logsumexp of the whole row: the mass that top_p refers to where
    top_k does not cut it down to the candidates.
    """
    device, width = values.device, values.shape[1]
    top_k = torch.tensor([row.sampling.top_k or 1 << 40 for row in rows], device=device)
    top_p = torch.tensor([row.sampling.top_p for row in rows], dtype=torch.float64, device=device)
    min_p = torch.tensor([row.sampling.min_p for row in rows], dtype=torch.float64, device=device)
    weights = values.double().exp()
    keep = torch.arange(width, device=device) < top_k.unsqueeze(1)
    mass = torch.where(top_k <= width, (weights * keep).sum(dim=-1), log_total.exp())
    before = weights.cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0
    # A top_p of 1 keeps all: rounding of the running sum must not cut the tail off.
    keep &= (before < (top_p * mass).unsqueeze(1)) | (top_p >= 1).unsqueeze(1)
    keep &= weights >= min_p.unsqueeze(1) * weights[:, :1]
    keep[:, 0] = True
    return keep, weights


def _inverse(weights: torch.Tensor, draws: list[float]) -> torch.Tensor:
    """Index [R] at which the running sum of `weights` [R, N] passes the draw's share of the total.

    An index of weight 0 is never taken: the sum passes at the first index that adds to it.
    """
    running = weights.cumsum(dim=-1, dtype=torch.float64)
    total = running[:, -1]
    target = torch.tensor(draws, dtype=torch.float64, device=weights.device) * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, target.unsqueeze(1), right=True).squeeze(1)
