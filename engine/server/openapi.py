"""The OpenAPI 3.1 document of the endpoints, made of the records that they read and answer with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import engine
from engine.chat.sampling import RANGES
from engine.messages import Stats
from engine.server import answer_records as answers
from engine.server.anthropic_requests import CountRequest, MessagesRequest
from engine.server.bodies import LARGEST
from engine.server.choices import MAX_CHOICES
from engine.server.completions_requests import CompletionRequest
from engine.server.control import MAX_INTERVAL_S, MIN_INTERVAL_S, Owner
from engine.server.http import json_response, shapes
from engine.server.models import MAX_MODELS
from engine.server.openai_common import MAX_TOP_LOGPROBS
from engine.server.openai_requests import ChatRequest
from engine.server.responses import ITEMS, MAX_ITEMS
from engine.server.responses_requests import InputTokensRequest, ResponsesRequest
from engine.server.tokens import DetokenizeRequest, TokenizeRequest

_DESCRIPTION = (
    "A field that is null counts as absent. Fields that are not listed are refused. With "
    "`stream: true` an answer is server-sent events, in the shapes of the protocol."
)
_INTERVAL = {"type": "number", "minimum": MIN_INTERVAL_S, "maximum": MAX_INTERVAL_S, "default": 1}
_TEXT = {"type": "string"}
_BETA = {"beta": _TEXT}
"""Anthropic's client says so of what it calls beta."""
_VERSION = {"api-version": _TEXT}
"""Clients of Azure's OpenAI put it behind every path."""
_NAMES = {"type": "array", "items": _TEXT}
_INCLUDE = {"include": _NAMES, "include[]": _NAMES}
"""As OpenAI's clients ask for more of a response: what is kept is told whole."""
_ITEMS = {
    **_INCLUDE,
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS, "default": ITEMS},
    "order": {"enum": ["desc", "asc"], "default": "desc"},
    "after": _TEXT,
}
_MODELS = {
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_MODELS},
    "after_id": _TEXT,
    "before_id": _TEXT,
}
_CLIENT = {"client_version": _TEXT}
"""Codex says so which one it is."""
_BOUNDS = {
    **RANGES,
    "n": (1, MAX_CHOICES),
    "top_logprobs": (0, MAX_TOP_LOGPROBS),
    "max_tokens": (0, LARGEST),
    "max_completion_tokens": (1, LARGEST),
    "max_output_tokens": (1, LARGEST),
}


@dataclass(frozen=True)
class Operation:
    summary: str
    answer: Any = None
    """Record of the answer; None: any object."""
    body: Any = None
    """Record of the request's body; None: it has none."""
    status: int = 200
    also: tuple[int, ...] = ()
    """Further statuses that have the same answer."""
    streams: bool = False
    """Whether the answer can be server-sent events."""
    only_streams: bool = False
    text: bool = False
    """Whether the answer is plain text."""
    query: dict[str, Any] = field(default_factory=dict)
    """Schemas of parameters in the query."""
    any_query: bool = False
    """Whether others are passed over: probes and scrapers add their own."""
    control: bool = False
    """Whether it wants the control token."""


_HEALTH = Operation(
    "Whether the model answers, and how far loading is",
    answers.Health,
    also=(503,),
    any_query=True,
)
_TOKENIZE = Operation("Text to token ids", answers.Tokens, TokenizeRequest)
_DETOKENIZE = Operation("Token ids to text", answers.Detokenized, DetokenizeRequest)

