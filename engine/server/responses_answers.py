"""What clients of the Responses API read: the response object and the events it is streamed in."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.chat.tokenizer import Tokenizer
from engine.errors import HeadraceError
from engine.server.blocks import Block, BlockClosed, BlockEvent, BlockGrown, BlockOpened
from engine.server.call_arguments import arguments_object
from engine.server.generation import Ended, Started
from engine.server.http import sentence
from engine.server.openai_answers import call_id, logprob_entries
from engine.server.output import TokenText
from engine.server.responses_input import sealed
from engine.server.responses_requests import ENCRYPTED, ResponsesRequest
from engine.server.responses_tools import Origin, ResponseTools

JsonObject = dict[str, Any]
_PREFIX = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


@dataclass
class _Item:
    """A block as an output item."""

    block: Block
    id: str
    origin: Origin
    call_id: str = ""
    logprobs: list[JsonObject] = field(default_factory=list)

    @property
    def place(self) -> JsonObject:
        return {"item_id": self.id, "output_index": self.block.index}

    def shown(self, status: str, *, filled: bool, seal: bool = False) -> JsonObject:
        """`filled`: with its content; `seal`: reasoning also as text to be sent back."""
        content = self.block.content if filled else ""
        common = {"id": self.id, "status": status}
        if self.block.kind == "text":
            parts = [self.text_part(content)] if filled else []
            return {**common, "type": "message", "role": "assistant", "content": parts}
        if self.block.kind == "reasoning":
            parts = [{"type": "reasoning_text", "text": content}] if filled else []
            seals = {"encrypted_content": sealed(content)} if seal and filled else {}
            return {**common, "type": "reasoning", "summary": [], "content": parts, **seals}
        called = {**common, "call_id": self.call_id, "name": self.origin.name}
        if self.origin.namespace:
            called["namespace"] = self.origin.namespace
        if self.origin.custom:
            return {**called, "type": "custom_tool_call", "input": self.text_input(content)}
        return {**called, "type": "function_call", "arguments": content}

    def text_part(self, text: str) -> JsonObject:
        logprobs = self.logprobs if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def text_input(self, arguments: str) -> str:
        """What a custom tool gets: the one argument that the model was told of."""
        value = arguments_object(arguments).get("input", "")
        return value if isinstance(value, str) else arguments


class ResponseAnswer:
    """One response's identity, what of it is there, and the events that tell of it."""

    def __init__(
        self, body: ResponsesRequest, model: str, tools: ResponseTools, tokenizer: Tokenizer
    ) -> None:
        self._tools = tools
        self._tokenizer = tokenizer
        self._seal = ENCRYPTED in body.include
        self._logprobs = body.logprobs >= 0
        self._numbers = 0
        self._items: list[_Item] = []
        self._done: list[JsonObject] = []
        self.response: JsonObject = {
            "id": "resp_" + uuid.uuid4().hex,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions or None,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata,
            "model": model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": body.previous_response_id,
            "reasoning": {
                "effort": body.reasoning.effort,
                "summary": body.reasoning.summary or None,
            },
            "store": body.store,
            "temperature": body.temperature,
            "text": {"format": body.text.format, "verbosity": body.text.verbosity},
            "tool_choice": body.tool_choice,
            "tools": body.tools,
            "top_logprobs": body.top_logprobs,
            "top_p": body.top_p,
            "truncation": body.truncation,
            "usage": None,
            "user": body.user or None,
        }

    def starting(self) -> Iterator[JsonObject]:
        yield self._event("response.created", response=dict(self.response))
        yield self._event("response.in_progress", response=dict(self.response))

    def changes(
        self, changes: Iterable[BlockEvent], tokens: tuple[TokenText, ...] = (), cut: bool = False
    ) -> Iterator[JsonObject]:
        """`tokens`: of the text among the changes. `cut`: what closes is not at its end."""
        logprobs = logprob_entries(self._tokenizer, tokens) if self._logprobs else []
        for change in changes:
            match change:
                case BlockOpened():
                    yield from self._open(change.block)
                case BlockGrown():
                    item = self._items[change.block.index]
                    if change.block.kind == "text":
                        item.logprobs += logprobs
                    yield from self._grow(item, change.text, logprobs)
                    logprobs = []
                case BlockClosed():
                    yield from self._close(self._items[change.block.index], cut=cut)
        if logprobs and self._items and self._items[-1].block.kind == "text":
            self._items[-1].logprobs += logprobs  # of tokens at the end that have no text

    def ending(self, started: Started, ended: Ended) -> Iterator[JsonObject]:
        """Of an answer whose blocks are closed: it is one empty message where there are none."""
        if not self._items:
            nothing = Block("text", 0)
            yield from self.changes((BlockOpened(nothing), BlockClosed(nothing)))
        cut = ended.reason == "length"
        self.response |= {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "completed_at": None if cut else int(time.time()),
            "output": self._done,
            "usage": _usage(started, ended),
        }
        kind = "response.incomplete" if cut else "response.completed"
        yield self._event(kind, response=self.response)

    def failing(self, error: HeadraceError) -> JsonObject:
        self.response |= {
            "status": "failed",
            "error": {"code": error.code, "message": sentence(error)},
            "output": self._done,
        }
        return self._event("response.failed", response=self.response)

    def _open(self, block: Block) -> Iterator[JsonObject]:
        origin = self._tools.origin(block.name)
        prefix = "ctc_" if block.kind == "call" and origin.custom else _PREFIX[block.kind]
        item = _Item(block, prefix + uuid.uuid4().hex, origin)
        if block.kind == "call":
            item.call_id = call_id()
        self._items.append(item)
        yield self._event(
            "response.output_item.added",
            output_index=block.index,
            item=item.shown("in_progress", filled=False),
        )
        if block.kind != "call":
            yield self._event(
                "response.content_part.added",
                **item.place,
                content_index=0,
                part=_part(item, ""),
            )

    def _grow(self, item: _Item, text: str, logprobs: list[JsonObject]) -> Iterator[JsonObject]:
        if item.block.kind == "text":
            yield self._event(
                "response.output_text.delta",
                **item.place,
                content_index=0,
                delta=text,
                logprobs=logprobs,
            )
        elif item.block.kind == "reasoning":
            yield self._event(
                "response.reasoning_text.delta", **item.place, content_index=0, delta=text
            )
        elif not item.origin.custom:  # a custom tool's input is known when it is whole
            yield self._event("response.function_call_arguments.delta", **item.place, delta=text)

    def _close(self, item: _Item, *, cut: bool) -> Iterator[JsonObject]:
        content = item.block.content
        if item.block.kind == "call":
            yield from self._close_call(item)
        else:
            done, more = "response.reasoning_text.done", {}
            if item.block.kind == "text":
                done, more = "response.output_text.done", {"logprobs": item.logprobs}
            yield self._event(done, **item.place, content_index=0, text=content, **more)
            yield self._event(
                "response.content_part.done",
                **item.place,
                content_index=0,
                part=_part(item, content),
            )
        status = "incomplete" if cut or not item.block.complete else "completed"
        shown = item.shown(status, filled=True, seal=self._seal)
        self._done.append(shown)
        yield self._event("response.output_item.done", output_index=item.block.index, item=shown)

    def _close_call(self, item: _Item) -> Iterator[JsonObject]:
        if item.origin.custom:
            text = item.text_input(item.block.content)
            kind = "response.custom_tool_call_input"
            yield self._event(f"{kind}.delta", **item.place, delta=text)
            yield self._event(f"{kind}.done", **item.place, input=text)
            return
        yield self._event(
            "response.function_call_arguments.done",
            **item.place,
            name=item.origin.name,
            arguments=item.block.content,
        )

    def _event(self, kind: str, **fields: Any) -> JsonObject:
        number, self._numbers = self._numbers, self._numbers + 1
        return {"type": kind, "sequence_number": number, **fields}


def _part(item: _Item, text: str) -> JsonObject:
    if item.block.kind == "text":
        return item.text_part(text)
    return {"type": "reasoning_text", "text": text}


def _usage(started: Started, ended: Ended) -> JsonObject:
    return {
        "input_tokens": ended.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": started.cached_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": ended.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
        "total_tokens": ended.prompt_tokens + ended.completion_tokens,
    }
