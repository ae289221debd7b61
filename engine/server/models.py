"""The model list, in a shape that is OpenAI's and Anthropic's at once."""

from __future__ import annotations

import time
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InvalidRequest
from engine.server.http import json_response
from engine.server.queries import whole
from engine.server.service import Service

MAX_MODELS = 1000
"""Of a list, in Anthropic's protocol."""


def routes(service: Service) -> list[Route]:
    listed = Models(service)
    return [
        Route("/v1/models", listed.models, methods=["GET"]),
        Route("/v1/models/{model:path}", listed.model, methods=["GET"]),
    ]


class Models:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def models(self, request: Request) -> Response:
        query, entries = request.query_params, [self._entry()]
        whole(query, "limit", 1, 1, MAX_MODELS)
        for cursor in ("after_id", "before_id"):
            if cursor in query:
                if query[cursor] != self._service.name:
                    raise InvalidRequest(f"{cursor} names no model of the list.", param=cursor)
                entries = []
        # has_more and the ids are what Anthropic's client reads of the same list.
        id_ = entries[0]["id"] if entries else None
        ends = {"has_more": False, "first_id": id_, "last_id": id_}
        return json_response({"object": "list", "data": entries, **ends})

    async def model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not name:
            raise HTTPException(404)  # a slash too many, of which the hint tells
        self._service.check_model(name)
        return json_response(self._entry())

    def _entry(self) -> dict[str, Any]:
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
            "reasoning_efforts": self._service.efforts,
            "context_length": ready.context_tokens if ready is not None else None,
        }
