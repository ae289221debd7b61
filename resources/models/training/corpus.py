"""From recorded conversations to packed training rows and a held-out set."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from generate import NEW_FLAG, conversations
from parallel import shared
from prompts import EVALUATION
from settings import IM_END, IM_START, Settings
from vocabulary import StudentVocabulary, TeacherVocabulary, choose

Ids = npt.NDArray[np.uint16]
USER = f"{IM_START}user\n"
ANSWER = f"{IM_START}assistant\n"
UNFINISHED = 0.86
"""The share of the window kept of a conversation that outgrew it."""
MOST_REPETITION = 3.2
"""An answer whose text shrinks more than this under zlib goes round in circles."""


def first_question(text: str) -> str:
    return text.partition(USER)[2].partition(IM_END)[0].strip()


def acceptable(text: str) -> bool:
    """Whether a conversation is worth learning from: whole, and not going round in circles."""
    answers = [part.partition(IM_END)[0] for part in text.split(ANSWER)[1:]]
    if not answers or not first_question(text) or not all(a.strip() for a in answers):
        return False
    for answer in answers:
        raw = answer.encode()
        if len(raw) > 200 and len(raw) / len(zlib.compress(raw, 6)) > MOST_REPETITION:
            return False
    return first_question(text).lower() not in {q.lower() for q in EVALUATION}


def is_held_out(text: str, share: int) -> bool:
    """Chosen by the first question, so that no held-out question is ever trained on."""
    digest = hashlib.sha256(first_question(text).lower().encode()).digest()
    return int.from_bytes(digest[:4], "big") % share == 0


@dataclass
class Corpus:
    """Packed rows: token ids, the number of each token's document in its row (0: padding)."""

    ids: Ids
    documents: npt.NDArray[np.uint8]
    held_out: list[str]

    def save(self, path: Path) -> None:
        np.savez(path, ids=self.ids, documents=self.documents)
        lines = [json.dumps(text) for text in self.held_out]
        path.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")

    @staticmethod
    def load(path: Path) -> Corpus:
        arrays = np.load(path)
        lines = path.with_suffix(".jsonl").read_text().splitlines()
        return Corpus(arrays["ids"], arrays["documents"], [json.loads(x) for x in lines])


class Collector:
    """Takes chunks as they are written and turns them into documents in the background."""

    def __init__(self, teacher: TeacherVocabulary, settings: Settings) -> None:
        self.teacher, self.s = teacher, settings
        self.student: StudentVocabulary | None = None
        self.carried = [np.zeros(0, dtype=np.int32)] * settings.writers
        self.documents: list[Ids] = []
        self.held_out: list[str] = []
        self.asked: Counter[str] = Counter()
        self.dropped = 0
        self.pool = ThreadPoolExecutor(1)
        self.pending: list[Future[None]] = []

    def add(self, chunk: npt.NDArray[np.int32]) -> None:
        if self.student is None:
            # The first chunk decides which tokens the student keeps.
            plain = chunk.astype(np.int64) % NEW_FLAG
            counts = np.bincount(plain.reshape(-1), minlength=len(self.teacher.tokens))
            kept = shared(choose(self.teacher, counts, self.s.vocabulary))
            self.student = StudentVocabulary(self.teacher, kept)
        self.pending.append(self.pool.submit(self._process, chunk))

    def _process(self, chunk: npt.NDArray[np.int32]) -> None:
        assert self.student is not None
        texts = []
        for talk in conversations(chunk, self.carried):
            ended = talk[-1] == self.teacher.im_end
            if not ended and len(talk) < self.s.window - 16:
                continue
            if not ended:
                # Too long for the window: its beginning is good text all the same.
                talk = talk[: int(self.s.window * UNFINISHED)]
            try:
                text = self.teacher.text(talk.tolist())
            except UnicodeDecodeError:
                self.dropped += 1
                continue
            if not acceptable(text):
                self.dropped += 1
            elif is_held_out(text, self.s.held_out_share):
                # At most two answers to each held-out question, and only whole ones.
                question = first_question(text).lower()
                self.asked[question] += 1
                if ended and self.asked[question] <= 2:
                    self.held_out.append(text)
            else:
                texts.append(text)
        for encoded in self.student.tokenizer.encode_batch_fast(texts):
            if len(encoded.ids) <= self.s.sequence:
                self.documents.append(np.array(encoded.ids, dtype=np.uint16))

    def finish(self) -> Corpus:
        for future in self.pending:
            future.result()
        ids, documents = pack(self.documents, self.s.sequence, self.s.seed)
        return Corpus(ids, documents, self.held_out)


def pack(
    documents: list[Ids], length: int, seed: int, open_rows: int = 24
) -> tuple[Ids, npt.NDArray[np.uint8]]:
    """Put whole documents into rows of `length`, each into the first open row with room."""
    order = np.random.default_rng(seed).permutation(len(documents))
    rows: list[list[int]] = []
    current: list[tuple[int, list[int]]] = []
    for index in order:
        size = len(documents[index])
        for at, (left, members) in enumerate(current):
            if size <= left and len(members) < 255:
                members.append(int(index))
                current[at] = (left - size, members)
                break
        else:
            if len(current) == open_rows:
                current.sort(key=lambda row: row[0], reverse=True)
                rows.append(current.pop()[1])
            current.append((length - size, [int(index)]))
    rows += [members for _, members in current]
    ids = np.zeros((len(rows), length), dtype=np.uint16)
    numbers = np.zeros((len(rows), length), dtype=np.uint8)
    for row, members in enumerate(rows):
        at = 0
        for number, index in enumerate(members, 1):
            document = documents[index]
            ids[row, at : at + len(document)] = document
            numbers[row, at : at + len(document)] = number
            at += len(document)
    return ids, numbers
