"""How a model's way of calling tools is found, named, or told to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.running import headrace
from tests.server.speaking import Speaker, speaking
from tests.server.tiny_model import TEMPLATE

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}},
}


def called(speaker: Speaker) -> Any:
    answer: Any = speaker.openai.chat.completions.create(
        model=speaker.model, messages=[{"role": "user", "content": "hi"}], tools=[TOOL]
    )
    return answer.choices[0]


def test_a_template_without_tools(tiny_model: Path, tmp_path: Path) -> None:
    with speaking(tiny_model, tmp_path, TEMPLATE) as speaker:
        speaker.says('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
        choice = called(speaker)
        assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'
        prompt = speaker.prompt()
        assert prompt.startswith("<|im_start|>system\n") and '"name": "f"' in prompt


def test_a_family_that_is_named(tiny_model: Path, tmp_path: Path) -> None:
    with speaking(tiny_model, tmp_path, TEMPLATE, "--tool-parser", "qwen_xml") as speaker:
        speaker.says(
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
        )
        choice = called(speaker)
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls[0].function.arguments == '{"a": 1}'


def test_a_family_that_is_unknown(tiny_model: Path) -> None:
    process = headrace("serve", "--model", str(tiny_model), "--tool-parser", "elvish")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2 and "hermes" in said
