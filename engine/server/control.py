"""Health, live figures, and the few things that change the engine itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import InvalidRequest, RuntimeUnavailable
from engine.server.bodies import convert, parse_json, read_body
from engine.server.http import (
    RETRY_AFTER_S,
    EventStream,
    NotAuthorised,
    json_response,
)
from engine.server.keys import same_secret
from engine.server.ownership import Ownership
from engine.server.security import bearer_token
from engine.server.service import Service

RESIDENCY_S = 10.0
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 60.0


class Owner(msgspec.Struct, forbid_unknown_fields=True):
    pid: int


def routes(service: Service, ownership: Ownership, end: Callable[[str], None]) -> list[Route]:
    api = Control(service, ownership, end)
    return [
        Route("/", api.health, methods=["GET"]),
        Route("/health", api.health, methods=["GET"]),
        Route("/v1/engine/stats", api.stats, methods=["GET"]),
        Route("/v1/engine/stats/stream", api.stats_stream, methods=["GET"]),
        Route("/v1/engine/residency", api.residency, methods=["GET"]),
        Route("/v1/engine/owner", api.owner, methods=["POST"]),
        Route("/v1/engine/shutdown", api.shutdown, methods=["POST"]),
    ]


class Control:
    def __init__(self, service: Service, ownership: Ownership, end: Callable[[str], None]) -> None:
        self._service = service
        self._ownership = ownership
        self._end = end

    async def health(self, _request: Request) -> Response:
        """200 once the model answers; until then, and after a failure, 503 with the state."""
        link = self._service.link
        content: dict[str, Any] = {"status": link.state, "model": self._service.name}
        if link.state == "ready":
            if self._service.text_ready:
                return json_response(content)
            content["status"] = "loading"
        content |= {
            "phase": link.progress.phase,
            "done": link.progress.done,
            "total": link.progress.total,
            "unit": link.progress.unit,
        }
        if link.error is not None:
            content["error"] = {
                "code": link.error.code,
                "message": link.error.message,
                "hint": link.error.hint,
            }
        return json_response(content, 503, {"Retry-After": str(RETRY_AFTER_S)})

    async def stats(self, _request: Request) -> Response:
        return json_response(self._service.stats())

    async def stats_stream(self, request: Request) -> Response:
        raw = request.query_params.get("interval", "1")
        try:
            interval = float(raw)
        except ValueError:
            interval = -1.0
        if not MIN_INTERVAL_S <= interval <= MAX_INTERVAL_S:
            raise InvalidRequest(
                f"interval is {raw!r}; it must be from {MIN_INTERVAL_S:g} to "
                f"{MAX_INTERVAL_S:g} seconds.",
                param="interval",
            )
        return EventStream(self._stats_frames(interval))

    async def _stats_frames(self, interval: float) -> AsyncIterator[bytes]:
        while not self._service.stopping.is_set():
            yield b"data: " + msgspec.json.encode(self._service.stats()) + b"\n\n"
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._service.stopping.wait(), interval)

    async def residency(self, _request: Request) -> Response:
        try:
            # The runtime answers between steps; a long prefill chunk may come first.
            found = await asyncio.wait_for(self._service.link.residency(), RESIDENCY_S)
        except TimeoutError:
            raise RuntimeUnavailable("The runtime is busy with a long step.") from None
        return json_response(
            {
                "experts": found.experts,
                "generation": found.generation,
                "layers": [
                    {"layer": layer.layer, "resident": layer.resident} for layer in found.layers
                ],
            }
        )

    async def owner(self, request: Request) -> Response:
        self._check_token(request)
        body = convert(parse_json(await read_body(request)), Owner)
        self._ownership.adopt(body.pid)
        return json_response({"owner_pid": body.pid})

    async def shutdown(self, request: Request) -> Response:
        self._check_token(request)
        self._end("it was asked to end")
        return json_response({"status": "stopping"}, 202)

    def _check_token(self, request: Request) -> None:
        if not same_secret(bearer_token(request.headers), self._ownership.token):
            raise NotAuthorised(
                "This changes the engine and wants its control token.",
                hint="The record of this server names the file that holds the token.",
            )
