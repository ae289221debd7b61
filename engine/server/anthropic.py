"""Anthropic's messages and token counting."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.chat.text_model import TextModel
from engine.errors import HeadraceError
from engine.messages import Ready
from engine.server.anthropic_requests import CountRequest, MessagesRequest, conversation
from engine.server.bodies import convert, parse_json, read_body
from engine.server.generation import (
    Ended,
    Generation,
    Opened,
    Started,
    TextDelta,
    collect,
    generate,
    opened,
)
from engine.server.http import (
    HUNG_UP,
    EventStream,
    anthropic_error,
    json_response,
    unless_hung_up,
)
from engine.server.service import Service

_NESTED = ("messages", "system", "thinking", "output_config", "context_management")
UNBOUNDED = 1 << 40
"""Counting tokens has no limit but the body's."""


def routes(service: Service) -> list[Route]:
    api = Anthropic(service)
    return [
        Route("/v1/messages", api.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", api.count_tokens, methods=["POST"]),
    ]


class Anthropic:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def messages(self, request: Request) -> Response:
        body = convert(
            parse_json(await read_body(request)), MessagesRequest, null_is_absent=_NESTED
        )
        body.check()
        messages = conversation(body.system, body.messages)
        self._service.check_model(body.model)
        text, ready = await self._service.ready()
        variables = text.effort_variables(body.effort, "output_config.effort")
        prompt = await self._service.prompts.run(
            request,
            text.chat_prompt,
            messages,
            context_tokens=ready.context_tokens,
            variables=variables,
        )
        generation = _generation(body, prompt, text, ready)
        message = _message(text.name, len(prompt))
        events = generate(self._service.link, text.tokenizer, generation)
        if body.stream:
            source = await opened(events)
            ping = _event({"type": "ping"})
            return EventStream(self._frames(source, message), ping, source)
        with self._service.served():
            async with aclosing(events):
                done = await unless_hung_up(request, collect(events))
        if done is None:
            return Response(status_code=HUNG_UP)
        return json_response(
            {
                **message,
                "content": [{"type": "text", "text": done.text}],
                **_stop(done.ended),
                "usage": _usage(done.started, done.ended.completion_tokens, len(prompt)),
            }
        )

    async def count_tokens(self, request: Request) -> Response:
        body = convert(parse_json(await read_body(request)), CountRequest, null_is_absent=_NESTED)
        body.check()
        messages = conversation(body.system, body.messages)
        self._service.check_model(body.model)
        text = await self._service.text()
        variables = text.effort_variables(body.effort, "output_config.effort")
        prompt = await self._service.counts.run(
            request, text.chat_prompt, messages, context_tokens=UNBOUNDED, variables=variables
        )
        return json_response({"input_tokens": len(prompt)})

    async def _frames(self, events: Opened, message: dict[str, Any]) -> AsyncIterator[bytes]:
        started = Started(message["usage"]["input_tokens"], 0)
        with self._service.served():
            async with aclosing(events):
                try:
                    yield _event({"type": "message_start", "message": message})
                    yield _event(
                        {
                            "type": "content_block_start",
                            "index": 0,
                            "content_block": {"type": "text", "text": ""},
                        }
                    )
                    async for event in events:
                        match event:
                            case Started():
                                started = event
                            case TextDelta() if event.text:
                                yield _text_delta(event.text)
                            case Ended():
                                yield _event({"type": "content_block_stop", "index": 0})
                                yield _message_delta(started, event)
                    yield _event({"type": "message_stop"})
                except HeadraceError as error:
                    yield _event(anthropic_error(error))


def _event(content: dict[str, Any]) -> bytes:
    name = str(content["type"]).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


def _text_delta(text: str) -> bytes:
    delta = {"type": "text_delta", "text": text}
    return _event({"type": "content_block_delta", "index": 0, "delta": delta})


def _message_delta(started: Started, ended: Ended) -> bytes:
    return _event(
        {
            "type": "message_delta",
            "delta": _stop(ended),
            "usage": _usage(started, ended.completion_tokens, ended.prompt_tokens),
        }
    )


def _message(model: str, prompt_tokens: int) -> dict[str, Any]:
    return {
        "id": "msg_" + uuid.uuid4().hex,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(Started(prompt_tokens, 0), 0, prompt_tokens),
    }


def _stop(ended: Ended) -> dict[str, Any]:
    if ended.stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = "end_turn" if ended.reason == "stop" else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": ended.stop_string}


def _usage(started: Started, output_tokens: int, prompt_tokens: int) -> dict[str, Any]:
    """Anthropic counts cached prompt tokens apart from the rest."""
    return {
        "input_tokens": prompt_tokens - started.cached_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": started.cached_tokens,
    }


def _generation(
    body: MessagesRequest, prompt: list[int], text: TextModel, ready: Ready
) -> Generation:
    return Generation(
        prompt=prompt,
        # An upper bound, as in OpenAI's protocol: cut to the room there is.
        max_tokens=min(body.max_tokens, ready.context_tokens - len(prompt)),
        sampling=body.sampling(text.defaults),
        stop_tokens=text.end_tokens,
        stop_strings=body.stop_strings(),
    )
