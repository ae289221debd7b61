"""The tools of a request, as every protocol's are once they are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from engine.chat.parsers.tools import Tool
from engine.errors import InvalidRequest
from engine.schemas import without_null_keywords
from engine.server.bodies import switch

MAX_TOOLS = 512
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,256}")


@dataclass(frozen=True)
class Function:
    """A tool as it was described."""

    name: str
    described: dict[str, Any]
    """As templates read it: {type: function, function: {name, description, parameters}}."""
    tool: Tool


@dataclass(frozen=True)
class ToolUse:
    """Which tools the model is told of, and which calls it may or must make."""

    offered: tuple[dict[str, Any], ...] = ()
    """As templates read them."""
    callable: tuple[Tool, ...] = ()
    """Those that may be called; with `enforced` one must be."""
    enforced: bool = False
    several: bool = True
    """Whether an answer may hold more than one call."""


NO_TOOLS = ToolUse()


def function(
    where: str,
    name: Any,
    description: Any = None,
    parameters: Any = None,
    strict: Any = None,
    field: str = "parameters",
) -> Function:
    """`strict`: whether enforced calls follow the schema to the letter. `field`: what the protocol
    calls `parameters`. Raises InvalidRequest naming the field at fault."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where}.name must be 1 to 256 letters, digits, or any of _ . : -",
            param=f"{where}.name",
        )
    if not isinstance(description, str | None):
        raise InvalidRequest(f"{where}.description is not text.", param=f"{where}.description")
    if not isinstance(parameters, dict | None):
        raise InvalidRequest(f"{where}.{field} is not an object.", param=f"{where}.{field}")
    # Absent, {} and a bare {type: object} all mean a function that takes no arguments.
    schema = {"type": "object", "properties": {}, **without_null_keywords(parameters or {})}
    if schema["type"] != "object" or not isinstance(schema["properties"], dict):
        raise InvalidRequest(
            f"{where}.{field} must be the schema of an object.", param=f"{where}.{field}"
        )
    told = {"name": name, "description": description or "", "parameters": schema}
    tool = Tool(name, schema, strict=switch(strict, f"{where}.strict"))
    return Function(name, {"type": "function", "function": told}, tool)


def tool_use(
    functions: Sequence[Function],
    *,
    mode: str,
    only: Collection[str] | None = None,
    several: bool = True,
    param: str = "tool_choice",
) -> ToolUse:
    """`mode`: none, auto or required. `only`: names of the tools that may be called.

    With "none" the model is not told of the tools, so that it cannot call one. Raises
    InvalidRequest.
    """
    if len(functions) > MAX_TOOLS:
        raise InvalidRequest(
            f"tools has {len(functions)} entries, at most {MAX_TOOLS}.", param="tools"
        )
    names = [each.name for each in functions]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"tools has two functions named {name!r}.", param="tools")
    for name in only or ():
        if name not in names:
            raise InvalidRequest(
                f"{param} names the function {name!r}, which is not among the tools.", param=param
            )
    if mode == "required" and not functions:
        raise InvalidRequest(f"{param} wants a call, but there are no tools.", param=param)
    if mode == "none" or not functions:
        return NO_TOOLS
    chosen = [each for each in functions if only is None or each.name in only]
    # What may not be called in any case the model need not know of; what it must not choose now
    # it may have called before.
    offered = functions if mode == "required" else chosen
    return ToolUse(
        tuple(each.described for each in offered),
        tuple(each.tool for each in chosen),
        mode == "required",
        several,
    )
