"""A runtime that reads its prompt and says what its script has for it: `... FOLDER`.

FOLDER/script.json: `model`, the folder with the tokenizer; `tools`, a text that only prompts with
an agent's tools have: to all others (titles, summaries) the model says `Notes`; `steps`, of which
it says the first whose text `until` is not yet in the prompt. Prompts go to FOLDER/prompts.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from engine.messages import Admitted, Cancel, Ready, Sampled, Submit
from tests.server.scripted_runtime import commands, say
from tests.server.speaking_runtime import CONTEXT, finish


def main(folder: Path) -> None:
    commands()  # Configure
    script = json.loads((folder / "script.json").read_text())
    tokenizer = Tokenizer.from_file(str(Path(script["model"]) / "tokenizer.json"))
    say(
        Ready(
            family="reading",
            device="cpu",
            dtype="float32",
            context_tokens=CONTEXT,
            kv_tokens=CONTEXT,
            vocab_size=tokenizer.get_vocab_size(),
            load_seconds=0.0,
        )
    )
    prompts = itertools.count()
    while True:
        for command in commands():
            if isinstance(command, Submit):
                prompt = tokenizer.decode(command.tokens, skip_special_tokens=False)
                (folder / "prompts" / f"{next(prompts):03}.txt").write_text(prompt)
                answer(command, tokenizer.encode(_answer_to(prompt, script)).ids)
            elif isinstance(command, Cancel):
                finish(command.request, "cancelled", 1, 0)


def _answer_to(prompt: str, script: dict[str, list[dict[str, str]]]) -> str:
    if script["tools"] not in prompt:
        return "Notes"
    steps = (step["says"] for step in script["steps"] if step["until"] not in prompt)
    return next(steps, "Done.")


def answer(submit: Submit, tokens: list[int]) -> None:
    say(Admitted(request=submit.request, prompt_tokens=len(submit.tokens)))
    for token in tokens[: submit.max_tokens]:
        say(Sampled(request=submit.request, token=token))
    reason = "length" if len(tokens) >= submit.max_tokens else "stop"
    finish(submit.request, reason, len(submit.tokens), min(len(tokens), submit.max_tokens))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
