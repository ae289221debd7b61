"""Training: the student learns the teacher's distribution over each next token.

The first pass over a row also runs the teacher on it, keeps the teacher's likeliest tokens for
later passes, and pulls the student's stream at each layer toward the teacher's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from blocks import Mask, document_mask, role_weights
from corpus import Corpus
from optimiser import Optimiser
from parallel import average_gradients, copy_weights, rank, shared_number
from settings import Settings
from student import Student
from teacher import Teacher
from torch import Tensor
from upcycle import tap_layers
from vocabulary import StudentVocabulary


def soft_loss(
    hidden: Tensor, embedding: Tensor, ids: Tensor, share: Tensor, actual: Tensor, weight: Tensor
) -> Tensor:
    """Cross-entropy against the teacher's kept tokens (`share` of each) and the actual one.

    What `share` leaves up to one belongs to the actual token. hidden [n, h], ids and share [n, k].
    """
    logits = F.linear(hidden, embedding)
    wide = logits.float()
    total = wide.logsumexp(-1)
    wanted = (wide.gather(-1, ids) * share).sum(-1)
    rest = 1.0 - share.sum(-1)
    loss = total - wanted - rest * wide.gather(-1, actual[:, None]).squeeze(-1)
    return (loss * weight).sum() / weight.sum().clamp(min=1.0)


def align_loss(streams: list[Tensor], taps: list[Tensor]) -> Tensor:
    """How far each stream is from the teacher's, in units of each channel's spread."""
    losses = []
    for mine, theirs in zip(streams, taps, strict=True):
        wide = theirs.float()
        spread = wide.flatten(0, 1).std(0).clamp(min=1e-3)
        losses.append(F.smooth_l1_loss(mine / spread, wide / spread))
    return torch.stack(losses).mean()


@dataclass
class Labels:
    """The teacher's targets for every row, filled as rows are first seen."""

    ids: Tensor
    share: Tensor
    known: Tensor


