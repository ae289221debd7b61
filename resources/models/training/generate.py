"""The teacher writes the corpus: thousands of conversations at once, each row restarting by itself.

Every step feeds one token to every row. A row either copies forced tokens (a question) or samples;
when it samples `<|im_end|>` it moves on to the answer, to a follow-up or to a new conversation.
All of that state lives in tensors, so that on a GPU one step is one captured graph.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import prompts
import torch
import torch.nn.functional as F
from blocks import by_head, rms_norm, rotary_tables, rotate
from parallel import rank
from ring import fused_ring, plain_ring
from settings import Settings
from teacher import Teacher
from torch import Tensor
from vocabulary import TeacherVocabulary

NEW_FLAG = 1 << 20
"""Added to a recorded token that begins a conversation."""
FREE_SHARE = 0.1
FOLLOW_SHARE = 0.3
LAST_FOLLOW = 0.45
"""No follow-up is asked once a conversation fills this share of the window."""


def before_attention(
    x: Tensor, norm: Tensor, q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value [rows, heads, dim] of one new token per row."""
    h, dim = rms_norm(x, norm, eps), cos.shape[-1]
    query = rotate(by_head(F.linear(h, q), dim), cos, sin)
    key = rotate(by_head(F.linear(h, k), dim), cos, sin)
    return query, key, by_head(F.linear(h, v), dim)


