"""What `headrace verify` computes over: a text that is given, held-out text, or random tokens."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from engine.chat.model_files import locate
from engine.chat.text_model import load_text_model
from engine.errors import InvalidRequest
from engine.paths import resources

RANDOM_SEED = 1


@dataclass(frozen=True)
class Text:
    name: str
    tokens: list[int]
    prompt: int
    """So many of them are read as a prompt; each of the others is a decode step."""

    @property
    def decoded(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def targets(self) -> list[int]:
        """What the rows of logits foretell, from the prompt's last one to the last but one."""
        return self.tokens[self.prompt :]


def load_text(model: str, file: Path | None, vocabulary: int, prompt: int, decoded: int) -> Text:
    """`prompt` + `decoded` tokens of the file, by the model's own tokenizer. Without a file: the
    demo model's held-out conversations, where the checkout has them, or random tokens.

    Raises InvalidRequest for a text that cannot be read or is too short, and what load_text_model
    raises.
    """
    count = prompt + decoded
    held_out = resources() / "models" / "training" / "held_out.jsonl"
    if file is None and model == "demo" and held_out.is_file():
        file = held_out
    if file is None:
        draw = random.Random(RANDOM_SEED)
        tokens = [draw.randrange(vocabulary) for _ in range(count)]
        return Text(f"random tokens, seed {RANDOM_SEED}", tokens, prompt)
    tokens = load_text_model(locate(model)).tokenizer.encode(_read(file))
    if len(tokens) < count:
        raise InvalidRequest(
            f"{file} has {len(tokens)} tokens; {count} are asked for.",
            hint="Give a longer text, or lower --tokens or --prompt-tokens.",
            param="text",
        )
    return Text(file.name, tokens[:count], prompt)


def _read(file: Path) -> str:
    """A text, or the JSON strings of a .jsonl file end to end."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".jsonl":
            return text
        parts = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--text {file} cannot be read: {error}", param="text") from error
    if not all(isinstance(part, str) for part in parts):
        raise InvalidRequest(f"--text {file}: not every line is a JSON string.", param="text")
    return "".join(parts)
