"""Tools and the choice among them as the Responses API says it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from engine.chat.parsers.tools import INPUT, TextInput, Tool
from engine.errors import InvalidRequest
from engine.server.bodies import stands
from engine.server.openai_tools import allowed_tools, unknown_choice
from engine.server.tool_use import Function, ToolUse, function, tool_use

HOSTED = ("web_search", "image_generation", "tool_search")
"""Beginnings of the types of tools that run at the service, which agents send to every server:
there are none here, and the model is not told of them."""
_MAX_GRAMMAR = 1 << 16
"""Characters of one grammar: it is told to the model, too."""
_TEXT_INPUT = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
}


@dataclass(frozen=True)
class Origin:
    """What the client calls a tool that the model knows as one function of one name."""

    name: str
    namespace: str = ""
    custom: bool = False
    """Takes plain text, not an object."""


@dataclass(frozen=True)
class ResponseTools:
    use: ToolUse
    origins: dict[str, Origin]

    def origin(self, name: str) -> Origin:
        """Of what the model calls, which need not be among the tools."""
        return self.origins.get(name, Origin(name))


def full_name(name: str, namespace: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def response_tools(
    tools: list[dict[str, Any]], choice: str | dict[str, Any], *, several: bool
) -> ResponseTools:
    """Raises InvalidRequest naming the field at fault."""
    functions, origins = [], {}
    for index, tool in enumerate(tools):
        for described, origin in _functions(tool, f"tools[{index}]", ""):
            functions.append(described)
            origins[described.name] = origin
    mode, only = _choice(choice)
    # The API says of a named function that it is called once.
    named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
    use = tool_use(functions, mode=mode, only=only, several=several and not named)
    return ResponseTools(use, origins)


def _functions(
    tool: dict[str, Any], where: str, namespace: str
) -> Iterator[tuple[Function, Origin]]:
    kind, name = tool.get("type"), tool.get("name")
    if kind == "namespace" and isinstance(tool.get("tools"), list) and not namespace:
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"{stands(f'{where}.name', name)}.", param=f"{where}.name")
        for index, nested in enumerate(tool["tools"]):
            at = f"{where}.tools[{index}]"
            if not isinstance(nested, dict):
                raise InvalidRequest(f"{at} is not an object.", param=at)
            yield from _functions(nested, at, name)
    elif kind in ("function", "custom"):
        custom = kind == "custom"
        text = _text_input(tool.get("format"), f"{where}.format") if custom else None
        parameters = _TEXT_INPUT if custom else tool.get("parameters")
        known_as = full_name(name, namespace) if isinstance(name, str) else name
        told = _description(tool.get("description"), text)
        described = function(where, known_as, told, parameters, tool.get("strict"))
        if text is not None:
            described = replace(described, tool=_held(described.tool, text))
        yield described, Origin(str(name), namespace, custom)
    elif not isinstance(kind, str) or not kind.startswith(HOSTED):
        raise InvalidRequest(
            f"{stands(f'{where}.type', kind)}; it must be one of function, custom, namespace.",
            param=where,
        )


def _text_input(wanted: Any, where: str) -> TextInput | None:
    """What a custom tool's input must be; None: any text. Raises InvalidRequest."""
    if wanted is None or wanted == "text":
        return None
    if not isinstance(wanted, dict):
        raise InvalidRequest(f"{stands(where, wanted)}; it must be an object.", param=where)
    kind = wanted.get("type")
    if kind in (None, "text"):
        return None
    if kind != "grammar":
        raise InvalidRequest(f"{where}.type must be text or grammar.", param=where)
    syntax, definition = wanted.get("syntax"), wanted.get("definition")
    if syntax not in ("lark", "regex"):
        raise InvalidRequest(f"{where}.syntax must be lark or regex.", param=f"{where}.syntax")
    if not isinstance(definition, str) or not definition.strip():
        raise InvalidRequest(f"{where}.definition must be a grammar.", param=f"{where}.definition")
    if len(definition) > _MAX_GRAMMAR:
        raise InvalidRequest(
            f"{where}.definition has {len(definition)} characters, at most {_MAX_GRAMMAR}.",
            param=f"{where}.definition",
        )
    return TextInput(syntax, definition, f"{where}.definition")


def _held(tool: Tool, text: TextInput) -> Tool:
    """The tool with what its input must be."""
    if text.syntax == "lark":
        return replace(tool, text=text)
    pattern = {"type": "string", "pattern": f"^(?:{text.definition})$"}
    return replace(tool, text=text, parameters={**_TEXT_INPUT, "properties": {INPUT: pattern}})


def _description(description: Any, text: TextInput | None) -> Any:
    """With the grammar of a custom tool's input, which the model cannot know otherwise."""
    if text is None or not isinstance(description, str | None):
        return description
    return f"{description or ''}\nGrammar of the input:\n{text.definition}".strip()


def _choice(choice: str | dict[str, Any]) -> tuple[str, list[str] | None]:
    """Mode, and the names that it is about."""
    if choice in ("none", "auto", "required"):
        return str(choice), None
    if isinstance(choice, dict):
        name, namespace = choice.get("name"), choice.get("namespace") or ""
        if choice.get("type") in ("function", "custom") and isinstance(name, str):
            return "required", [full_name(name, str(namespace))]
        if choice.get("type") == "allowed_tools":
            return allowed_tools(choice.get("mode"), choice.get("tools"))
        if choice.get("type") in ("function", "custom"):
            raise InvalidRequest(f"{stands('tool_choice.name', name)}.", param="tool_choice")
    raise unknown_choice(choice)
