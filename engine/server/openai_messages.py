"""The messages of OpenAI clients, and their meaning as templates read them."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from engine.chat.conversation import NOT_CONTINUED, Message
from engine.chat.templates import Ending
from engine.errors import InvalidRequest
from engine.server.call_arguments import object_of
from engine.server.nested import answering, refuse_unknown

Content = str | list[dict[str, Any]]


class _Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role"):
    content: Content = ""
    name: str = ""
    # Harmless: a caching hint of other servers, what clients number messages with, and what
    # proxies of other services hang on answers and want back.
    cache_control: Any = None
    id: str = ""
    provider_specific_fields: Any = None
    extra_content: Any = None


class SystemTurn(_Turn, tag="system", kw_only=True):
    pass


class DeveloperTurn(_Turn, tag="developer", kw_only=True):
    pass


class UserTurn(_Turn, tag="user", kw_only=True):
    pass


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: Any = "{}"
    """JSON as text, or what a client has read it as."""


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    function: CalledFunction
    id: str = ""
    type: str = "function"
    index: int = 0
    """Of a streamed call, replayed; they are in order."""
    provider_specific_fields: Any = None
    extra_content: Any = None


class AssistantTurn(_Turn, tag="assistant", kw_only=True):
    tool_calls: list[ToolCall] = []
    function_call: CalledFunction | None = None
    reasoning_content: str = ""
    reasoning: str = ""
    refusal: str = ""
    # Replayed parts of an answer that carry no text of their own.
    annotations: list[Any] = []
    reasoning_details: list[Any] = []
    thinking_blocks: list[Any] = []
    audio: Any = None


class ToolTurn(_Turn, tag="tool", kw_only=True):
    tool_call_id: str = ""


class FunctionTurn(_Turn, tag="function", kw_only=True):
    pass


ChatMessage = SystemTurn | DeveloperTurn | UserTurn | AssistantTurn | ToolTurn | FunctionTurn
ROLES = tuple(str(turn.__struct_config__.tag) for turn in get_args(ChatMessage))


def conversation(messages: list[ChatMessage]) -> list[Message]:
    """The messages as templates read them. Raises InvalidRequest naming the part at fault."""
    return answering([_message(turn, f"messages[{index}]") for index, turn in enumerate(messages)])


def ending_of(
    messages: list[ChatMessage], *, add_generation_prompt: bool | None, continued: bool
) -> Ending:
    """Where the prompt ends. Raises InvalidRequest."""
    if not continued:
        return "bare" if add_generation_prompt is False else "answer"
    if add_generation_prompt:
        raise InvalidRequest(
            "add_generation_prompt and continue_final_message exclude each other.",
            param="continue_final_message",
        )
    last = messages[-1]
    if not isinstance(last, AssistantTurn) or last.tool_calls or last.function_call:
        raise InvalidRequest(NOT_CONTINUED, param="continue_final_message")
    return "continued"


def _message(turn: ChatMessage, where: str) -> Message:
    role = str(turn.__struct_config__.tag)
    message: Message = {
        "role": "tool" if role == "function" else role,
        "content": plain_text(turn.content, f"{where}.content"),
    }
    if turn.name:
        message["name"] = turn.name
    if isinstance(turn, ToolTurn) and turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    if isinstance(turn, AssistantTurn):
        if not message["content"] and turn.refusal:
            message["content"] = turn.refusal
        if turn.reasoning_content or turn.reasoning:
            message["reasoning_content"] = turn.reasoning_content or turn.reasoning
        calls = list(turn.tool_calls)
        if turn.function_call is not None:
            calls.append(ToolCall(function=turn.function_call))
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def _tool_call(call: ToolCall) -> dict[str, Any]:
    function = call.function
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": function.name, "arguments": object_of(function.arguments)},
    }


def plain_text(content: Content, where: str) -> str:
    """Text, or the text parts joined by newlines. Raises InvalidRequest for anything else."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise InvalidRequest(
                f"{where}[{index}] is of type {kind!r}; this model reads text only.",
                param=f"{where}[{index}]",
            )
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{index}].text is not text.", param=f"{where}[{index}]")
        refuse_unknown(part, f"{where}[{index}]", ("refusal" if kind == "refusal" else "text",))
        texts.append(text)
    return "\n".join(texts)
