"""Anthropic's messages and token counting."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import HeadraceError
from engine.server.anthropic_answers import MessageAnswer, event
from engine.server.anthropic_messages import conversation
from engine.server.anthropic_requests import CountRequest, MessagesRequest
from engine.server.blocks import Blocks
from engine.server.bodies import convert, parse_json, read_body
from engine.server.collected import collect
from engine.server.generation import (
    Ended,
    GenerationEvent,
    Opened,
    Started,
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
from engine.server.output import Delta
from engine.server.service import Service
from engine.server.turns import Turn, prepared, rendered

_NESTED = (
    "messages",
    "system",
    "thinking",
    "output_config",
    "context_management",
    "tool_choice",
    "thread",
)
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
        service = self._service
        body = convert(
            parse_json(await read_body(request)), MessagesRequest, null_is_absent=_NESTED
        )
        body.check()
        messages = conversation(body.system, body.messages)
        service.check_model(body.model)
        text, ready = await service.ready()
        turn = Turn(
            messages=messages,
            sampling=body.sampling(text.defaults),
            max_tokens=body.max_tokens,
            tools=body.tool_use(),
            variables=await service.prompts.run(request, text.reasoning_variables, body.wish()),
            ending=body.ending,
            thinking_tokens=body.wish().budget,
            wanted=body.wanted(),
            stop_strings=body.stop_strings(),
        )
        generation = await prepared(service.prompts, request, text, ready, turn)
        answer = MessageAnswer(
            text.name, len(generation.prompt), edits=body.context_management is not None
        )
        events = generate(service.link, text.tokenizer, generation)
        if body.stream:
            source = await opened(events)
            return EventStream(self._frames(source, answer), event({"type": "ping"}), source)
        with service.served():
            async with aclosing(events):
                done = await unless_hung_up(request, collect(events))
        if done is None:
            return Response(status_code=HUNG_UP)
        return json_response(answer.whole(done))

    async def count_tokens(self, request: Request) -> Response:
        service = self._service
        body = convert(parse_json(await read_body(request)), CountRequest, null_is_absent=_NESTED)
        body.check()
        messages = conversation(body.system, body.messages)
        service.check_model(body.model)
        text = await service.text()
        variables = await service.counts.run(request, text.reasoning_variables, body.wish())
        prompt = await rendered(
            *(service.counts, request, text, messages),
            *(body.tool_use(), variables, UNBOUNDED, body.ending),
        )
        return json_response({"input_tokens": len(prompt.tokens)})

    async def _frames(
        self, events: Opened[GenerationEvent], answer: MessageAnswer
    ) -> AsyncIterator[bytes]:
        started: Started | None = None
        blocks = Blocks()
        with self._service.served():
            async with aclosing(events):
                try:
                    yield event(answer.start())
                    async for each in events:
                        match each:
                            case Started():
                                started = each
                            case Delta():
                                for part in answer.changes(blocks.feed(each.events)):
                                    yield event(part)
                            case Ended():
                                for part in answer.changes(blocks.finish()):
                                    yield event(part)
                                for part in () if blocks.all else answer.empty():
                                    yield event(part)
                                began = started or Started(each.prompt_tokens, 0)
                                for part in answer.ending(began, each):
                                    yield event(part)
                except HeadraceError as error:
                    yield event(anthropic_error(error))
