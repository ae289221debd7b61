"""OpenAI's Responses API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.chat.reasoning import Wish
from engine.chat.text_model import TextModel
from engine.errors import HeadraceError, InvalidRequest
from engine.server.blocks import Blocks
from engine.server.bodies import convert, parse_json, read_body, stands
from engine.server.context_limit import explained
from engine.server.generation import (
    Ended,
    GenerationEvent,
    Opened,
    Started,
    generate,
    opened,
)
from engine.server.http import HUNG_UP, EventStream, json_response, unless_hung_up
from engine.server.output import Delta
from engine.server.queries import one_of, whole
from engine.server.recording import note_unseen
from engine.server.responses_answers import JsonObject, ResponseAnswer
from engine.server.responses_input import Item, conversation
from engine.server.responses_requests import InputTokensRequest, ResponsesRequest
from engine.server.responses_store import ResponseStore
from engine.server.service import Service
from engine.server.turns import Turn, prepared, rendered

_NESTED = ("input", "tools", "reasoning", "text", "stream_options", "tool_choice")
UNBOUNDED = 1 << 40
ITEMS, MAX_ITEMS = 20, 100
"""Of a response's input that are listed at once."""


def routes(service: Service) -> list[Route]:
    api = Responses(service)
    return [
        Route("/v1/responses", api.create, methods=["POST"]),
        Route("/v1/responses/input_tokens", api.count, methods=["POST"]),
        Route("/v1/responses/{id}", api.one, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/input_items", api.input_items, methods=["GET"]),
        Route("/v1/responses/{id}/cancel", api.cancel, methods=["POST"]),
    ]


class Responses:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = ResponseStore()

    async def create(self, request: Request) -> Response:
        service = self._service
        body = convert(
            parse_json(await read_body(request)), ResponsesRequest, null_is_absent=_NESTED
        )
        body.check()
        before, sent = self._items(body)
        messages = conversation(body.instructions, before, sent)
        service.check_model(body.model)
        text, ready = await service.ready()
        tools = body.response_tools()
        with _about_input():
            variables = await service.prompts.run(request, _variables, body, text)
        turn = Turn(
            messages=messages,
            sampling=body.sampling(text.defaults),
            max_tokens=body.max_output_tokens,
            tools=tools.use,
            variables=variables,
            wanted=body.wanted(),
            logprobs=body.logprobs,
        )
        with _about_input(), explained(ready, service.link.options):
            generation = await prepared(service.prompts, request, text, ready, turn)
        events = generate(service.link, text.tokenizer, generation)
        answer = ResponseAnswer(body, text.name, tools, text.tokenizer)

        def keep() -> None:
            if body.store:
                self._store.put(answer.response, before, sent)

        if body.stream:
            source = await opened(events)
            return EventStream(self._frames(source, answer, keep), source=source)
        with service.served():
            async with aclosing(events):
                done = await unless_hung_up(request, _whole(events, answer))
        if done is None:
            return Response(status_code=HUNG_UP)
        keep()
        return json_response(done)

    async def count(self, request: Request) -> Response:
        """How many tokens a request's prompt has."""
        service = self._service
        body = convert(
            parse_json(await read_body(request)), InputTokensRequest, null_is_absent=_NESTED
        )
        body.check()
        before, sent = self._items(body)
        messages = conversation(body.instructions, before, sent)
        service.check_model(body.model)
        text = await service.text()
        with service.served(), _about_input():
            use = body.response_tools().use
            variables = await service.counts.run(request, _variables, body, text)
            prompt = await rendered(
                *(service.counts, request, text, messages, use), *(variables, UNBOUNDED)
            )
        return json_response(
            {"object": "response.input_tokens", "input_tokens": len(prompt.tokens)}
        )

    async def one(self, request: Request) -> Response:
        id_ = request.path_params["id"]
        if request.method == "DELETE":
            self._store.delete(id_)
            return json_response({"id": id_, "object": "response", "deleted": True})
        kept = self._store.get(id_).response
        if one_of(request.query_params, "stream", ("false", "true"), "false") == "true":
            raise InvalidRequest(
                "A response that is kept is not streamed again.",
                hint="Leave stream out: it is told as a whole.",
                param="stream",
            )
        return json_response(kept)

    async def input_items(self, request: Request) -> Response:
        sent = self._store.get(request.path_params["id"]).input
        query = request.query_params
        limit = whole(query, "limit", ITEMS, 1, MAX_ITEMS)
        items = [
            {"id": f"item_{index}", "type": "message", **each} for index, each in enumerate(sent)
        ]
        if one_of(query, "order", ("desc", "asc"), "desc") == "desc":
            items.reverse()
        if "after" in query:
            ids = [item["id"] for item in items]
            if query["after"] not in ids:
                raise InvalidRequest("after names no item of this response.", param="after")
            items = items[ids.index(query["after"]) + 1 :]
        page = items[:limit]
        ends = {
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
        }
        more = len(items) > limit
        return json_response({"object": "list", "data": page, "has_more": more, **ends})

    async def cancel(self, request: Request) -> Response:
        self._store.get(request.path_params["id"])
        raise InvalidRequest(
            "Only background responses can be cancelled, and there are none here; a stream ends "
            "when its connection is closed.",
            param="response_id",
        )

    def _items(self, body: InputTokensRequest) -> tuple[list[Item], list[Item]]:
        """The conversation that a request goes on from, and what it adds."""
        before: list[Item] = []
        if body.previous_response_id is not None:
            note_unseen()
            before = self._store.previous(body.previous_response_id).conversation
        if isinstance(body.input, str):
            return before, [{"type": "message", "role": "user", "content": body.input}]
        sent = [self._resolved(item, f"input[{at}]") for at, item in enumerate(body.input)]
        if not before and not sent:
            raise InvalidRequest("input is empty; send at least one item.", param="input")
        return before, sent

    def _resolved(self, item: Item, where: str) -> Item:
        kind, id_ = item.get("type"), item.get("id")
        if kind != "item_reference" and not (kind is None and "role" not in item):
            return item
        note_unseen()
        found = self._store.item(id_) if isinstance(id_, str) else None
        if found is None:
            raise InvalidRequest(
                f"{where} refers to an item that is not stored here: {stands('its id', id_)}.",
                param=where,
            )
        return found

    async def _frames(
        self, events: Opened[GenerationEvent], answer: ResponseAnswer, keep: Callable[[], None]
    ) -> AsyncIterator[bytes]:
        with self._service.served():
            async with aclosing(events):
                try:
                    async for part in _parts(events, answer):
                        if part.get("response") is answer.response:
                            keep()  # before a client can refer to it
                        yield _event(part)
                except HeadraceError as error:
                    yield _event(answer.failing(error))


async def _parts(
    events: AsyncIterator[GenerationEvent], answer: ResponseAnswer
) -> AsyncGenerator[JsonObject, None]:
    started: Started | None = None
    blocks = Blocks()
    for part in answer.starting():
        yield part
    async for event in events:
        match event:
            case Started():
                started = event
            case Delta():
                for part in answer.changes(blocks.feed(event.events), event.tokens):
                    yield part
            case Ended():
                cut = event.reason == "length"
                for part in answer.changes(blocks.finish(), cut=cut):
                    yield part
                for part in answer.ending(started or Started(event.prompt_tokens, 0), event):
                    yield part


async def _whole(events: AsyncIterator[GenerationEvent], answer: ResponseAnswer) -> JsonObject:
    async for _ in _parts(events, answer):
        pass
    return answer.response


@contextlib.contextmanager
def _about_input() -> Iterator[None]:
    """Around what makes a prompt: what is wrong with the messages is wrong with the input here."""
    try:
        yield
    except HeadraceError as error:
        error.param = "input" if error.param == "messages" else error.param
        raise


def _event(content: JsonObject) -> bytes:
    name = str(content["type"]).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(content) + b"\n\n"


def _variables(body: InputTokensRequest, text: TextModel) -> dict[str, Any]:
    return text.reasoning_variables(Wish(effort=body.reasoning.effort or ""), "reasoning.effort")
