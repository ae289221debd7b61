"""Which way of writing reasoning and tool calls a model was taught, and the parser for it.

A family is told by what the model's own template contains, not by the model's name. A further one
is a module with NAME, `speaks` and `calls`, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engine.chat.parsers import deepseek_dsml, deepseek_tokens, glm, harmony, hermes, qwen_xml
from engine.chat.parsers.answer import THINK, Calls, read_answer
from engine.chat.parsers.events import OutputParser
from engine.chat.parsers.grammar import CallForm, Grammar
from engine.chat.parsers.stream import OutputStream, ScriptedParser
from engine.chat.parsers.tools import Tool


@dataclass(frozen=True)
class Family:
    name: str
    speaks: Callable[[str], bool]
    calls: Callable[[OutputStream, Sequence[Tool]], Calls] | None
    """None: writes no calls, or has a parser of its own."""
    form: Callable[[Grammar], CallForm] = hermes.form
    """How calls that a model must make are written; models without a way of their own get the most
    common one."""

    def parser(
        self, tools: Sequence[Tool], special: Collection[str], *, thinking: bool
    ) -> OutputParser:
        """For one answer. Without `tools` what looks like a call is text. `special`: spellings of
        the vocabulary's control tokens. `thinking`: the prompt ends inside a thinking tag."""
        if self.name == harmony.NAME:
            return harmony.parser(special, tools=bool(tools))

        def calls(stream: OutputStream) -> Calls | None:
            return self.calls(stream, tools) if self.calls is not None and tools else None

        return ScriptedParser(
            lambda stream: read_answer(stream, calls(stream), thinking=thinking), special
        )


PLAIN = Family("plain", lambda _template: True, None)
FAMILIES = (
    Family(harmony.NAME, harmony.speaks, None, harmony.form),
    Family(deepseek_dsml.NAME, deepseek_dsml.speaks, deepseek_dsml.calls, deepseek_dsml.form),
    Family(
        *(deepseek_tokens.NAME, deepseek_tokens.speaks),
        *(deepseek_tokens.calls, deepseek_tokens.form),
    ),
    Family(qwen_xml.NAME, qwen_xml.speaks, qwen_xml.calls, qwen_xml.form),
    Family(glm.NAME, glm.speaks, glm.calls, glm.form),
    Family(hermes.NAME, hermes.speaks, hermes.calls, hermes.form),
    PLAIN,
)
"""The first that speaks a template's language is the model's; the order matters."""


def family_named(name: str) -> Family:
    """Raises KeyError."""
    return {family.name: family for family in FAMILIES}[name]


def family_of(template: str) -> Family:
    return next(family for family in FAMILIES if family.speaks(template))


def opens_thinking(prompt: str) -> bool:
    """Whether a rendered prompt ends inside a thinking tag."""
    return prompt.rstrip().endswith(THINK)
