"""What the official clients build upon the protocols: parsed formats, tool runners, raw betas."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from anthropic import beta_tool

from tests.server.speaking import Speaker

ASK: list[Any] = [{"role": "user", "content": "Weather?"}]


class Weather(openai.BaseModel):
    """Tells the weather."""

    model_config = {"extra": "forbid"}  # noqa: RUF012 - as its base has it

    city: str
    days: int | None = None


SAID = '{"city": "Oslo", "days": 3}'
CALL = f'<tool_call>\n{{"name": "Weather", "arguments": {SAID}}}\n</tool_call>'


def test_formats_that_the_client_parses(hermes: Speaker) -> None:
    hermes.says(f"<think>Hm.</think>\n\n{SAID}")
    chat = hermes.openai.chat.completions.parse(
        model=hermes.model, messages=ASK, response_format=Weather
    )
    assert chat.choices[0].message.parsed == Weather(city="Oslo", days=3)
    grammar = json.loads(hermes.asked()["grammar"])
    assert "city" in json.dumps(grammar)
    response = hermes.openai.responses.parse(
        model=hermes.model, input="Weather?", text_format=Weather
    )
    assert response.output_parsed == Weather(city="Oslo", days=3)
    message = hermes.anthropic.messages.parse(
        model=hermes.model, max_tokens=99, messages=ASK, output_format=Weather
    )
    assert message.parsed_output == Weather(city="Oslo", days=3)
    assert hermes.asked()["grammar"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own
def test_what_the_client_has_parsed_comes_back(hermes: Speaker) -> None:
    """OpenAI's client adds what it has read to messages, parts and calls, and sends it too."""
    hermes.says(SAID)
    chats, responses = hermes.openai.chat.completions, hermes.openai.responses
    said: Any = (
        chats.parse(model=hermes.model, messages=ASK, response_format=Weather).choices[0].message
    )
    with chats.stream(model=hermes.model, messages=ASK, response_format=Weather) as stream:
        streamed: Any = stream.get_final_completion().choices[0].message
    for message in (said, streamed):
        assert message.to_dict()["parsed"]
        chats.create(model=hermes.model, messages=[*ASK, message, *ASK])
        assert SAID in hermes.prompt()
    items: Any = responses.parse(model=hermes.model, input="Weather?", text_format=Weather).output
    for sent in (items, [item.to_dict() for item in items]):
        responses.create(model=hermes.model, input=[*ASK, *sent, *ASK])
        assert SAID in hermes.prompt()
    blocks: Any = hermes.anthropic.messages.parse(
        model=hermes.model, max_tokens=99, messages=ASK, output_format=Weather
    ).content
    turns: Any = [*ASK, {"role": "assistant", "content": blocks}, *ASK]
    hermes.anthropic.messages.create(model=hermes.model, max_tokens=99, messages=turns)
    assert SAID in hermes.prompt()


def test_calls_that_the_client_has_parsed_come_back(hermes: Speaker) -> None:
    hermes.says(CALL)
    tool: Any = openai.pydantic_function_tool(Weather)
    chats, responses = hermes.openai.chat.completions, hermes.openai.responses
    message: Any = chats.parse(model=hermes.model, messages=ASK, tools=[tool]).choices[0].message
    (call,) = message.tool_calls
    assert call.to_dict()["function"]["parsed_arguments"]
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    chats.create(model=hermes.model, messages=[*ASK, message, result])
    assert "Oslo" in hermes.prompt()
    flat: Any = {"type": "function", **tool["function"]}
    (item,) = responses.parse(model=hermes.model, input="Weather?", tools=[flat]).output
    output = {"type": "function_call_output", "call_id": item.to_dict()["call_id"], "output": "x"}
    sent: Any = [*ASK, item.to_dict(), output]
    responses.create(model=hermes.model, input=sent)
    assert "Oslo" in hermes.prompt()


