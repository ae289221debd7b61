"""A runtime that says what a test gives it: `python speaking_runtime.py FOLDER`.

FOLDER/answers.json holds answers, of which every request takes the next in turn, from the first
again in every new round; the requests are noted in FOLDER/heard.jsonl.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine.messages import (
    Admitted,
    Cancel,
    Configure,
    Finished,
    LayerResidency,
    Ready,
    ReportResidency,
    Residency,
    Sampled,
    StopAt,
    Submit,
    TokenLogprob,
)
from tests.server.scripted_runtime import commands, say

CONTEXT = 1 << 18


def main(folder: Path) -> None:
    configure = commands()[0]
    assert isinstance(configure, Configure)
    vocabulary = json.loads((Path(configure.options.model) / "tokenizer.json").read_bytes())
    words = len(vocabulary["model"]["vocab"])
    ids = [token["id"] for token in vocabulary["added_tokens"]]
    say(
        Ready(
            family="speaking",
            device="cpu",
            dtype="float32",
            context_tokens=CONTEXT,
            kv_tokens=CONTEXT,
            vocab_size=max([words - 1, *ids]) + 1,
            load_seconds=0.0,
        )
    )
    answers = _Answers(folder)
    with (folder / "heard.jsonl").open("a", encoding="utf-8") as heard:
        while True:
            for command in commands():
                if isinstance(command, Submit):
                    note = {
                        "tokens": command.tokens,
                        "grammar": command.grammar,
                        "seed": command.sampling.seed,
                        "max_tokens": command.max_tokens,
                        "thinking": msgspec.to_builtins(command.thinking),
                    }
                    print(json.dumps(note), file=heard, flush=True)
                    answer(command, answers.next())
                elif isinstance(command, Cancel):
                    print(json.dumps({"cancelled": command.request}), file=heard, flush=True)
                    finish(command.request, "cancelled", 1, 0)
                elif isinstance(command, ReportResidency):
                    say(Residency(experts=2, layers=[LayerResidency(layer=0, resident=[1])]))
                elif isinstance(command, StopAt):
                    pass  # what a stop string ends is over already


class _Answers:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "answers.json"
        self._round = ""
        self._turn = itertools.count()

    def next(self) -> Any:
        given = json.loads(self._path.read_text())
        if given["round"] != self._round:
            self._round, self._turn = given["round"], itertools.count()
        return given["answers"][next(self._turn) % len(given["answers"])]


def answer(submit: Submit, given: dict[str, Any]) -> None:
    number = submit.request
    tokens = given["tokens"][: submit.max_tokens]
    say(Admitted(request=number, prompt_tokens=len(submit.tokens), cached_tokens=2))
    for token in tokens:
        top = [TokenLogprob(token, -0.5), TokenLogprob(1, -2.0)][: max(0, submit.logprobs)]
        logprob = -0.5 if submit.logprobs >= 0 else None
        say(Sampled(request=number, token=token, logprob=logprob, top=top))
    if given["ends"]:
        cut = len(given["tokens"]) >= submit.max_tokens
        finish(number, "length" if cut else "stop", len(submit.tokens), len(tokens))


def finish(number: int, reason: Any, prompt: int, made: int) -> None:
    say(Finished(request=number, reason=reason, prompt_tokens=prompt, completion_tokens=made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
