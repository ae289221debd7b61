"""What Anthropic clients send: the records, their checks, and their meaning in the engine's terms.

As with OpenAI's, a field works, or is harmless and accepted, or is refused by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.chat.conversation import Message
from engine.errors import InvalidRequest
from engine.messages import Sampling
from engine.server.bodies import in_range, sampling_in_range
from engine.server.nested import CONTINUED, answering, refuse_unknown
from engine.server.openai_requests import checked_stops

Blocks = str | list[dict[str, Any]]


class Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    role: str
    content: Blocks


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of messages and of count_tokens."""

    model: str
    messages: list[Turn]
    system: Blocks = ""
    # Refused unless they ask for what happens anyway.
    tools: list[dict[str, Any]] = []
    tool_choice: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "auto"})
    thinking: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "disabled"})
    mcp_servers: list[Any] = []
    output_config: dict[str, Any] = {}
    """Its effort works where the template knows one."""
    # Harmless: hints about caching; context edits only when there are none.
    cache_control: Any = None
    context_management: dict[str, Any] = {}

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        if not self.messages:
            raise InvalidRequest("messages is empty; send at least one.", param="messages")
        choice = self.tool_choice.get("type")
        # With "none" the model is not told of the tools, so that it cannot call one.
        if self.tools and choice != "none":
            raise InvalidRequest("tools is not supported yet.", param="tools")
        if choice not in ("none", "auto"):
            raise InvalidRequest(
                f"tool_choice {choice!r} is not supported yet.", param="tool_choice"
            )
        if self.thinking.get("type") != "disabled":
            raise InvalidRequest(
                f"thinking {self.thinking.get('type')!r} is not supported yet.", param="thinking"
            )
        refuse_unknown(self.tool_choice, "tool_choice", ("disable_parallel_tool_use",))
        refuse_unknown(self.thinking, "thinking", ("budget_tokens", "display"))
        refuse_unknown(self.context_management, "context_management", ("edits",))
        if self.mcp_servers:
            raise InvalidRequest("mcp_servers is not supported.", param="mcp_servers")
        if self.context_management.get("edits"):
            raise InvalidRequest(
                "context_management edits are not supported.", param="context_management"
            )
        for key in self.output_config:
            if key != "effort":
                raise InvalidRequest(
                    f"output_config.{key} is not supported.", param=f"output_config.{key}"
                )
        effort = self.output_config.get("effort", "")
        if not isinstance(effort, str):
            raise InvalidRequest("output_config.effort is not text.", param="output_config.effort")

    @property
    def effort(self) -> str:
        return str(self.output_config.get("effort", ""))


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] = []
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # Harmless.
    metadata: dict[str, Any] = {}
    service_tier: str = ""
    container: Any = None
    """Only absent or null: there is nowhere to run code."""

    def check(self) -> None:
        super().check()
        in_range(self.max_tokens, "max_tokens", 1)
        sampling_in_range(self)
        self.stop_strings()
        if self.messages[-1].role == "assistant":
            raise InvalidRequest(
                CONTINUED,
                param=f"messages.{len(self.messages) - 1}.role",
            )
        if self.container is not None:
            raise InvalidRequest("container is not supported.", param="container")

    def stop_strings(self) -> tuple[str, ...]:
        return checked_stops(self.stop_sequences, "stop_sequences")

    def sampling(self, defaults: Sampling) -> Sampling:
        chosen = {
            "temperature": self.temperature,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "top_p": self.top_p,
        }
        return msgspec.structs.replace(
            defaults, **{name: value for name, value in chosen.items() if value is not None}
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
                f"{where}.role is {turn.role!r}; user, assistant and system are known.",
                param=f"{where}.role",
            )
    return answering(messages)


def _text_of(content: Blocks, where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(
        _field(block, "text", f"{where}[{index}]")
        for index, block in enumerate(content)
        if _kind(block, f"{where}[{index}]", ("text",))
    )


_FIELDS = {
    "text": ("text",),
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
            f"{where} is of type {kind!r}; here a block may be {', '.join(known)}. "
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
    """Text, thinking and tool calls of one turn; redacted thinking says nothing to a model."""
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(turn.content):
        at = f"{where}.content[{index}]"
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
    arguments = block.get("input", {})
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{where}.input is not an object.", param=f"{where}.input")
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
        if _kind(block, at, ("text", "tool_result")) == "text":
            texts.append(_field(block, "text", at))
            continue
        if texts:
            messages.append({"role": "user", "content": "\n".join(texts)})
            texts = []
        content = _text_of(block.get("content", ""), f"{at}.content")
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
