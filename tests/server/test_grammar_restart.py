"""A real runtime that dies: its successor learns the vocabulary again, unasked."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from engine.chat.detokenizer import Detokenizer
from engine.chat.model_files import locate
from engine.chat.parsers.families import PLAIN
from engine.chat.structured import AnswerFormat, structured_answer
from engine.chat.text_model import load_text_model
from engine.errors import RuntimeUnavailable
from engine.messages import Finished, RequestFailed, Sampled, Submit
from engine.options import EngineOptions
from engine.server.runtime_link import RuntimeLink

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
BAD = {"type": "object", "properties": {"ok": {"type": "bool"}}}


def test_grammars_work_again_after_a_crash() -> None:
    text = load_text_model(locate("demo"))

    def submit(schema: object) -> Submit:
        return Submit(
            request=0,
            tokens=text.tokenizer.encode("Is it so?"),
            max_tokens=300,
            stop_tokens=list(text.end_tokens),
            grammar=structured_answer(PLAIN, AnswerFormat("json_schema", schema), {}, "none"),
        )

    async def answer(link: RuntimeLink, schema: object) -> str:
        tokens = []
        async for event in await link.submit(submit(schema)):
            if isinstance(event, Sampled):
                tokens.append(event.token)
            elif isinstance(event, Finished):
                assert event.reason == "stop"
            elif isinstance(event, RequestFailed):
                return event.error.message
        return Detokenizer(text.tokenizer).decode(tokens)

    async def use() -> None:
        link = RuntimeLink(EngineOptions(model="demo", device="cpu", threads=1))
        link.start()
        try:
            await link.wait_loaded()
            with pytest.raises(RuntimeUnavailable, match="tokenizer"):
                await link.submit(submit(SCHEMA))
            link.vocabulary = text.vocabulary
            for _ in range(2):
                assert json.loads(await answer(link, SCHEMA)).keys() == {"ok"}
                assert "at /properties/ok" in await answer(link, BAD)
                restarts = link.restarts
                os.kill(link.stats("demo").runtime_pid, signal.SIGKILL)
                while link.restarts == restarts:
                    await asyncio.sleep(0.01)
                await link.wait_loaded()
        finally:
            await link.close()

    asyncio.run(asyncio.wait_for(use(), 120))
