"""What Anthropic clients read: the shapes of messages and of their stream's events."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from engine.server.blocks import Block, BlockClosed, BlockEvent, BlockGrown, BlockOpened
from engine.server.call_arguments import arguments_object
from engine.server.collected import Completed
from engine.server.generation import Ended, Started

JsonObject = dict[str, Any]
_EMPTY = Block("text", 0)


class MessageAnswer:
    """One answer's identity, and the pieces it is sent in."""

    def __init__(self, model: str, prompt_tokens: int, *, edits: bool) -> None:
        """`edits`: the client asked for edits of the context, of which none is ever applied."""
        self._extra: JsonObject = {"context_management": {"applied_edits": []}} if edits else {}
        self._prompt_tokens = prompt_tokens
        self._message: JsonObject = {
            "id": "msg_" + uuid.uuid4().hex,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Started(prompt_tokens, 0), 0, prompt_tokens),
        }

    def whole(self, done: Completed) -> JsonObject:
        return {
            **self._message,
            "content": [_content(block) for block in done.blocks or [_EMPTY]],
            **_stop(done.ended),
            **self._extra,
            "usage": _usage(done.started, done.ended.completion_tokens, self._prompt_tokens),
        }

    def start(self) -> JsonObject:
        return {"type": "message_start", "message": self._message}

    def changes(self, changes: Iterable[BlockEvent]) -> Iterator[JsonObject]:
        for change in changes:
            index = change.block.index
            match change:
                case BlockOpened():
                    yield _start(change.block)
                case BlockGrown():
                    yield _delta(index, _grown(change.block, change.text))
                case BlockClosed():
                    if change.block.kind == "reasoning":
                        signed = _signature(change.block.content)
                        yield _delta(index, {"type": "signature_delta", "signature": signed})
                    yield {"type": "content_block_stop", "index": index}

    def empty(self) -> Iterator[JsonObject]:
        """An answer of nothing is one block without text."""
        return self.changes((BlockOpened(_EMPTY), BlockClosed(_EMPTY)))

    def ending(self, started: Started, ended: Ended) -> Iterator[JsonObject]:
        usage = _usage(started, ended.completion_tokens, ended.prompt_tokens)
        yield {"type": "message_delta", "delta": _stop(ended), "usage": usage, **self._extra}
        yield {"type": "message_stop"}


def event(content: JsonObject) -> bytes:
    name = str(content["type"]).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


def _content(block: Block) -> JsonObject:
    match block.kind:
        case "reasoning":
            signature = _signature(block.content)
            return {"type": "thinking", "thinking": block.content, "signature": signature}
        case "call":
            return {**_called(block), "input": arguments_object(block.content)}
    return {"type": "text", "text": block.content}


def _start(block: Block) -> JsonObject:
    shown: JsonObject
    match block.kind:
        case "reasoning":
            shown = {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            shown = {**_called(block), "input": {}}
        case _:
            shown = {"type": "text", "text": ""}
    return {"type": "content_block_start", "index": block.index, "content_block": shown}


def _called(block: Block) -> JsonObject:
    return {"type": "tool_use", "id": "toolu_" + uuid.uuid4().hex[:24], "name": block.name}


def _grown(block: Block, text: str) -> JsonObject:
    match block.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}
    return {"type": "text_delta", "text": text}


def _delta(index: int, delta: JsonObject) -> JsonObject:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _signature(thinking: str) -> str:
    """Clients drop thoughts without one; here nobody checks it when it comes back."""
    return base64.b64encode(hashlib.sha256(thinking.encode()).digest()).decode()


def _stop(ended: Ended) -> JsonObject:
    if ended.stop_string is not None:
        reason = "stop_sequence"
    else:
        reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        reason = reasons[ended.reason]
    return {"stop_reason": reason, "stop_sequence": ended.stop_string}


def _usage(started: Started, output_tokens: int, prompt_tokens: int) -> JsonObject:
    """Anthropic counts cached prompt tokens apart from the rest."""
    return {
        "input_tokens": prompt_tokens - started.cached_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": started.cached_tokens,
    }
