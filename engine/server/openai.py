"""OpenAI's chat completions, completions and model list."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.chat.text_model import TextModel, fitting
from engine.errors import HeadraceError, InvalidRequest
from engine.messages import Ready
from engine.server.bodies import convert, parse_json, read_body
from engine.server.context_limit import explained
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
    json_response,
    openai_error,
    unless_hung_up,
)
from engine.server.openai_answers import Answer, ChatAnswer, CompletionAnswer
from engine.server.openai_requests import ROLES, ChatRequest, CompletionRequest, conversation
from engine.server.service import Service

COMPLETION_TOKENS = 16
"""OpenAI's default for /v1/completions; chat has none."""


def routes(service: Service) -> list[Route]:
    api = OpenAI(service)
    return [
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/models", api.models, methods=["GET"]),
        Route("/v1/models/{model:path}", api.model, methods=["GET"]),
    ]


class OpenAI:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Response:
        body = convert(
            parse_json(await read_body(request)),
            ChatRequest,
            null_is_absent=("messages", "stream_options", "response_format"),
            tags=ROLES,
        )
        body.check()
        messages = conversation(body.messages)
        self._service.check_model(body.model)
        text, ready = await self._service.ready()
        variables = _template_variables(body, text)
        with explained(ready, self._service.link.options):
            prompt = await self._service.prompts.run(
                request,
                text.chat_prompt,
                messages,
                context_tokens=ready.context_tokens,
                variables=variables,
            )
        generation = _generation(
            body,
            prompt,
            limit=body.token_limit(),
            logprobs=body.top_logprobs if body.logprobs else -1,
            text=text,
            ready=ready,
        )
        answer = ChatAnswer(text.name, text.tokenizer, logprobs=body.logprobs)
        return await self._respond(request, body, generation, answer)

    async def completions(self, request: Request) -> Response:
        body = convert(
            parse_json(await read_body(request)),
            CompletionRequest,
            null_is_absent=("stream_options",),
        )
        body.check()
        self._service.check_model(body.model)
        text, ready = await self._service.ready()
        single = body.single_prompt(ready.vocab_size)
        with explained(ready, self._service.link.options):
            if isinstance(single, str):
                prompt = await self._service.prompts.run(
                    request, text.text_prompt, single, context_tokens=ready.context_tokens
                )
            else:
                prompt = fitting(single, ready.context_tokens, "prompt")
        generation = _generation(
            body,
            prompt,
            limit=COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens,
            logprobs=-1 if body.logprobs is None else body.logprobs,
            text=text,
            ready=ready,
        )
        answer = CompletionAnswer(text.name, text.tokenizer, logprobs=body.logprobs is not None)
        return await self._respond(request, body, generation, answer)

    async def models(self, _request: Request) -> Response:
        entry = self._entry()
        # has_more and the ids are what Anthropic's client reads of the same list.
        ends = {"has_more": False, "first_id": entry["id"], "last_id": entry["id"]}
        return json_response({"object": "list", "data": [entry], **ends})

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["model"])
        return json_response(self._entry())

    def _entry(self) -> dict[str, Any]:
        """The model in a shape that is OpenAI's and Anthropic's at once."""
        ready = self._service.link.ready
        created = self._service.created
        return {
            "id": self._service.name,
            "object": "model",
            "created": created,
            "owned_by": "headrace",
            "type": "model",
            "display_name": self._service.name,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(created)),
            "context_length": ready.context_tokens if ready is not None else None,
        }

    async def _respond(
        self,
        request: Request,
        body: ChatRequest | CompletionRequest,
        generation: Generation,
        answer: Answer,
    ) -> Response:
        events = generate(self._service.link, answer.tokenizer, generation)
        if body.stream:
            source = await opened(events)
            frames = self._frames(source, answer, usage_wanted=body.usage_wanted)
            return EventStream(frames, source=source)
        with self._service.served():
            async with aclosing(events):
                done = await unless_hung_up(request, collect(events))
        if done is None:
            return Response(status_code=HUNG_UP)
        return json_response(answer.whole(done.text, done.tokens, done.started, done.ended))

    async def _frames(
        self,
        events: Opened,
        answer: Answer,
        *,
        usage_wanted: bool,
    ) -> AsyncIterator[bytes]:
        # Where usage is wanted every chunk has the field, and the last one has it filled.
        extra = {"usage": None} if usage_wanted else {}
        started = Started(0, 0)
        with self._service.served():
            async with aclosing(events):
                try:
                    for chunk in answer.opening():
                        yield _data({**chunk, **extra})
                    async for event in events:
                        match event:
                            case Started():
                                started = event
                            case TextDelta():
                                yield _data({**answer.delta(event), **extra})
                            case Ended():
                                yield _data({**answer.ending(event), **extra})
                                if usage_wanted:
                                    yield _data(answer.usage_chunk(started, event))
                    yield b"data: [DONE]\n\n"
                except HeadraceError as error:
                    # Without [DONE], because the answer is not complete.
                    yield _data(openai_error(error))


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def _template_variables(body: ChatRequest, text: TextModel) -> dict[str, Any]:
    text.check_read(body.chat_template_kwargs, "chat_template_kwargs")
    variables = text.effort_variables(body.reasoning_effort, "reasoning_effort")
    for name, value in variables.items():
        if body.chat_template_kwargs.get(name, value) != value:
            raise InvalidRequest(
                f"reasoning_effort {body.reasoning_effort!r} and chat_template_kwargs.{name} "
                "contradict each other.",
                param="reasoning_effort",
            )
    return {**body.chat_template_kwargs, **variables}


def _generation(
    body: ChatRequest | CompletionRequest,
    prompt: list[int],
    *,
    limit: int | None,
    logprobs: int,
    text: TextModel,
    ready: Ready,
) -> Generation:
    # max_tokens is an upper bound, so more than the context holds is no fault: clients set it once
    # for every model. The answer then ends with finish_reason `length`.
    room = ready.context_tokens - len(prompt)
    return Generation(
        prompt=prompt,
        max_tokens=room if limit is None else min(limit, room),
        sampling=body.sampling(text.defaults, ready.vocab_size),
        stop_tokens=() if body.ignore_eos else text.end_tokens,
        stop_strings=body.stop_strings(),
        logprobs=logprobs,
    )
