"""Grammars of calls whose arguments are JSON."""

from __future__ import annotations

from engine.chat.parsers.grammar import Grammar, literal
from engine.chat.parsers.quoted_lark import quoted_lark
from engine.chat.parsers.tools import INPUT, Tool
from engine.errors import InvalidRequest


def json_arguments(grammar: Grammar, tool: Tool) -> str:
    """An expression for the arguments of a call of this tool. Raises InvalidRequest for a grammar
    of plain text that cannot be said of a JSON string."""
    if tool.text is None or tool.text.syntax != "lark":
        return grammar.json(tool.parameters)
    try:
        quoted = quoted_lark(tool.text.definition)
    except ValueError as error:
        raise InvalidRequest(
            f"The grammar of the tool {tool.name!r} cannot be enforced: {error}.",
            param=tool.text.param,
        ) from error
    text = grammar.inner("lark_grammar", quoted)
    return f"""{literal(f'{{"{INPUT}": "')} {text} {literal('"}')}"""
