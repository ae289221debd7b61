"""OpenAI's chat completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.chat.text_model import TextModel
from engine.errors import InvalidRequest
from engine.server.bodies import convert, parse_json, read_body
from engine.server.context_limit import explained
from engine.server.generation import generate
from engine.server.openai_answers import ChatAnswer
from engine.server.openai_messages import ROLES, conversation
from engine.server.openai_requests import ChatRequest
from engine.server.openai_responding import respond, seeded
from engine.server.service import Service
from engine.server.turns import Turn, prepared


def routes(service: Service) -> list[Route]:
    return [Route("/v1/chat/completions", Chat(service).chat, methods=["POST"])]


class Chat:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def chat(self, request: Request) -> Response:
        service = self._service
        body = convert(
            parse_json(await read_body(request)),
            ChatRequest,
            null_is_absent=("messages", "stream_options", "response_format"),
            tags=ROLES,
        )
        body.check()
        messages = conversation(body.messages)
        service.check_model(body.model)
        text, ready = await service.ready()
        turn = Turn(
            messages=messages,
            sampling=body.sampling(text.defaults, ready.vocab_size),
            max_tokens=body.token_limit(),
            tools=body.tool_use(),
            variables=await service.prompts.run(request, _template_variables, body, text),
            ending=body.ending,
            thinking_tokens=body.wish().budget,
            wanted=body.wanted(),
            stop_strings=body.stop_strings(),
            ignore_eos=body.ignore_eos,
            logprobs=body.top_logprobs if body.logprobs else -1,
        )
        with explained(ready, service.link.options):
            generation = await prepared(service.prompts, request, text, ready, turn)
        choices = [
            replace(generation, sampling=seeded(generation.sampling, n)) for n in range(body.n)
        ]
        return await respond(
            service,
            request,
            [generate(service.link, text.tokenizer, choice) for choice in choices],
            ChatAnswer(text.name, text.tokenizer, logprobs=body.logprobs, n=body.n),
            stream=body.stream,
            usage_wanted=body.usage_wanted,
        )


def _template_variables(body: ChatRequest, text: TextModel) -> dict[str, Any]:
    given = text.template_variables(body.chat_template_kwargs, "chat_template_kwargs")
    sent = body.switched_off_by() or "reasoning_effort"
    wanted = text.reasoning_variables(body.wish(), sent if body.reasoning_effort else "")
    for name, value in wanted.items():
        if body.reasoning_effort and given.get(name, value) != value:
            raise InvalidRequest(
                f"{sent} and chat_template_kwargs.{name} contradict each other.", param=sent
            )
    return {**wanted, **given}
