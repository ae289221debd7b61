"""Measure a student: its answers, its loss per character beside the teacher's, its routing.

    python resources/models/training/evaluate.py resources/models/demo [--teacher FILE.gguf]

prints the numbers of the model card from the shipped files, in float32 on the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import quantise  # noqa: E402
from blocks import document_mask, role_weights  # noqa: E402
from prompts import ANSWER, DEFAULT_SYSTEM, EVALUATION, turn  # noqa: E402
from settings import IM_END, IM_START  # noqa: E402
from student import Prepared, Student  # noqa: E402
from teacher import Teacher, fetch  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from vocabulary import TeacherVocabulary  # noqa: E402

HELD_OUT = Path(__file__).parent / "held_out.jsonl"


def characters(texts: list[str]) -> int:
    """The characters of all assistant answers."""
    return sum(len(part.partition(IM_END)[0]) for text in texts for part in text.split(ANSWER)[1:])


def token(tokenizer: Tokenizer, text: str) -> int:
    number = tokenizer.token_to_id(text)
    if number is None:
        raise ValueError(f"the tokenizer has no {text}")
    return int(number)


@torch.no_grad()
def answer_loss(
    texts: list[str],
    tokenizer: Tokenizer,
    logits: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
    batch: int,
    heat: float = 1.0,
) -> float:
    """Total negative log-likelihood (nats) of the answers and their end markers.

    `logits(tokens, documents)` gives [rows, length, vocabulary] for [rows, length].
    """
    im_start, im_end = token(tokenizer, IM_START), token(tokenizer, IM_END)
    roles = [(tokenizer.encode("assistant").ids, 1.0)]
    encoded = sorted((e.ids for e in tokenizer.encode_batch(texts)), key=len)
    total = 0.0
    for at in range(0, len(encoded), batch):
        group = encoded[at : at + batch]
        width = max(len(ids) for ids in group)
        tokens = torch.zeros((len(group), width), dtype=torch.int64)
        documents = torch.zeros((len(group), width), dtype=torch.int32)
        weights = torch.zeros((len(group), width))
        for row, ids in enumerate(group):
            line = torch.tensor(ids)
            tokens[row, : len(ids)] = line
            documents[row, : len(ids)] = 1
            weights[row, : len(ids)] = role_weights(line, im_start, im_end, roles)
        tokens = tokens.to(device)
        out = logits(tokens, documents.to(device))[:, :-1].float() / heat
        losses = F.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        total += float((losses * weights[:, 1:].flatten().to(device)).sum())
    return total


class Loads:
    """Counts which experts the answers' tokens went to."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add(self, loads: Tensor, tokens: int) -> None:
        part = loads.double().cpu() * tokens
        self.sums = part if self.sums is None else self.sums + part

    def entropies(self) -> list[float]:
        """Per layer, the entropy of the experts' shares over that of even shares."""
        assert self.sums is not None
        share = self.sums / self.sums.sum(-1, keepdim=True)
        entropy = -(share * share.clamp(min=1e-12).log()).sum(-1) / math.log(share.shape[-1])
        return [float(x) for x in entropy]


def student_logits(
    student: Student, w: Prepared, loads: Loads
) -> Callable[[Tensor, Tensor], Tensor]:
    def run(tokens: Tensor, documents: Tensor) -> Tensor:
        outcome = student(w, tokens, document_mask(documents, False))
        loads.add(outcome.loads, tokens.numel())
        return F.linear(outcome.hidden, w.embedding)

    return run


def teacher_logits(teacher: Teacher) -> Callable[[Tensor, Tensor], Tensor]:
    def run(tokens: Tensor, documents: Tensor) -> Tensor:
        return teacher.logits(teacher.hidden(tokens, document_mask(documents, False))[-1])

    return run


def answers(
    student: Student,
    w: Prepared,
    tokenizer: Tokenizer,
    prompts: list[str],
    limit: int,
    penalty: float = 1.0,
) -> Iterator[str]:
    """Greedy answers of the student to single questions."""
    end = token(tokenizer, IM_END)
    for prompt in prompts:
        text = turn("system", DEFAULT_SYSTEM) + turn("user", prompt) + ANSWER
        ids = student.answer(w, tokenizer.encode(text).ids, end, limit, penalty)
        yield tokenizer.decode(ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--teacher", type=Path, help="the GGUF file; fetched when not given")
    parser.add_argument("--held-out", type=Path, default=HELD_OUT)
    parser.add_argument("--limit", type=int, default=160, help="tokens of each answer")
    parser.add_argument("--penalty", type=float, help="repetition penalty (else the model's own)")
    parser.add_argument("--heat", type=float, default=1.0, help="temperature of the teacher's loss")
    parser.add_argument("--texts", type=int, default=0, help="held-out texts to use (0: all)")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    cpu = torch.device("cpu")
    student = quantise.load(options.model)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    w = student.prepared(False, torch.float32)
    if options.penalty is None:
        own = json.loads((options.model / "generation_config.json").read_text(encoding="utf-8"))
        options.penalty = own.get("repetition_penalty", 1.0)
    for prompt, reply in zip(
        EVALUATION,
        answers(student, w, tokenizer, EVALUATION, options.limit, options.penalty),
        strict=True,
    ):
        print(f"> {prompt}\n{reply}\n", flush=True)
    lines = options.held_out.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines][: options.texts or None]
    count = characters(texts)
    loads = Loads()
    mine = answer_loss(texts, tokenizer, student_logits(student, w, loads), cpu, 4) / count
    print(f"held-out texts {len(texts)}, answer characters {count}")
    print(f"student: {mine:.4f} nats a character", flush=True)
    print("routing entropy by layer:", " ".join(f"{x:.3f}" for x in loads.entropies()), flush=True)
    path = options.teacher or fetch(Path.home() / ".cache" / "smollm2-teacher")
    teacher = Teacher(path, cpu, torch.float32)
    theirs = TeacherVocabulary(teacher.metadata).tokenizer
    reference = answer_loss(texts, theirs, teacher_logits(teacher), cpu, 1, options.heat) / count
    print(f"teacher: {reference:.4f} nats a character; ratio {mine / reference:.3f}")


if __name__ == "__main__":
    main()