OPERATIONS = {
    ("POST", "/v1/chat/completions"): Operation(
        "OpenAI chat completions", answers.ChatCompletion, ChatRequest, streams=True
    ),
    ("POST", "/v1/completions"): Operation(
        "OpenAI plain completions", answers.Completion, CompletionRequest, streams=True
    ),
    ("POST", "/v1/responses"): Operation(
        "OpenAI responses", answers.ModelResponse, ResponsesRequest, streams=True
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        "How many tokens a request's prompt has", answers.InputTokens, InputTokensRequest
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        "A response that is kept",
        answers.ModelResponse,
        query={"stream": {"const": "false"}, "include_obfuscation": _TEXT, **_INCLUDE},
    ),
    ("DELETE", "/v1/responses/{id}"): Operation("Forget a response", answers.DeletedResponse),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        "What a response answered", answers.InputItems, query=_ITEMS
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation("Refused: nothing runs in the background"),
    ("POST", "/v1/messages"): Operation(
        "Anthropic messages", answers.Message, MessagesRequest, streams=True
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "How many tokens a request's prompt has", answers.MessageTokens, CountRequest
    ),
    ("GET", "/v1/models"): Operation(
        "The model that is served", answers.ModelList, query={**_MODELS, **_BETA, **_CLIENT}
    ),
    ("GET", "/v1/models/{model}"): Operation("The same by its name", answers.Model, query=_BETA),
    ("POST", "/v1/tokenize"): _TOKENIZE,
    ("POST", "/tokenize"): _TOKENIZE,
    ("POST", "/v1/detokenize"): _DETOKENIZE,
    ("POST", "/detokenize"): _DETOKENIZE,
    ("GET", "/"): _HEALTH,
    ("GET", "/health"): _HEALTH,
    ("GET", "/openapi.json"): Operation("This document"),
    ("GET", "/metrics"): Operation(
        "Live figures as Prometheus reads them", text=True, any_query=True
    ),
    ("GET", "/v1/engine/stats"): Operation("Live figures", Stats),
    ("GET", "/v1/engine/stats/stream"): Operation(
        "Live figures as server-sent events", only_streams=True, query={"interval": _INTERVAL}
    ),
    ("GET", "/v1/engine/residency"): Operation(
        "Which experts have a slot", answers.ExpertResidency
    ),
    ("POST", "/v1/engine/owner"): Operation(
        "Name the process that owns the server", answers.OwnerAnswer, Owner, control=True
    ),
    ("POST", "/v1/engine/shutdown"): Operation(
        "End the server", answers.Stopping, status=202, control=True
    ),
}


def queries(route: Route) -> dict[str, frozenset[str]]:
    """The parameters that a query can have, by the methods of a route whose query is checked. A
    POST says all in its body, and its query is not read."""
    return {
        method: frozenset(_query(method, OPERATIONS[method, path]))
        for method, path in _offered([route])
        if method != "POST" and not OPERATIONS[method, path].any_query
    }


def _query(method: str, operation: Operation) -> dict[str, Any]:
    """Schemas of all parameters that an operation knows."""
    return {**operation.query, **({} if method == "POST" else _VERSION)}


def route(routes: Sequence[Route]) -> Route:
    """`/openapi.json`, which describes these routes and itself."""
    described = [*routes]
    made: dict[str, Any] = {}

    async def openapi(_request: Request) -> Response:
        if not made:
            made.update(document(described))
        return json_response(made)

    own = Route("/openapi.json", openapi, methods=["GET"])
    described.append(own)
    return own


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Raises KeyError for a route that OPERATIONS does not have."""
    records = [answers.Error, answers.AnthropicError]
    for operation in OPERATIONS.values():
        records += [each for each in (operation.answer, operation.body) if each is not None]
    records = list(dict.fromkeys(records))
    template = "#/components/schemas/{name}"
    references, schemas = msgspec.json.schema_components(records, ref_template=template)
    for schema in schemas.values():
        _bound(schema.get("properties", {}))
    schema_of = dict(zip(records, references, strict=True))
    paths: dict[str, Any] = {}
    for method, path in _offered(routes):
        described = _described(method, path, schema_of)
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": engine.__version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "control-token": {"type": "http", "scheme": "bearer"},
            },
        },
        # A server without keys wants none.
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
    }


def _offered(routes: Sequence[Route]) -> Iterator[tuple[str, str]]:
    for each in routes:
        for method in sorted((each.methods or set()) - {"HEAD"}):
            yield method, each.path_format


def _described(method: str, path: str, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation = OPERATIONS[method, path]
    answer = schema_of[operation.answer] if operation.answer else {"type": "object"}
    errors = [schema_of[answers.AnthropicError if each else answers.Error] for each in shapes(path)]
    error = errors[0] if len(errors) == 1 else {"anyOf": errors}
    content = {} if operation.only_streams or operation.text else _json(answer)
    if operation.text:
        content["text/plain"] = {"schema": {"type": "string"}}
    if operation.streams or operation.only_streams:
        # OpenAPI 3.1 has no word for the schema of each event.
        content["text/event-stream"] = {}
    done = {"description": operation.summary, "content": content}
    responses = {str(status): done for status in (operation.status, *operation.also)}
    responses["default"] = {"description": "Refused", "content": _json(error)}
    found: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [_parameter("path", name, {"type": "string", "minLength": 1}) for name in names]
    query = _query(method, operation)
    parameters += [_parameter("query", name, schema) for name, schema in query.items()]
    if parameters:
        found["parameters"] = parameters
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": _json(schema_of[operation.body])}
    if operation.control:
        found["security"] = [{"control-token": []}]
    return found


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _parameter(place: str, name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _bound(properties: dict[str, Any]) -> None:
    """Numbers have the bounds that requests are held to."""
    for name, (low, high) in _BOUNDS.items():
        if name in properties:
            properties[name] |= {"minimum": low, "maximum": high}
