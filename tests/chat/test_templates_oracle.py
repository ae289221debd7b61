"""Real templates render as transformers renders them, to the byte, and fail as they fail there."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jinja2
import pytest
from jinja2.exceptions import SecurityError
from transformers.utils.chat_template_utils import render_jinja_template

from engine.chat.conversation import WAYS_TO_SAY
from engine.chat.render_frames import Outcome
from engine.chat.rendering import shared_renderer
from engine.chat.templates import ChatTemplate, Ending, TemplateSource
from engine.errors import InvalidRequest, UnsupportedModel
from tests.chat.known_templates import NPM_PACKAGES, llama_cpp_templates, npm_template

pytestmark = pytest.mark.timeout(600)  # the first run fetches them

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
Message = dict[str, Any]


def says(role: str, content: str, **fields: Any) -> Message:
    return {"role": role, "content": content, **fields}


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    # Nine letters and digits: some templates want a call's id to be that.
    return {"id": f"call0000{number}", "type": "function", "function": function}


def result(number: int, name: str, content: str) -> Message:
    return says("tool", content, tool_call_id=f"call0000{number}", name=name)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    described = {"name": name, "description": f"The <{name}> of ä.", "parameters": schema}
    return {"type": "function", "function": described}


STRING = {"type": "string", "description": "Where"}
TOOLS = [
    tool("weather", city=STRING, days={"type": "integer"}),
    tool("add", a={"type": "number"}, b={"type": ["number", "null"], "enum": [1, 2.5, None]}),
    tool("now"),
]
USER, ANSWER = says("user", "How is the weather?"), says("assistant", "Fine, and there?")
SYSTEM = says("system", "Be brief.")
CALLING = says("assistant", "I look.", tool_calls=[call(1, "weather", city="Oslo", days=2)])
RAIN = result(1, "weather", '{"sky": "rain"}')


@dataclass(frozen=True)
class Case:
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    variables: tuple[tuple[str, Any], ...] = ()
    begins: bool = True
    """Whether the assistant's turn is opened."""
    continued: bool = False


ODD = "  \n<b>&amp;'\"\\ {{ x }} {% if %}\u00e4\u4e2d\U0001f600\t \n\n"
CASES = {
    "one": Case([USER]),
    "system": Case([SYSTEM, USER]),
    "turns": Case([SYSTEM, USER, ANSWER, USER, ANSWER, USER]),
    "odd": Case(
        [says("system", ODD), says("user", ODD), says("assistant", ODD), says("user", ODD)]
    ),
    "empty": Case([says(role, "") for role in ("system", "user", "assistant", "user")]),
    "answered": Case([USER, ANSWER]),
    "two of a role": Case([USER, USER]),
    "later system": Case([USER, ANSWER, SYSTEM, USER]),
    "two systems": Case([SYSTEM, says("system", "And kind."), USER]),
    "developer": Case([says("developer", "Be brief."), USER]),
    "unknown role": Case([says("critic", "No."), USER]),
    "nobody": Case([]),
    "tools": Case([SYSTEM, USER], TOOLS),
    "calls": Case([USER, CALLING, RAIN], TOOLS),
    "calls without text": Case([USER, {**CALLING, "content": ""}, RAIN, ANSWER, USER], TOOLS),
    "calls without content": Case(
        [USER, {key: CALLING[key] for key in ("role", "tool_calls")}, RAIN], TOOLS
    ),
    "calls in parallel": Case(
        [
            SYSTEM,
            USER,
            says(
                "assistant",
                "",
                tool_calls=[
                    call(1, "weather", city=ODD, days=3),
                    call(2, "add", a=1.5, b=None, c=[1, {"d": True}], e={}),
                    call(3, "now"),
                ],
            ),
            RAIN,
            result(2, "add", "4"),
            result(3, "now", ODD),
            ANSWER,
            USER,
        ],
        TOOLS,
    ),
    "calls, and no tools": Case([USER, CALLING, RAIN]),
    "a result of no call": Case([USER, RAIN], TOOLS),
    "reasoning": Case([USER, {**ANSWER, "reasoning_content": "Hm.\n\nSo."}, USER]),
    "reasoning last": Case([USER, {**ANSWER, "reasoning_content": "Hm."}], begins=False),
    "reasoning in the text": Case([USER, says("assistant", "<think>\nHm.\n</think>\n\nA"), USER]),
    "reasoning and calls": Case(
        [SYSTEM, USER, {**CALLING, "reasoning_content": " Hm. "}, RAIN], TOOLS
    ),
    "continued": Case([SYSTEM, USER, says("assistant", "It is ")], continued=True),
    "continued at once": Case([USER, says("assistant", "")], continued=True),
    "continued, trimmed": Case([USER, says("assistant", " It\nis\n\n")], continued=True),
    "continued with tools": Case(
        [USER, CALLING, RAIN, says("assistant", "It")], TOOLS, continued=True
    ),
    "continued after reasoning": Case(
        [USER, says("assistant", "It is", reasoning_content="Hm.")], continued=True
    ),
    "continued in reasoning": Case([USER, says("assistant", "<think>\nHm")], continued=True),
}
for name in ("one", "turns", "tools", "calls", "reasoning"):
    CASES[f"{name}, not begun"] = replace(CASES[name], begins=False)
