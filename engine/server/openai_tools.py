"""Tools and the choice among them as chat completions say it."""

from __future__ import annotations

from typing import Any

from engine.errors import InvalidRequest
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
    if kind != "function" or not isinstance(described, dict):
        raise InvalidRequest(
            f"{where} is of type {kind!r}; a tool is {{type: function, function: {{...}}}}.",
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
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            return "required", [named["name"]]
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, dict):
            return allowed_tools(allowed.get("mode"), allowed.get("tools"))
    raise InvalidRequest(
        f"tool_choice {choice!r} is not supported; none, auto, required, a named function and "
        "allowed_tools are.",
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
