"""Tools and the choice among them as Anthropic clients say it."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidRequest
from engine.server.bodies import stands, switch
from engine.server.tool_use import Function, ToolUse, function, tool_use

_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def tool_use_of(tools: list[dict[str, Any]], choice: dict[str, Any]) -> ToolUse:
    """Raises InvalidRequest naming the field at fault."""
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    kind, name = choice.get("type"), choice.get("name")
    if not isinstance(kind, str) or kind not in _MODES:
        raise InvalidRequest(
            f"{stands('tool_choice.type', kind)}; it must be one of {', '.join(_MODES)}.",
            param="tool_choice.type",
        )
    if kind == "tool" and not isinstance(name, str):
        raise InvalidRequest("tool_choice.name is missing.", param="tool_choice.name")
    one = switch(choice.get("disable_parallel_tool_use"), "tool_choice.disable_parallel_tool_use")
    return tool_use(
        functions,
        mode=_MODES[kind],
        only=[str(name)] if kind == "tool" else None,
        several=not one,
    )


def _function(tool: dict[str, Any], where: str) -> Function:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise InvalidRequest(
            f"{stands(f'{where}.type', kind)}: tools that run at the service, or that a model must "
            "know by itself, are not offered here.",
            hint="Describe it with name and input_schema.",
            param=f"{where}.type",
        )
    return function(
        where,
        tool.get("name"),
        tool.get("description"),
        tool.get("input_schema"),
        tool.get("strict"),
        field="input_schema",
    )
