"""gpt-oss's own template, rendered here, beside OpenAI's renderer on the same conversations."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from engine.chat.templates import ChatTemplate, TemplateSource
from tests.chat.known_templates import llama_cpp_templates
from tests.chat.oracles.harmony import harmony

TEMPLATE = "openai-gpt-oss-120b"
CONVERSATIONS = 500
PROPERTIES: dict[str, dict[str, Any]] = {
    "city": {"type": "string", "description": "where"},
    "days": {"type": "integer"},
    "share": {"type": "number"},
    "units": {"type": "string", "enum": ["c", "f"]},
    "tags": {"type": "array", "items": {"type": "string"}},
    "on": {"type": "boolean", "description": "whether"},
}
SAID = ("Weather?", "Two\nlines.", "naïve 聪明 👩‍🚀", " spaces ", "{}")
EFFORTS = ("low", "medium", "high")

pytestmark = [pytest.mark.full, pytest.mark.timeout(1200)]


def tool(draw: random.Random, name: str) -> dict[str, Any]:
    names = draw.sample(list(PROPERTIES), draw.randrange(len(PROPERTIES)))
    schema = {
        "type": "object",
        "properties": {each: PROPERTIES[each] for each in names},
        "required": [each for each in names if draw.random() < 0.5],
    }
    described = {"name": name, "description": f"Tells of {name}.", "parameters": schema}
    return {"type": "function", "function": described}


def turns(draw: random.Random, *, tools: bool) -> list[dict[str, Any]]:
    """Whole turns of user and assistant, and at the end one that an answer is wanted to."""
    made: list[dict[str, Any]] = []
    for last in (False,) * draw.randrange(3) + (True,):
        made.append({"role": "user", "content": draw.choice(SAID)})
        for number in range(draw.randrange(3) if tools else 0):
            function = {"name": "weather", "arguments": {"city": draw.choice(SAID)}}
            call = {"id": str(number), "type": "function", "function": function}
            thought = {"thinking": "Hm."} if draw.random() < 0.7 else {}
            turn = {"role": "assistant", "content": "", **thought, "tool_calls": [call]}
            result = {"role": "tool", "tool_call_id": str(number), "content": draw.choice(SAID)}
            made += [turn, result]
        if not last:
            made.append({"role": "assistant", "content": draw.choice(SAID)})
    return made


def theirs(messages: list[dict[str, Any]], tools: list[Any], effort: str, date: str) -> str:
    package, encoding = harmony()
    role, message = package.Role, package.Message
    level = package.ReasoningEffort(effort.capitalize())
    system = package.SystemContent.new().with_reasoning_effort(level)
    made = [message.from_role_and_content(role.SYSTEM, system.with_conversation_start_date(date))]
    developer = package.DeveloperContent.new()
    if messages[0]["role"] == "system":
        # The template ends them with an empty line, also where no tools follow.
        end = "" if tools else "\n\n"
        developer = developer.with_instructions(messages[0]["content"] + end)
    if tools:
        described = [
            package.ToolDescription.new(
                each["function"]["name"],
                each["function"]["description"],
                each["function"]["parameters"]
                if each["function"]["parameters"]["properties"]
                else None,
            )
            for each in tools
        ]
        developer = developer.with_function_tools(described)
    if tools or messages[0]["role"] == "system":
        made.append(message.from_role_and_content(role.DEVELOPER, developer))
    # Their guide has thoughts dropped once a final answer follows; their renderer does that only
    # where such an answer is the last turn.
    for index, turn in enumerate(messages):
        answered = any(_is_final(each) for each in messages[index:])
        made += _theirs(turn, thoughts=not answered)
    conversation = package.Conversation.from_messages(made)
    keep = package.RenderConversationConfig(auto_drop_analysis=False)
    tokens = encoding.render_conversation_for_completion(conversation, role.ASSISTANT, keep)
    return str(encoding.decode(tokens))


def _is_final(turn: dict[str, Any]) -> bool:
    return bool(turn["role"] == "assistant" and turn["content"])


def _theirs(turn: dict[str, Any], *, thoughts: bool) -> list[Any]:
    package, _ = harmony()
    role, message = package.Role, package.Message
    match turn["role"]:
        case "user":
            return [message.from_role_and_content(role.USER, turn["content"])]
        case "tool":
            author = package.Author.new(role.TOOL, "functions.weather")
            # The template writes what a tool has said as JSON.
            told = message.from_author_and_content(
                author, json.dumps(turn["content"], ensure_ascii=False)
            )
            return [told.with_channel("commentary").with_recipient("assistant")]
        case "assistant":
            made = []
            if "thinking" in turn and thoughts:
                thought = message.from_role_and_content(role.ASSISTANT, turn["thinking"])
                made.append(thought.with_channel("analysis"))
            for call in turn.get("tool_calls", []):
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                called = message.from_role_and_content(role.ASSISTANT, arguments)
                called = called.with_channel("commentary").with_content_type("json")
                made.append(called.with_recipient(f"functions.{call['function']['name']}"))
            if turn["content"]:
                final = message.from_role_and_content(role.ASSISTANT, turn["content"])
                made.append(final.with_channel("final"))
            return made
    return []


def test_conversations_are_rendered_as_by_their_renderer() -> None:
    harmony()
    source = TemplateSource(llama_cpp_templates()[TEMPLATE], "gpt-oss")
    template = ChatTemplate(source, {})
    for seed in range(CONVERSATIONS):
        draw = random.Random(seed)
        tools = [tool(draw, name) for name in ("weather", "now")[: draw.randrange(3)]]
        messages = turns(draw, tools=bool(tools))
        if draw.random() < 0.5:
            messages.insert(0, {"role": "system", "content": "Be brief."})
        effort = draw.choice(EFFORTS)
        variables = {"reasoning_effort": effort}
        ours = template.render(messages, tools=tools or None, variables=variables).text
        date = re.search(r"Current date: (.*)", ours)
        assert date is not None
        assert ours == theirs(messages, tools, effort, date[1]), seed