class Trainer:
    """One student in training; `run` goes on until its time is spent."""

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        vocabulary: StudentVocabulary,
        corpus: Corpus,
        s: Settings,
        fused: bool,
    ) -> None:
        self.student, self.teacher, self.s, self.fused = student, teacher, s, fused
        device = teacher.embedding.device
        self.kind = teacher.embedding.dtype
        self.ids = torch.from_numpy(corpus.ids.astype("int32")).to(device)
        self.documents = torch.from_numpy(corpus.documents).to(device)
        self.to_teacher = torch.from_numpy(vocabulary.to_teacher).to(device)
        self.first_piece = torch.from_numpy(vocabulary.first_piece).to(device)
        roles = [(vocabulary.roles["assistant"], 1.0), (vocabulary.roles["user"], s.user_weight)]
        flat = role_weights(
            self.ids.flatten().long(), vocabulary.im_start, vocabulary.im_end, roles
        )
        # Position j predicts token j + 1.
        self.weights = F.pad(flat.view(self.ids.shape)[:, 1:], (0, 1))
        shape = (*self.ids.shape, s.targets)
        self.labels = Labels(
            torch.zeros(shape, dtype=torch.int16, device=device),
            torch.zeros(shape, dtype=torch.float16, device=device),
            torch.zeros(len(self.ids), dtype=torch.bool),
        )
        self.taps = tap_layers(s.layers, len(teacher.layers)) if s.align else []
        parameters = dict(student.p.items())
        self.optimiser = Optimiser(parameters, s.matrix_rate, s.vector_rate, s.decay)
        self.loss: Callable[..., Tensor] = torch.compile(soft_loss) if fused else soft_loss
        self.spent = 0.0
        self.steps = 0
        self.draw = torch.Generator().manual_seed(s.seed + rank())
        self.order: list[int] = []

    def _label(self, rows: Tensor, tokens: Tensor, actual: Tensor, mask: Mask) -> list[Tensor]:
        """Fill the labels of `rows`; returns the teacher's streams to align with."""
        s, labels = self.s, self.labels
        with torch.no_grad():
            *taps, hidden = self.teacher.hidden(self.to_teacher[tokens], mask, set(self.taps))
            flat, nexts = hidden.flatten(0, 1), actual.flatten()
            ids, shares = [], []
            for part, following in zip(
                torch.split(flat, 16384), torch.split(nexts, 16384), strict=True
            ):
                logits = self.teacher.logits(part)
                top = logits.topk(s.targets, -1)
                total = (logits.float() / s.temperature).logsumexp(-1, keepdim=True)
                chance = (top.values.float() / s.temperature - total).exp()
                # A token the student lacks counts as the first of the pieces it is spelt with.
                pieces = self.first_piece[top.indices]
                agreed = (chance * (pieces == following[:, None])).sum(-1, keepdim=True)
                kept = torch.where(
                    agreed < s.confused_below, torch.zeros_like(agreed), 1.0 - s.sampled_share
                )
                ids.append(pieces.to(torch.int16))
                shares.append((chance / chance.sum(-1, keepdim=True) * kept).half())
            labels.ids[rows] = torch.cat(ids).view(*tokens.shape, -1)
            labels.share[rows] = torch.cat(shares).view(*tokens.shape, -1)
            labels.known[rows.cpu()] = True
        return taps

    def _next_rows(self) -> list[int]:
        if len(self.order) < self.s.batch_rows:
            self.order = torch.randperm(len(self.ids), generator=self.draw).tolist()
        rows = self.order[: self.s.batch_rows]
        self.order = self.order[self.s.batch_rows :]
        return rows

    def rate(self) -> float:
        """The share of the full learning rate at this point of the time."""
        done = self.spent / self.s.train_seconds
        warm = min(1.0, (self.steps + 1) / 50)
        return warm * max(0.0, min(1.0, (1 - done) / (1 - self.s.cool_from)))

    @property
    def rounding(self) -> bool:
        return self.spent >= self.s.train_seconds * self.s.quantise_from

    def step(self) -> tuple[Tensor, Tensor, Tensor]:
        """One update; returns the loss, the balance term and the alignment term."""
        s = self.s
        numbers = self._next_rows()
        new = not bool(self.labels.known[numbers].all())
        rows = torch.tensor(numbers, device=self.ids.device)
        tokens = self.ids[rows].long()
        actual = F.pad(tokens[:, 1:], (0, 1))
        mask = document_mask(self.documents[rows].int(), self.fused)
        taps = self._label(rows, tokens, actual, mask) if new else []
        w = self.student.prepared(self.rounding, self.kind)
        outcome = self.student(w, tokens, mask)
        loss = self.loss(
            outcome.hidden.flatten(0, 1),
            w.embedding,
            self.labels.ids[rows].flatten(0, 1).long(),
            self.labels.share[rows].flatten(0, 1).float(),
            actual.flatten(),
            self.weights[rows].flatten(),
        )
        aligned = align_loss(outcome.streams, taps) if taps else torch.zeros_like(loss)
        total = loss + s.balance * outcome.balance + s.align * aligned
        total.backward()
        average_gradients(list(self.student.p.values()))
        self.optimiser.step(self.rate())
        self.steps += 1
        return loss.detach(), outcome.balance.detach(), aligned.detach()

    def run(self, report: Callable[[Trainer], None]) -> None:
        """Train until the time is spent, reporting now and then (outside the counted time)."""
        last = time.monotonic()
        next_report = self.spent + self.s.report_seconds
        next_line = self.spent
        while self.spent < self.s.train_seconds:
            loss, balance, aligned = self.step()
            line = self.spent >= next_line
            if line or self.steps % 8 == 0:
                value = float(loss)  # Waits for the device, so the clock is honest.
                now = time.monotonic()
                self.spent = shared_number(self.spent + now - last, loss.device)
                last = now
                if line and rank() == 0:
                    seen = int(self.labels.known.sum()) / len(self.ids)
                    print(
                        f"{self.spent:6.0f} s step {self.steps} loss {value:.4f}"
                        f" balance {float(balance):.3f} align {float(aligned):.4f}"
                        f" rate {self.rate():.3f} labelled {seen:.2f} rounding {self.rounding}",
                        flush=True,
                    )
            if line:
                next_line += self.s.report_seconds / 6
                # The processes' weights stay alike; this makes sure of it.
                copy_weights(self.student)
            if self.spent >= next_report:
                next_report += self.s.report_seconds
                if rank() == 0:
                    report(self)
                last = time.monotonic()

    def save(self, path: Path) -> None:
        state = {
            "student": self.student.state_dict(),
            "optimiser": self.optimiser.state(),
            "spent": self.spent,
            "steps": self.steps,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.ids.device, weights_only=True)
        self.student.load_state_dict(state["student"])
        self.optimiser.load(state["optimiser"])
        self.spent, self.steps = state["spent"], state["steps"]