def test_calls_that_the_client_parses(hermes: Speaker) -> None:
    hermes.says(f"I look. {CALL}")
    tool: Any = openai.pydantic_function_tool(Weather)
    chat = hermes.openai.chat.completions.parse(model=hermes.model, messages=ASK, tools=[tool])
    (call,) = chat.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments == Weather(city="Oslo", days=3)
    assert hermes.asked()["grammar"] == "", "what may be called is not enforced"
    with hermes.openai.chat.completions.stream(
        model=hermes.model, messages=ASK, tools=[tool]
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "tool_calls.function.arguments.done"} <= kinds
    assert final.choices[0].message.content == "I look."
    assert (final.choices[0].message.tool_calls or [call])[0].function == call.function


def test_a_tool_runner_goes_on_until_the_answer(hermes: Speaker) -> None:
    @beta_tool
    def weather(city: str) -> str:
        """Tells the weather.

        Args:
            city: where
        """
        return f"rain in {city}"

    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    hermes.says(f"<think>I look.</think>{call}", "Take a coat.")
    last: Any = hermes.anthropic.beta.messages.tool_runner(
        model=hermes.model,
        max_tokens=99,
        messages=ASK,
        tools=[weather],
        betas=["made-up-2030-01-01"],
        thinking={"type": "adaptive"},
    ).until_done()
    assert last.content[0].text == "Take a coat."
    assert "rain in Oslo" in hermes.prompt() and "I look." in hermes.prompt()


@pytest.mark.parametrize(
    ("choice", "named"),
    [("required", {"weather", "ping"}), ({"type": "function", "name": "ping"}, {"ping"})],
)
def test_an_enforced_choice_is_a_grammar(hermes: Speaker, choice: Any, named: set[str]) -> None:
    """Of those tools that may be called; the model is told of all."""
    hermes.says('<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>')
    tools: list[Any] = [{"type": "function", "name": name} for name in ("weather", "ping")]
    nested: list[Any] = [
        {"type": "function", "function": {"name": name}} for name in ("weather", "ping")
    ]
    chat_choice: Any = choice
    message_choice: Any = {"type": "any"}
    if choice != "required":
        chat_choice = {"type": "function", "function": {"name": choice["name"]}}
        message_choice = {"type": "tool", "name": choice["name"]}

    def check() -> None:
        grammar, prompt = hermes.asked()["grammar"], hermes.prompt()
        assert {name for name in ("weather", "ping") if name in grammar} == named
        assert "weather" in prompt and "ping" in prompt

    chat: Any = hermes.openai.chat.completions.create(
        model=hermes.model, messages=ASK, tools=nested, tool_choice=chat_choice
    )
    assert chat.choices[0].finish_reason == "tool_calls"
    check()
    hermes.openai.responses.create(model=hermes.model, input="x", tools=tools, tool_choice=choice)
    check()
    message = hermes.anthropic.messages.create(
        model=hermes.model,
        max_tokens=99,
        messages=ASK,
        tools=[{"name": name, "input_schema": {"type": "object"}} for name in ("weather", "ping")],
        tool_choice=message_choice,
    )
    assert message.stop_reason == "tool_use"
    check()


def test_formats_in_other_words(hermes: Speaker) -> None:
    hermes.says("aa")
    for fields, said in (
        ({"regex": "a+"}, "a+"),
        ({"grammar": 'start: "aa"'}, "aa"),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, "a+"),
        ({"response_format": {"type": "json_object"}}, "object"),
    ):
        hermes.openai.chat.completions.create(model=hermes.model, messages=ASK, extra_body=fields)
        assert said in hermes.asked()["grammar"]
        hermes.openai.completions.create(model=hermes.model, prompt="x", extra_body=fields)
        assert said in hermes.asked()["grammar"]


def test_a_format_and_tools_at_once(hermes: Speaker) -> None:
    """The answer is either; both are parsed."""
    tool: Any = openai.pydantic_function_tool(Weather)
    for said, finish in ((SAID, "stop"), (CALL, "tool_calls")):
        hermes.says(said)
        chat = hermes.openai.chat.completions.parse(
            model=hermes.model, messages=ASK, tools=[tool], response_format=Weather
        )
        assert chat.choices[0].finish_reason == finish
        assert "Weather" in hermes.asked()["grammar"]
