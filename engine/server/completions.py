"""OpenAI's plain completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.chat.detokenizer import Detokenizer
from engine.chat.parsers.families import PLAIN
from engine.chat.structured import structured_answer
from engine.chat.text_model import TextModel, fitting
from engine.messages import Ready
from engine.server.bodies import convert, parse_json, read_body
from engine.server.completions_answers import CompletionAnswer
from engine.server.completions_requests import CompletionRequest, Prompt
from engine.server.context_limit import explained
from engine.server.generation import Ended, Generation, GenerationEvent, Started, generate
from engine.server.openai_responding import respond, seeded
from engine.server.recording import note_token_ids
from engine.server.service import Service

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens here; chat has none."""


def routes(service: Service) -> list[Route]:
    return [Route("/v1/completions", Completions(service).completions, methods=["POST"])]


class Completions:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def completions(self, request: Request) -> Response:
        service = self._service
        body = convert(
            parse_json(await read_body(request)),
            CompletionRequest,
            null_is_absent=("stream_options",),
        )
        body.check()
        service.check_model(body.model)
        text, ready = await service.ready()
        given = body.prompts(ready.vocab_size)
        with explained(ready, service.link.options):
            prompts = [
                await self._tokens(request, text, prompt, ready.context_tokens) for prompt in given
            ]
        sources = [
            self._source(body, text, ready, prompt, choice)
            for prompt in prompts
            for choice in range(body.n)
        ]
        answer = CompletionAnswer(
            text.name,
            text.tokenizer,
            logprobs=body.logprobs is not None,
            n=body.n,
            echoes=[_text(text, prompt) for prompt in given] if body.echo else (),
        )
        return await respond(
            service,
            request,
            sources,
            answer,
            stream=body.stream,
            usage_wanted=body.usage_wanted,
        )

    async def _tokens(
        self, request: Request, text: TextModel, prompt: Prompt, context_tokens: int
    ) -> list[int]:
        if isinstance(prompt, str):
            return await self._service.prompts.run(
                request, text.text_prompt, prompt, context_tokens=context_tokens
            )
        tokens = fitting(prompt, context_tokens, "prompt")
        note_token_ids(tokens, Detokenizer(text.tokenizer).decode)
        return tokens

    def _source(
        self, body: CompletionRequest, text: TextModel, ready: Ready, prompt: list[int], choice: int
    ) -> AsyncGenerator[GenerationEvent, None]:
        if body.max_tokens == 0:
            return _nothing(len(prompt))
        limit = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
        wanted = body.wanted()
        special = text.tokenizer.special
        generation = Generation(
            prompt=prompt,
            max_tokens=min(limit, ready.context_tokens - len(prompt)),
            sampling=seeded(body.sampling(text.defaults, ready.vocab_size), choice),
            stop_tokens=() if body.ignore_eos else text.end_tokens,
            stop_strings=body.stop_strings(),
            logprobs=-1 if body.logprobs is None else body.logprobs,
            grammar=structured_answer(PLAIN, wanted, special, "none") if wanted else "",
        )
        return generate(self._service.link, text.tokenizer, generation)


def _text(text: TextModel, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else Detokenizer(text.tokenizer).decode(prompt)


async def _nothing(prompt_tokens: int) -> AsyncGenerator[GenerationEvent, None]:
    """An answer of no tokens, for which the model need not run."""
    yield Started(prompt_tokens, 0)
    yield Ended("length", None, prompt_tokens, 0)
