"""The demo model held to schemas and to calls: whatever it is asked, the answer is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from jsonschema import Draft202012Validator

from engine.chat.detokenizer import Detokenizer
from engine.chat.model_files import locate
from engine.chat.parsers.events import CallArguments, CallClosed, CallOpened
from engine.chat.parsers.families import FAMILIES, Family, family_named
from engine.chat.parsers.tools import Tool
from engine.chat.structured import AnswerFormat, enforced_calls, structured_answer
from engine.chat.text_model import TextModel, load_text_model
from engine.messages import Finished, Sampling, Submit
from engine.options import EngineOptions
from engine.runtime.engine import Engine
from tests.runtime.driving import Driver

PROMPTS = 10
CALL_PROMPTS = 3  # for each family, at each temperature
FULL_PROMPTS = 200
BATCH = 10
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 30},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "units": {"enum": ["celsius", "fahrenheit"]},
        "hours": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 23},
            "maxItems": 4,
        },
    },
    "required": ["city", "days"],
}
NOTE = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 20},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
        "pinned": {"type": ["boolean", "null"]},
    },
    "required": ["title", "tags", "pinned"],
    "$defs": {"tag": {"type": "string", "pattern": "^[a-z]{2,8}$"}},
}
SCHEMAS = {"weather": WEATHER, "note": NOTE, "now": {"type": "object", "properties": {}}}
TOOLS = tuple(Tool(name, schema) for name, schema in SCHEMAS.items())
SUBJECTS = ("the weather", "a river", "numbers", "music", "my garden", "code", "a long trip")
ASKED = ("Tell me about", "What is", "Write down", "Please plan", "How do you like")
FULL = pytest.param(FULL_PROMPTS, marks=[pytest.mark.full, pytest.mark.timeout(1800)])
# A gpt-oss thinks before it calls, as long as it likes, which the demo model does for ever.
CALLING = [family for family in FAMILIES if family.name != "harmony"]


class Demo:
    def __init__(self) -> None:
        self.text: TextModel = load_text_model(locate("demo"))
        self.engine = Engine.load(EngineOptions(model="demo", device="cpu", threads=1))
        self.engine.use_vocabulary(self.text.vocabulary())

    @property
    def special(self) -> dict[str, int]:
        return self.text.tokenizer.special

    def submit(self, number: int, grammar: str) -> Submit:
        asked = f"{ASKED[number % 5]} {SUBJECTS[number % 7]}, {number}."
        prompt = self.text.chat_prompt([{"role": "user", "content": asked}], context_tokens=2048)
        return Submit(
            request=number,
            tokens=prompt.tokens,
            max_tokens=600,
            sampling=Sampling(temperature=(0, 0.7, 1.0)[number % 3], seed=number),
            stop_tokens=list(self.text.end_tokens),
            grammar=grammar,
        )

    def run(self, grammar: str, prompts: int) -> Iterator[list[int]]:
        """Outputs, all of which end by themselves."""
        for first in range(0, prompts, BATCH):
            numbers = range(first, min(first + BATCH, prompts))
            run = Driver(self.engine).run([self.submit(each, grammar) for each in numbers])
            for number in numbers:
                end = run.end(number)
                assert isinstance(end, Finished) and end.reason == "stop", (number, end)
                yield run.tokens(number)


@pytest.fixture(scope="module")
def demo() -> Demo:
    return Demo()


@pytest.mark.parametrize("prompts", [PROMPTS, FULL])
@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid(demo: Demo, name: str, prompts: int) -> None:
    wanted = AnswerFormat("json_schema", SCHEMAS[name])
    grammar = structured_answer(demo.text.family, wanted, demo.special, "none")
    answers = [
        json.loads(Detokenizer(demo.text.tokenizer).decode(tokens))
        for tokens in demo.run(grammar, prompts)
    ]
    for answer in answers:
        Draft202012Validator(SCHEMAS[name]).validate(answer)
    assert name == "now" or len({json.dumps(answer) for answer in answers}) > prompts // 2


@pytest.mark.parametrize("prompts", [CALL_PROMPTS, FULL])
@pytest.mark.parametrize("family", CALLING, ids=lambda family: family.name)
def test_enforced_calls_are_valid(demo: Demo, family: Family, prompts: int) -> None:
    grammar = enforced_calls(family, TOOLS, demo.special, "none", several=False)
    for tokens in demo.run(grammar, prompts):
        ((name, arguments, complete),) = calls(demo, family, tokens)
        assert complete
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))


def calls(demo: Demo, family: Family, tokens: list[int]) -> list[tuple[str, str, bool]]:
    """Name, arguments, complete; there is nothing else."""
    speaking = family_named("hermes" if family.name == "plain" else family.name)
    parser = speaking.parser(TOOLS, demo.special, thinking=False)
    detokenizer = Detokenizer(demo.text.tokenizer)
    events = [event for token in tokens for event in parser.feed(detokenizer.piece(token))]
    found: list[tuple[str, str, bool]] = []
    for event in [*events, *parser.finish()]:
        match event:
            case CallOpened(name=name):
                found.append((name, "", False))
            case CallArguments(text=text):
                name, before, _ = found[-1]
                found[-1] = (name, before + text, False)
            case CallClosed(complete=complete):
                found[-1] = (*found[-1][:2], complete)
            case _:
                raise AssertionError(event)
    return found


def test_grammars_beside_free_requests_change_no_token(demo: Demo) -> None:
    wanted = AnswerFormat("json_schema", WEATHER)
    grammar = structured_answer(demo.text.family, wanted, demo.special, "none")
    submits = [
        msgspec.structs.replace(demo.submit(each, grammar if each % 2 else ""), max_tokens=24)
        for each in range(4)
    ]
    together = Driver(demo.engine).run(submits)
    for submit in submits:
        alone = Driver(demo.engine).run([submit])
        assert together.tokens(submit.request) == alone.tokens(submit.request)