def after_attention(
    x: Tensor, mixed: Tensor, o: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """The stream after a layer, given what its attention mixed."""
    x = x + F.linear(mixed.flatten(1), o)
    h = rms_norm(x, norm, eps)
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def sample(logits: Tensor, temperature: Tensor, least: float, noise: Tensor) -> Tensor:
    """One token a row: softmax sampling (by exponential noise) of all but the unlikely tokens."""
    scaled = logits.float() / temperature[:, None]
    top = scaled.amax(-1, keepdim=True)
    chance = (scaled - top).exp()
    chance = torch.where(chance >= least, chance / noise, torch.zeros_like(chance))
    return chance.argmax(-1)


class Writer:
    """Rows of running conversations over one teacher."""

    def __init__(
        self, teacher: Teacher, vocabulary: TeacherVocabulary, s: Settings, pool: int, fused: bool
    ) -> None:
        self.teacher, self.s, self.im_end = teacher, s, vocabulary.im_end
        self.device = teacher.embedding.device
        self.attend = fused_ring if fused else plain_ring
        self.draw_token: Callable[..., Tensor] = torch.compile(sample) if fused else sample
        self.before: Callable[..., tuple[Tensor, Tensor, Tensor]] = before_attention
        self.after: Callable[..., Tensor] = after_attention
        if fused:
            self.before, self.after = torch.compile(self.before), torch.compile(self.after)
        draw = random.Random(s.seed + rank())
        texts = ["\n" + prompts.ANSWER, *prompts.follow_ups()]
        self.follows = len(texts) - 1
        texts += prompts.free_openings()
        self.first_question = len(texts)
        texts += prompts.questions(draw, pool)
        ids = [e.ids for e in vocabulary.tokenizer.encode_batch(texts)]
        longest = max(len(i) for i in ids)
        table = np.zeros((len(ids), longest), dtype=np.int64)
        for row, line in enumerate(ids):
            table[row, : len(line)] = line
        self.table = torch.from_numpy(table).to(self.device)
        self.lengths = torch.tensor([len(i) for i in ids], device=self.device)
        self._allocate()

    def _allocate(self) -> None:
        t, s = self.teacher, self.s
        rows, device = s.writers, self.device

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=device)

        shape = (rows, t.kv_heads, s.window, t.dim)
        kind = t.embedding.dtype
        self.keys = [torch.zeros(shape, dtype=kind, device=device) for _ in t.layers]
        self.values = [torch.zeros(shape, dtype=kind, device=device) for _ in t.layers]
        self.noise = torch.empty(rows, t.embedding.shape[0], dtype=torch.float32, device=device)
        self.now, self.token = whole(1), whole(rows)
        self.start, self.entry, self.cursor = whole(rows), whole(rows), whole(rows)
        self.asking = torch.zeros(rows, dtype=torch.bool, device=device)
        self.record = torch.zeros((s.chunk_steps, rows), dtype=torch.int32, device=device)

    def _fresh_entries(self) -> tuple[Tensor, Tensor]:
        """For every row a new conversation's entry, and whether its question is made up."""
        rows = self.s.writers
        free = torch.rand(rows, device=self.device) < FREE_SHARE
        opening = torch.randint(self.follows + 1, self.first_question, (rows,), device=self.device)
        question = torch.randint(
            self.first_question, len(self.lengths), (rows,), device=self.device
        )
        return torch.where(free, opening, question), free

    def restart(self) -> None:
        """Begin every row anew at step 0."""
        self.now.zero_()
        self.start.zero_()
        entry, free = self._fresh_entries()
        self.entry.copy_(entry)
        self.asking.copy_(free)
        self.token.copy_(self.table[entry, 0])
        self.cursor.fill_(1)

    def step(self) -> None:
        """Record the current tokens, run the teacher on them and choose the next ones."""
        opened = self.start == self.now
        marked = self.token + opened * NEW_FLAG
        self.record.index_copy_(0, self.now % len(self.record), marked.to(torch.int32)[None])
        logits = self._forward()
        self.noise.exponential_()
        heat = torch.where(self.asking, self.s.user_temperature, self.s.temperature)
        drawn = self.draw_token(logits, heat, self.s.least_probability, self.noise)
        if self.s.end_chance:
            cut = torch.rand_like(heat) < self.s.end_chance
            drawn = torch.where(cut, self.im_end, drawn)
        forced = self.cursor < self.lengths[self.entry]
        spot = self.cursor.clamp(max=self.table.shape[1] - 1)
        following = torch.where(forced, self.table[self.entry, spot], drawn)
        ended = ~forced & (drawn == self.im_end)
        age = self.now + 1 - self.start
        overrun = age >= self.s.window - 2
        # What comes after this turn's end: the answer, a follow-up or a new conversation.
        answer = ended & self.asking
        follow = ended & ~self.asking & (torch.rand_like(heat) < FOLLOW_SHARE)
        follow &= age < self.s.window * LAST_FOLLOW
        fresh = (ended & ~answer & ~follow) | overrun
        entry, free = self._fresh_entries()
        more = torch.randint_like(self.entry, 1, self.follows + 1)
        chosen = torch.where(answer, 0, torch.where(follow, more, entry))
        moved = ended | overrun
        self.entry.copy_(torch.where(moved, chosen, self.entry))
        self.cursor.copy_(torch.where(moved, 0, self.cursor + 1))
        self.asking.copy_(torch.where(moved, fresh & free, self.asking))
        # The end marker is still fed at the next step: a new conversation starts after it.
        self.start.copy_(torch.where(fresh, self.now + 2, self.start))
        self.token.copy_(following)
        self.now.add_(1)

    def _forward(self) -> Tensor:
        t = self.teacher
        x = t.embedding[self.token]
        cos, sin = rotary_tables(self.now, t.dim, t.base)
        slot = self.now % self.s.window
        for i, (norm, q, k, v, o, second, gate, up, down) in enumerate(t.layers):
            query, key, value = self.before(x, norm, q, k, v, cos, sin, t.eps)
            self.keys[i].index_copy_(2, slot, key.unsqueeze(2))
            self.values[i].index_copy_(2, slot, value.unsqueeze(2))
            mixed = self.attend(query, self.keys[i], self.values[i], self.start, self.now)
            x = self.after(x, mixed, o, second, gate, up, down, t.eps)
        return t.logits(rms_norm(x, t.norm, t.eps))

    def capture(self) -> Callable[[], None]:
        """`step`, as a replayable graph on a GPU."""
        if self.device.type != "cuda":
            return self.step
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.restart()
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self.step()
        return graph.replay

    @torch.no_grad()
    def chunks(self, seconds: float) -> Iterator[npt.NDArray[np.int32]]:
        """Recorded steps [steps, rows], one stretch after the other, until the time is up."""
        end = time.monotonic() + seconds
        advance = self.capture()
        self.restart()
        taken, given, size = 0, 0, len(self.record)
        # The first stretch is shorter; the others fill the record.
        upto = self.s.first_steps
        over = False
        while not over:
            for _ in range(min(16, upto - taken)):
                advance()
                taken += 1
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            over = time.monotonic() >= end and taken >= self.s.least_steps
            if taken == upto or over:
                spots = torch.arange(given, taken, device=self.device) % size
                yield self.record[spots].cpu().numpy()
                given, upto = taken, taken + size


def conversations(
    chunk: npt.NDArray[np.int32], carried: list[npt.NDArray[np.int32]]
) -> list[npt.NDArray[np.int32]]:
    """The conversations that end in a chunk, as teacher token ids.

    `carried` holds, row by row, what earlier chunks left unfinished, and is brought up to date. A
    conversation that outgrew the window ends without an end marker.
    """
    out = []
    for row, column in enumerate(np.ascontiguousarray(chunk.T)):
        whole = np.concatenate([carried[row], column])
        starts = np.flatnonzero(whole >= NEW_FLAG).tolist()
        for a, b in itertools.pairwise(starts):
            talk = whole[a:b].copy()
            talk[0] -= NEW_FLAG
            out.append(talk)
        carried[row] = whole[starts[-1] :] if starts else whole
    return out
