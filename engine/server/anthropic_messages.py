"""The messages of Anthropic clients, and their meaning as templates read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from engine.chat.conversation import Message
from engine.errors import InvalidRequest
from engine.server.bodies import stands
from engine.server.call_arguments import object_of
from engine.server.nested import answering, refuse_unknown

Blocks = str | list[dict[str, Any]]


class Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["user", "assistant", "system"]})]
    content: Blocks

    @property
    def calls(self) -> bool:
        """Whether a tool is called in it."""
        return isinstance(self.content, list) and any(
            block.get("type") == "tool_use" for block in self.content
        )


def conversation(system: Blocks, turns: list[Turn]) -> list[Message]:
    """The messages as templates read them. Raises InvalidRequest naming the block at fault."""
    messages: list[Message] = []
    instructions = _text_of(system, "system")
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for index, turn in enumerate(turns):
        where = f"messages[{index}]"
        if turn.role == "assistant":
            messages.append(_assistant(turn, where))
        elif turn.role == "user":
            messages += _user(turn, where)
        elif turn.role == "system":
            messages.append(
                {"role": "system", "content": _text_of(turn.content, f"{where}.content")}
            )
        else:
            raise InvalidRequest(
                f"{stands(f'{where}.role', turn.role)}; it must be one of user, assistant, system.",
                param=f"{where}.role",
            )
    return answering(messages)


def _text_of(content: Blocks, where: str) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content, where, ("text",)))


def _texts(content: list[dict[str, Any]], where: str, known: tuple[str, ...]) -> Iterator[str]:
    """Those of blocks that are text, or documents."""
    for index, block in enumerate(content):
        at = f"{where}[{index}]"
        is_text = _kind(block, at, known) == "text"
        yield _field(block, "text", at) if is_text else _document(block, at)


_ELSEWHERE = (
    *("server_tool_use", "search_tool_result", "fetch_tool_result", "execution_tool_result"),
    *("mcp_tool_use", "mcp_tool_result"),
)
"""Ends of the types of blocks that tools leave which run at the service."""
_FIELDS = {
    "text": ("text",),
    "document": ("source", "title", "context"),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    # A caller is the assistant itself: nothing else can call here.
    "tool_use": ("id", "name", "input", "caller"),
    "tool_result": ("tool_use_id", "content", "is_error"),
}


def _kind(block: dict[str, Any], where: str, known: tuple[str, ...]) -> str:
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in known:
        raise InvalidRequest(
            f"{stands(f'{where}.type', kind)}; here a block may be {', '.join(known)}. "
            "This model reads text only.",
            param=where,
        )
    refuse_unknown(block, where, _FIELDS[kind])
    return kind


def _field(block: dict[str, Any], name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{name} is not text.", param=f"{where}.{name}")
    return value


def _assistant(turn: Turn, where: str) -> Message:
    """Text, thinking and tool calls of one turn; redacted thinking says nothing to a model, and
    what tools of another service have done is left out."""
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(turn.content):
        at = f"{where}.content[{index}]"
        if str(block.get("type")).endswith(_ELSEWHERE):
            continue
        kind = _kind(block, at, ("text", "thinking", "redacted_thinking", "tool_use"))
        if kind == "text":
            texts.append(_field(block, "text", at))
        elif kind == "thinking":
            thoughts.append(_field(block, "thinking", at))
        elif kind == "tool_use":
            calls.append(_tool_use(block, at))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_use(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = object_of(block.get("input"))
    return {
        "id": _field(block, "id", where),
        "type": "function",
        "function": {"name": _field(block, "name", where), "arguments": arguments},
    }


def _user(turn: Turn, where: str) -> list[Message]:
    """Tool results become messages of their own, in order with the text around them."""
    if isinstance(turn.content, str):
        return [{"role": "user", "content": turn.content}]
    messages: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(turn.content):
        at = f"{where}.content[{index}]"
        kind = _kind(block, at, ("text", "document", "tool_result"))
        if kind != "tool_result":
            texts.append(_field(block, "text", at) if kind == "text" else _document(block, at))
            continue
        if texts:
            messages.append({"role": "user", "content": "\n".join(texts)})
            texts = []
        content = _result(block.get("content", ""), f"{at}.content")
        if block.get("is_error"):
            content = f"Error: {content}" if content else "Error"
        messages.append(
            {
                "role": "tool",
                "tool_call_id": _field(block, "tool_use_id", at),
                "content": content,
            }
        )
    if texts or not messages:
        messages.append({"role": "user", "content": "\n".join(texts)})
    return messages


def _result(content: Any, where: str) -> str:
    """What a tool has answered."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise InvalidRequest(f"{where} is neither text nor a list of blocks.", param=where)
    return "\n".join(_texts(content, where, ("text", "document")))


def _document(block: dict[str, Any], where: str) -> str:
    """A document of plain text, under its title. Raises InvalidRequest for others."""
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") != "text":
        raise InvalidRequest(
            f"{where}.source is not of type text. This model reads text only.",
            param=f"{where}.source",
        )
    text, title = _field(source, "data", f"{where}.source"), block.get("title")
    return f"{title}\n{text}" if isinstance(title, str) and title else text
