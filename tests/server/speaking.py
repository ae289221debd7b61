"""A server whose model says what a test wants, in a family's own way of writing."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2 as httpx
import openai
from tokenizers import Tokenizer

from tests.server.running import Server, running

HERMES = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call: <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>
{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
HARMONY = """\
{% for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{% for message in messages %}<|start|>{{ message.role }}<|message|>{{ message.content }}
<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}
{#- An answer has a <|channel|>. #}"""
HARMONY_MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")


class Speaker:
    """The server, what its model says next, and what it heard."""

    def __init__(
        self, server: Server, folder: Path, tokenizer: Tokenizer, http: httpx.Client
    ) -> None:
        shared: Any = {"api_key": "any", "max_retries": 0, "http_client": http}
        self.openai = openai.OpenAI(base_url=f"{server.url}/v1", **shared)
        self.anthropic = anthropic.Anthropic(base_url=server.url, **shared)
        self.server = server
        self.model = server.model
        self._folder = folder
        self.tokenizer = tokenizer

    def says(self, *texts: str, ends: bool = True) -> None:
        """To the next requests in turn. `ends`: False leaves the last token waited for."""
        answers = [{"tokens": self.tokenizer.encode(text).ids, "ends": ends} for text in texts]
        given = {"round": uuid.uuid4().hex, "answers": answers}
        (self._folder / "answers.json").write_text(json.dumps(given))

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text).ids)

    def heard(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self._folder / "heard.jsonl").read_text().splitlines()
        ]

    def asked(self) -> dict[str, Any]:
        """The newest request to the model."""
        return next(each for each in reversed(self.heard()) if "tokens" in each)

    def prompt(self) -> str:
        """Its prompt as text."""
        return str(self.tokenizer.decode(self.asked()["tokens"], skip_special_tokens=False))


@contextlib.contextmanager
def speaking(
    tiny_model: Path,
    folder: Path,
    template: str,
    *options: str,
    marks: tuple[str, ...] = (),
    constants: dict[str, dict[str, Any]] | None = None,
) -> Iterator[Speaker]:
    """`marks`: further control tokens of the vocabulary."""
    model = folder / "speaker"
    shutil.copytree(tiny_model, model)
    config = {"eos_token": "<|im_end|>", "chat_template": template}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_special_tokens(list(marks))
    tokenizer.save(str(model / "tokenizer.json"))
    command = [sys.executable, "-m", "tests.server.speaking_runtime", str(folder)]
    changed = {"engine.server.runtime_process": {"COMMAND": command}, **(constants or {})}
    with (
        httpx.Client(trust_env=False, timeout=30) as http,
        running(model, folder / "home", *options, constants=changed) as server,
    ):
        yield Speaker(server, folder, tokenizer, http)
