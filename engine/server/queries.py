"""Parameters in a request's query: as with fields of bodies, what is not known is refused, where
it could have changed the answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import InvalidRequest
from engine.server.bodies import in_range


class KnownQuery:
    """Around an endpoint: a request with a parameter that is not among `known`, its method's, is
    refused."""

    def __init__(self, app: ASGIApp, known: Mapping[str, Collection[str]]) -> None:
        self._app = app
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        # Of others the query is not read, or they are not the endpoint's, which refuses them.
        known = self._known.get(method)
        for name in QueryParams(scope["query_string"]):
            if known is not None and name not in known:
                raise InvalidRequest(
                    f'The query parameter "{name}" is not supported.',
                    hint="Leave it out. Nothing that would change the answer is ignored.",
                    param=name,
                )
        await self._app(scope, receive, send)


def whole(query: QueryParams, name: str, default: int, low: int, high: int) -> int:
    """A whole number. Raises InvalidRequest."""
    said = query.get(name)
    if said is None:
        return default
    if not said.isascii() or not said.isdigit() or len(said) > 9:
        raise InvalidRequest(f"{name} must be a whole number from {low} to {high}.", param=name)
    in_range(int(said), name, low, high)
    return int(said)


def one_of(query: QueryParams, name: str, allowed: Collection[str], default: str) -> str:
    """One of some words. Raises InvalidRequest."""
    said = query.get(name, default)
    if said not in allowed:
        raise InvalidRequest(f"{name} must be {' or '.join(allowed)}.", param=name)
    return said