for name in ("one", "reasoning and calls"):
    for key, value in (
        *(("enable_thinking", True), ("enable_thinking", False), ("thinking", True)),
        *(("reasoning_effort", "low"), ("thinking_budget", 512), ("clear_thinking", False)),
    ):
        CASES[f"{name}, {key} {value}"] = replace(CASES[name], variables=((key, value),))


def reference(source: str, case: Case) -> str:
    # It writes into the messages.
    messages, tools = json.loads(json.dumps([case.messages, case.tools]))
    made: Any = render_jinja_template(
        [messages],
        tools=tools,
        chat_template=source,
        add_generation_prompt=case.begins and not case.continued,
        continue_final_message=case.continued,
        **SPECIAL,
        **dict(case.variables),
    )
    return str(made[0][0])


def aliased(message: Message) -> Message:
    """As transformers has it before it renders."""
    thoughts = message.get("reasoning_content")
    return message if thoughts is None else {"thinking": thoughts, **message}


def expected(source: str, case: Case) -> tuple[Outcome, str]:
    try:
        return Outcome.RENDERED, reference(source, case)
    except SecurityError as error:
        return Outcome.FORBIDDEN, str(error)
    except RecursionError:
        return Outcome.FAILED, "it nests too deeply"
    except jinja2.TemplateError as error:
        by_template = type(error) is jinja2.TemplateError
        return Outcome.REFUSED if by_template else Outcome.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - whatever a template provokes
        return Outcome.FAILED, str(error) or type(error).__name__


def as_it_is(source: str, case: Case) -> tuple[Outcome, str]:
    """What the sandbox makes of what transformers renders with."""
    variables = {
        **SPECIAL,
        **dict(case.variables),
        "messages": [aliased(message) for message in case.messages],
        "tools": case.tools,
        "documents": None,
        "add_generation_prompt": case.begins,
    }
    return shared_renderer().ask(source, variables)


def accepted(source: str, case: Case) -> tuple[Outcome, str]:
    """As transformers renders it, said in the first of the ways that the template does not refuse
    itself."""
    for said in WAYS_TO_SAY:
        wanted = expected(source, replace(case, messages=said(case.messages)))
        if wanted[0] is not Outcome.REFUSED:
            break
    return wanted


def as_requests_are(template: ChatTemplate, case: Case) -> str | None:
    """None where a request is refused."""
    ending: Ending = "continued" if case.continued else "answer" if case.begins else "bare"
    variables = dict(case.variables)
    try:
        return template.render(
            case.messages, variables=variables, tools=case.tools, ending=ending
        ).text
    except (InvalidRequest, UnsupportedModel):
        return None


def said_otherwise(template: ChatTemplate, case: Case) -> bool:
    """Whether such a request is put into other messages, for the template's sake."""
    roles = [message["role"] for message in case.messages]
    calls = "tool" in roles or any(message.get("tool_calls") for message in case.messages)
    return (
        "developer" in roles
        or "system" in roles[1:]
        or (calls and not template.takes_tool_use)
        or (case.tools is not None and not template.takes_tools)
    )


