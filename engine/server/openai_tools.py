"""Tools and the choice among them as chat completions say it."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidRequest
from engine.server.bodies import stands
from engine.server.tool_use import Function, ToolUse, function, tool_use


def tool_use_of(
    tools: list[dict[str, Any]], choice: str | dict[str, Any], *, several: bool
) -> ToolUse:
    """Raises InvalidRequest naming the field at fault."""
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    mode, only = _choice(choice)
    # The API says of a named function that it is called once.
    named = isinstance(choice, dict) and choice.get("type") == "function"
    return tool_use(functions, mode=mode, only=only, several=several and not named)


def _function(tool: dict[str, Any], where: str) -> Function:
    kind, described = tool.get("type"), tool.get("function")
    if kind != "function":
        raise InvalidRequest(f"{stands(f'{where}.type', kind)}; it must be function.", param=where)
    if not isinstance(described, dict):
        raise InvalidRequest(
            f"{stands(f'{where}.function', described)}; it must be an object with the tool's name, "
            "description and parameters.",
            param=where,
        )
    return function(
        f"{where}.function",
        described.get("name"),
        described.get("description"),
        described.get("parameters"),
        described.get("strict"),
    )


def _choice(choice: str | dict[str, Any]) -> tuple[str, list[str] | None]:
    """Mode, and the names that it is about."""
    if choice in ("none", "auto", "required"):
        return str(choice), None
    if isinstance(choice, dict) and choice.get("type") == "function":
        named = choice.get("function")
        name = named.get("name") if isinstance(named, dict) else None
        if isinstance(name, str):
            return "required", [name]
        raise InvalidRequest(f"{stands('tool_choice.function.name', name)}.", param="tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, dict):
            return allowed_tools(allowed.get("mode"), allowed.get("tools"))
    raise unknown_choice(choice)


def unknown_choice(choice: str | dict[str, Any]) -> InvalidRequest:
    found = stands("tool_choice", choice)
    if isinstance(choice, dict):
        found = stands("tool_choice.type", choice.get("type"))
    return InvalidRequest(
        f"{found}; tool_choice must be none, auto, required, a named function or allowed_tools.",
        param="tool_choice",
    )


def allowed_tools(mode: Any, tools: Any) -> tuple[str, list[str]]:
    """A choice among some of the tools. Raises InvalidRequest."""
    names = [_allowed_name(tool) for tool in tools] if isinstance(tools, list) else []
    found = [name for name in names if isinstance(name, str)]
    if mode not in ("auto", "required") or not found or len(found) < len(names):
        raise InvalidRequest(
            "tool_choice of type allowed_tools needs a mode, auto or required, and names of tools.",
            param="tool_choice",
        )
    return mode, found


def _allowed_name(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return None
    nested = tool.get("function")
    return nested.get("name") if isinstance(nested, dict) else tool.get("name")
