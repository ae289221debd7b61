"""Text to token ids and back, as llama.cpp's and vLLM's users know it."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.chat.detokenizer import Detokenizer
from engine.chat.templates import Ending
from engine.errors import InvalidRequest
from engine.server.bodies import convert, parse_json, read_body
from engine.server.completions_requests import in_vocabulary
from engine.server.http import json_response
from engine.server.openai_messages import ROLES, ChatMessage, conversation, ending_of
from engine.server.openai_tools import tool_use_of
from engine.server.recording import note_token_ids
from engine.server.service import Service
from engine.server.turns import rendered

UNBOUNDED = 1 << 40
"""Counting tokens has no limit but the body's."""


class TokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One of `prompt` (with what the tokenizer puts in front), `content` (without) and `messages`
    (as the template renders them)."""

    model: str = ""
    prompt: str | None = None
    content: str | None = None
    messages: list[ChatMessage] = []
    tools: list[dict[str, Any]] = []
    chat_template_kwargs: dict[str, Any] = {}
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    """Two spellings of one switch."""
    return_token_strs: bool = False
    with_pieces: bool = False

    @property
    def ending(self) -> Ending:
        """Raises InvalidRequest."""
        return ending_of(
            self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continued=self.continue_final_message,
        )


class DetokenizeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    tokens: list[int]
    model: str = ""


def routes(service: Service) -> list[Route]:
    api = Tokens(service)
    return [
        Route(f"{prefix}/{name}", handler, methods=["POST"])
        for prefix in ("/v1", "")
        for name, handler in (("tokenize", api.tokenize), ("detokenize", api.detokenize))
    ]


class Tokens:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        body = convert(
            parse_json(await read_body(request)),
            TokenizeRequest,
            null_is_absent=("messages",),
            tags=ROLES,
        )
        if body.model:
            self._service.check_model(body.model)
        text = await self._service.text()
        with self._service.served():
            if body.messages:
                tools = tool_use_of(body.tools, "auto", several=True)
                messages = conversation(body.messages)
                ending, work = body.ending, self._service.counts
                given = (body.chat_template_kwargs, "chat_template_kwargs")
                variables = await work.run(request, text.template_variables, *given)
                prompt = await rendered(
                    *(work, request, text, messages, tools), *(variables, UNBOUNDED, ending)
                )
                tokens = prompt.tokens
            else:
                plain, special = _plain(body)
                tokens = await self._service.counts.run(
                    request, text.tokenizer.encode, plain, add_special_tokens=special
                )
        labels = [text.tokenizer.token_label(token) for token in tokens]
        ready = self._service.link.ready
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": ready.context_tokens if ready is not None else None,
            "tokens": tokens,
        }
        if body.with_pieces:
            pairs = zip(tokens, labels, strict=True)
            answer["tokens"] = [{"id": token, "piece": label} for token, label in pairs]
        if body.return_token_strs:
            answer["token_strs"] = labels
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        body = convert(parse_json(await read_body(request)), DetokenizeRequest)
        if body.model:
            self._service.check_model(body.model)
        text = await self._service.text()
        in_vocabulary(body.tokens, text.tokenizer.vocab_size, "tokens", "tokens")
        detokenizer = Detokenizer(text.tokenizer)
        note_token_ids(body.tokens, detokenizer.decode)
        decoded = detokenizer.decode(body.tokens)
        return json_response({"prompt": decoded, "content": decoded})


def _plain(body: TokenizeRequest) -> tuple[str, bool]:
    """The text, and whether it gets what the tokenizer puts in front."""
    asked = body.add_special if body.add_special_tokens is None else body.add_special_tokens
    for given, default in ((body.prompt, True), (body.content, False)):
        if given is not None:
            return given, default if asked is None else asked
    raise InvalidRequest("One of prompt, content and messages is needed.", param="prompt")