def compared(source: str, cases: Iterable[tuple[str, Case]]) -> tuple[int, dict[str, Any]]:
    """How many comparisons were made, and those that differ."""
    count, different = 0, {}
    template = ChatTemplate(TemplateSource(source, "it"), SPECIAL)
    for title, case in cases:
        wanted = expected(source, case)
        if not case.continued:
            count += 1
            made = as_it_is(source, case)
            if made != wanted:
                different[title] = (made, wanted)
        if said_otherwise(template, case):
            continue
        count += 1
        outcome, prompt = accepted(source, case)
        text = as_requests_are(template, case)
        if text != (prompt if outcome is Outcome.RENDERED else None):
            different[f"{title}, as requests are"] = (text, (outcome, prompt))
    return count, different


def all_equal(templates: Iterable[tuple[str, str]], cases: Iterable[tuple[str, Case]]) -> int:
    total, different = 0, {}
    cases = list(cases)
    for name, source in templates:
        count, faults = compared(source, cases)
        total += count
        different.update({f"{name}: {title}": fault for title, fault in faults.items()})
    assert different == {}
    return total


PLAIN_RUN = (
    *("turns", "odd", "tools", "two of a role", "later system", "answered", "turns, not begun"),
    *("calls in parallel", "reasoning and calls, enable_thinking False", "reasoning in the text"),
    *("continued", "continued, trimmed", "continued after reasoning"),
)


def test_every_template_renders_as_transformers_does() -> None:
    templates = llama_cpp_templates()
    assert len(templates) == 70
    assert all_equal(templates.items(), ((name, CASES[name]) for name in PLAIN_RUN)) > 1200


WITH_FUNCTIONS = {"fireworks-ai-llama-3-firefunction-v2"}
"""Wants the tools under a name of its own, and renders nothing without them."""


def test_calls_and_their_results_reach_every_prompt() -> None:
    calling = {**CALLING, "tool_calls": [call(1, "now", city="Oslo")]}
    for text in ("I look.", ""):
        messages = [USER, {**calling, "content": text}, result(1, "now", "seven"), ANSWER, USER]
        lost = []
        for name, source in llama_cpp_templates().items():
            template = ChatTemplate(TemplateSource(source, "it"), SPECIAL)
            if name in WITH_FUNCTIONS:
                continue
            prompt = template.render(messages, tools=[tool("now", city=STRING)]).text
            if "Oslo" not in prompt or "seven" not in prompt:
                lost.append(name)
        assert lost == []


@pytest.mark.full
def test_every_template_renders_whatever_it_is_given_as_transformers_does() -> None:
    assert all_equal(llama_cpp_templates().items(), CASES.items()) > 4000


@pytest.mark.full
@pytest.mark.parametrize("package", NPM_PACKAGES)
def test_templates_of_tokenizers_render_as_transformers_renders_them(package: str) -> None:
    assert all_equal([(package, npm_template(package))], CASES.items()) > 60


@pytest.mark.full
def test_random_conversations_render_as_transformers_renders_them() -> None:
    chance = random.Random(7)
    cases = [(f"random {number}", random_case(chance)) for number in range(100)]
    assert all_equal(llama_cpp_templates().items(), cases) > 7000


def random_case(chance: random.Random) -> Case:
    def words() -> str:
        parts = [
            "\n",
            " ",
            "ä",
            "<think>",
            "</think>",
            "<tool_call>",
            "so",
            "0",
            "\U0001f600",
            "{{",
        ]
        return "".join(chance.choices(parts, k=chance.randrange(6)))

    def value() -> Any:
        return chance.choice(
            [words(), chance.random(), chance.getrandbits(70), None, True, [1], {}]
        )

    messages = [says("system", words())] if chance.random() < 0.5 else []
    for _ in range(chance.randrange(1, 4)):
        messages.append(says("user", words()))
        if chance.random() < 0.3:
            calls = [
                call(n, "weather", city=value(), b=value()) for n in range(chance.randint(1, 3))
            ]
            messages.append(says("assistant", words(), tool_calls=calls))
            messages += [result(n, "weather", words()) for n in range(len(calls))]
        if chance.random() < 0.8:
            messages.append(says("assistant", words()))
            if chance.random() < 0.5:
                messages[-1]["reasoning_content"] = words()
    return Case(
        messages,
        TOOLS if chance.random() < 0.5 else None,
        (("enable_thinking", chance.random() < 0.5),) if chance.random() < 0.5 else (),
        begins=chance.random() < 0.7,
        continued="tool_calls" not in messages[-1]
        and messages[-1]["role"] == "assistant"
        and chance.random() < 0.5,
    )
