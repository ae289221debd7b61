"""Items of the Responses API as messages that templates read."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from engine.chat.conversation import Message
from engine.errors import InvalidRequest
from engine.server.bodies import stands
from engine.server.call_arguments import object_of
from engine.server.openai_messages import Content, plain_text, without_thinking
from engine.server.responses_tools import full_name

Item = dict[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_SILENT = ("web_search_call", "image_generation_call", "tool_search_call", "tool_search_output")
"""Traces of tools that run elsewhere, in a history that began elsewhere."""
_SEALED = "headrace:"


def sealed(reasoning: str) -> str:
    """Reasoning as the opaque text that clients who store for themselves send back."""
    return _SEALED + base64.b64encode(reasoning.encode()).decode()


def conversation(instructions: str, before: Sequence[Item], sent: Sequence[Item]) -> list[Message]:
    """The messages. `before`: the conversation that a stored response ended. Raises InvalidRequest
    naming the item at fault of those that were `sent`."""
    reading = _Reading(_calls_of([*before, *sent]))
    if instructions:
        reading.messages.append({"role": "system", "content": instructions})
    for item in before:
        reading.take(item, "previous_response_id")
    for index, item in enumerate(sent):
        reading.take(item, f"input[{index}]")
    reading.flush()
    return reading.messages


class _Reading:
    """An answer's reasoning, text and calls are items of their own, and one message here."""

    def __init__(self, calls: frozenset[str]) -> None:
        """`calls`: ids of all that are to be read."""
        self.messages: list[Message] = []
        self._answer: Message = {}
        self._calls = calls
        self._made: set[str] = set()
        self._early: dict[str, list[Message]] = {}
        """Results that came before their call: templates want them behind it."""

    def flush(self) -> None:
        answer, self._answer = self._answer, {}
        if not answer:
            return
        self.messages.append({"role": "assistant", "content": "", **answer})
        for call in answer.get("tool_calls", []):
            self.messages += self._early.pop(call["id"], [])

    def take(self, item: Item, where: str) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        match kind:
            case "message":
                self._message(item, where)
            case "reasoning":
                if self._answer.keys() - {"reasoning_content"}:
                    self.flush()
                if text := _reasoning(item):
                    self._think(text)
            case "function_call":
                self._call(item, where, object_of(item.get("arguments")))
            case "custom_tool_call":
                self._call(item, where, {"input": _text(item, "input", where)})
            case "function_call_output" | "custom_tool_call_output":
                self._result(item, where)
            case _ if kind not in _SILENT:
                raise InvalidRequest(
                    f"{stands(f'{where}.type', kind)}; no such item is known here.", param=where
                )

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise InvalidRequest(
                f"{stands(f'{where}.role', role)}; it must be one of {', '.join(_ROLES)}.",
                param=f"{where}.role",
            )
        at = f"{where}.content"
        content = _parts(item.get("content"), at)
        if role != "assistant":
            self.flush()
            self.messages.append({"role": role, "content": plain_text(content, at)})
            return
        if self._answer.keys() - {"reasoning_content"}:
            self.flush()
        content, thoughts = without_thinking(content, at)
        if thoughts:
            self._think(thoughts)
        self._answer["content"] = plain_text(content, at)

    def _think(self, text: str) -> None:
        before = self._answer.get("reasoning_content")
        self._answer["reasoning_content"] = f"{before}\n{text}" if before else text

    def _result(self, item: Item, where: str) -> None:
        call = _text(item, "call_id", where)
        if call not in self._calls:
            raise InvalidRequest(  # in the words of the service
                f"No tool call found for function call output with call_id {call}.",
                param=f"{where}.call_id",
            )
        at = f"{where}.output"
        content = plain_text(_parts(item.get("output"), at), at)
        result = {"role": "tool", "tool_call_id": call, "content": content}
        if call in self._made:
            self.flush()
            self.messages.append(result)
        else:
            self._early.setdefault(call, []).append(result)

    def _call(self, item: Item, where: str, arguments: dict[str, Any]) -> None:
        namespace = item.get("namespace")
        name = full_name(_text(item, "name", where), str(namespace or ""))
        call = _text(item, "call_id", where)
        self._made.add(call)
        self._answer.setdefault("tool_calls", []).append(
            {
                "id": call,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )


def _calls_of(items: Sequence[Item]) -> frozenset[str]:
    """Ids of calls, wherever they stand."""
    calls = (item for item in items if item.get("type") in ("function_call", "custom_tool_call"))
    return frozenset(id_ for call in calls if isinstance(id_ := call.get("call_id"), str))


def _text(item: Item, field: str, where: str) -> str:
    value = item.get(field)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{field} is not text.", param=f"{where}.{field}")
    return value


def _parts(content: Any, where: str) -> Content:
    if isinstance(content, str | None):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise InvalidRequest(f"{where} is neither text nor a list of parts.", param=where)
    return content


def _reasoning(item: Item) -> str:
    """As it was given out here; of other services' reasoning no more than a summary is known."""
    parts = item.get("content") or ()
    if isinstance(parts, str):
        return parts
    sealed_text = item.get("encrypted_content")
    if not parts and isinstance(sealed_text, str) and sealed_text.startswith(_SEALED):
        try:
            return base64.b64decode(sealed_text.removeprefix(_SEALED), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    shown = parts or item.get("summary")
    given = shown if isinstance(shown, list) else []
    texts = [part.get("text") for part in given if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
