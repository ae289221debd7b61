"""Make the demo model: the teacher writes a corpus, the student learns from it, and is exported.

    python resources/models/training/make_demo.py --out resources/models/demo

wants a GPU and about half an hour; `--toy` runs the same chain on a processor in a minute or two
(its result is no use). A run that was interrupted goes on from what it left in `--work`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]

import quantise  # noqa: E402
from corpus import Collector, Corpus  # noqa: E402
from distill import Trainer  # noqa: E402
from evaluate import (  # noqa: E402
    Loads,
    answer_loss,
    answers,
    characters,
    student_logits,
    teacher_logits,
)
from generate import Writer  # noqa: E402
from parallel import begin, copy_weights, end, rank, shared, shared_number  # noqa: E402
from prompts import EVALUATION  # noqa: E402
from settings import Settings, polish, toy  # noqa: E402
from student import Shape, Student, student_layer  # noqa: E402
from teacher import Teacher, fetch, teacher_layer  # noqa: E402
from upcycle import upcycle  # noqa: E402
from vocabulary import StudentVocabulary, TeacherVocabulary  # noqa: E402


def say(text: str) -> None:
    """Print with the time, and the process where there are several."""
    who = f" {rank()}" if rank() else ""
    print(f"[{time.strftime('%H:%M:%S')}{who}] {text}", flush=True)


def write_corpus(
    teacher: Teacher,
    vocabulary: TeacherVocabulary,
    s: Settings,
    work: Path,
    fused: bool,
    kept: list[int] | None,
) -> None:
    """Let the teacher write until its time is up; leaves the corpus and the kept tokens.

    Which tokens are kept is decided by the first of what it writes, unless `kept` says.
    """
    pool = 150_000 if fused else 500
    writer = Writer(teacher, vocabulary, s, pool, fused)
    collector = Collector(vocabulary, s)
    if kept is not None:
        collector.student = StudentVocabulary(vocabulary, kept)
    say("writing")
    for chunk in writer.chunks(s.generate_seconds):
        collector.add(chunk)
        say(f"{chunk.size} tokens; {len(collector.documents)} documents so far")
    corpus = collector.finish()
    assert collector.student is not None
    say(
        f"{len(collector.documents)} documents in {len(corpus.ids)} rows,"
        f" {(corpus.documents > 0).sum() / 1e6:.2f} M tokens,"
        f" {(corpus.documents > 0).mean():.3f} full, {len(corpus.held_out)} held out,"
        f" {collector.dropped} dropped"
    )
    if rank() == 0:
        (work / "kept.json").write_text(json.dumps(collector.student.kept))
    corpus.save(work / f"corpus-{rank()}.npz")


def shape_of(s: Settings, teacher: Teacher) -> Shape:
    return Shape(
        vocabulary=s.vocabulary,
        layers=s.layers,
        experts=s.experts,
        active=s.active,
        expert_width=s.expert_width,
        shared_width=s.shared_width,
        hidden=teacher.embedding.shape[1],
        heads=teacher.heads,
        kv_heads=teacher.kv_heads,
        dim=teacher.dim,
        eps=teacher.eps,
        base=teacher.base,
    )


class Reporter:
    """Measures the student as it would ship, prints the figures and exports it."""

    def __init__(
        self, vocabulary: StudentVocabulary, corpus: Corpus, work: Path, samples: int
    ) -> None:
        self.vocabulary, self.work, self.samples = vocabulary, work, samples
        self.texts = corpus.held_out[:600]
        self.reference = float("nan")

    def measure_teacher(self, teacher: Teacher, batch: int) -> None:
        tokenizer = self.vocabulary.teacher.tokenizer
        run, device = teacher_logits(teacher), teacher.embedding.device
        loss = answer_loss(self.texts, tokenizer, run, device, batch)
        self.reference = loss / max(1, characters(self.texts))
        say(f"teacher: {self.reference:.4f} nats a character")

    def __call__(self, trainer: Trainer) -> None:
        student, tokenizer = trainer.student, self.vocabulary.tokenizer
        trainer.save(self.work / "checkpoint.pt")
        quantise.export(student, self.vocabulary, self.work / "export")
        compiled, student.layer_function = student.layer_function, student_layer
        loads = Loads()
        with torch.no_grad():
            w = student.prepared(True, trainer.kind)
            run = student_logits(student, w, loads)
            loss = answer_loss(self.texts, tokenizer, run, w.embedding.device, 16)
            loss /= max(1, characters(self.texts))
            prompts = EVALUATION[: self.samples]
            for prompt, reply in zip(
                prompts, answers(student, w, tokenizer, prompts, 60), strict=True
            ):
                print(f"  > {prompt} => {reply!r}")
        student.layer_function = compiled
        entropies = " ".join(f"{x:.3f}" for x in loads.entropies())
        say(
            f"in four bits: {loss:.4f} nats a character, ratio {loss / self.reference:.3f},"
            f" routing {entropies}"
        )


def main() -> None:
    began = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, help="the GGUF file; fetched when not given")
    parser.add_argument("--work", type=Path, default=Path("demo-work"))
    parser.add_argument("--out", type=Path, help="where the finished model is written")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--polish", type=Path, help="an exported model to train further")
    parser.add_argument("--generate-seconds", type=float)
    parser.add_argument("--total-seconds", type=float, help="for everything, exports included")
    options = parser.parse_args()
    s = toy(Settings()) if options.toy else Settings()
    if options.polish:
        s = polish(s)
    if options.generate_seconds:
        s = replace(s, generate_seconds=options.generate_seconds)
    options.work.mkdir(parents=True, exist_ok=True)
    begin()
    torch.manual_seed(s.seed + rank())
    fused = torch.cuda.is_available()
    device = torch.device("cuda" if fused else "cpu")
    kind = torch.bfloat16 if fused else torch.float32
    if fused:
        torch.set_float32_matmul_precision("high")
    path = options.teacher or shared(fetch(options.work) if rank() == 0 else None)
    assert path is not None
    teacher = Teacher(path, device, kind, s.teacher_layers)
    words = TeacherVocabulary(teacher.metadata)
    own_corpus = options.work / f"corpus-{rank()}.npz"
    if not own_corpus.exists():
        given = quantise.kept_tokens(options.polish, words) if options.polish else None
        write_corpus(teacher, words, s, options.work, fused, given)
        torch.cuda.empty_cache()
    corpus = Corpus.load(own_corpus)
    # Reading the kept tokens waits until the first process has written them.
    kept = shared(json.loads((options.work / "kept.json").read_text()) if rank() == 0 else [])
    vocabulary = StudentVocabulary(words, kept)
    reporter = Reporter(vocabulary, corpus, options.work, 6 if fused else 2)
    if rank() == 0 and not options.polish:
        reporter.measure_teacher(teacher, 16 if fused else 1)
    if fused:
        teacher.layer_function = torch.compile(teacher_layer)
    if options.polish:
        student = quantise.load(options.polish).to(device)
    else:
        student = Student(shape_of(s, teacher)).to(device)
        upcycle(student, teacher, torch.from_numpy(vocabulary.to_teacher).to(device))
    copy_weights(student)
    if fused:
        student.layer_function = torch.compile(student_layer)
        student.prepare_function = torch.compile(student.prepare_function)
    trainer = Trainer(student, teacher, vocabulary, corpus, s, fused)
    checkpoint = options.work / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
    if options.total_seconds:
        left = options.total_seconds - (time.monotonic() - began) - s.reserve_seconds
        left = shared_number(left, device)
        trainer.s = replace(s, train_seconds=trainer.spent + left)
    say(f"training from {trainer.spent:.0f} s to {trainer.s.train_seconds:.0f} s")
    trainer.run(reporter)
    if rank() == 0:
        if options.out:
            quantise.export(student, vocabulary, options.out)
            lines = [json.dumps(text) for text in corpus.held_out[:150]]
            (options.work / "held_out.jsonl").write_text("\n".join(lines) + "\n")
            say(f"exported to {options.out}")
        reporter.samples = len(EVALUATION) if fused else 2
        reporter(trainer)
    say("done")
    end()


if __name__ == "__main__":
    main()
