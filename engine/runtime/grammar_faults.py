"""Why a grammar cannot be compiled, and where in a JSON schema the fault lies."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import llguidance
import msgspec

from engine.errors import InvalidRequest
from engine.messages import GrammarDocument
from engine.schemas import apart, at, reference, step, target, without_root

LIMITS = llguidance.LLParserLimits(verbose_errors=False)
SEARCH_SECONDS = 2.0
"""A fault's place is told as exactly as it can be found in this time."""
MAX_CHARS = 400
"""Of a place or a sentence that is told."""
_MAPS = ("properties", "patternProperties")
_LISTS = ("prefixItems", "items", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties")


def fault_of(document: GrammarDocument, said: str) -> InvalidRequest:
    """The error for a document of which the compiler `said` what is wrong."""
    for source in document.sources:
        found = None if source.json_schema is None else fault_in_schema(source.json_schema)
        if found is not None:
            place, why = found
            if len(place) > MAX_CHARS:
                place = place[:MAX_CHARS] + "..."
            where = f"at {place}" if place else "at its top"
            return InvalidRequest(
                f"{source.what} cannot be compiled, {where}: {why}", param=source.param
            )
    what, param = "The grammar", "grammar"
    if document.sources:
        what, param = document.sources[0].what, document.sources[0].param
    return InvalidRequest(f"{what} cannot be compiled: {_told(said)}", param=param)


def fault_in_schema(schema: Any) -> tuple[str, str] | None:
    """The smallest part that fails, as a JSON pointer (RFC 6901), and what is wrong with it."""
    search = _Search(schema)
    why = search.failure("")
    return (search.smallest("", why) or ("", why)) if why else None


class _Search:
    def __init__(self, schema: Any) -> None:
        self._schema = schema
        self._deadline = time.monotonic() + SEARCH_SECONDS
        self._seen: set[str] = set()
        defined = msgspec.json.encode(apart(schema)).decode()
        self._head = f'{{"grammars":[{{"json_schema":{defined[:-1]},"$ref":'

    def failure(self, place: str) -> str:
        """What the compiler says of the part at this pointer; "" if it takes it."""
        if time.monotonic() > self._deadline:
            return ""
        grammar = f"{self._head}{json.dumps(reference(place))}}}}}]}}"
        failed, said = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
        return _told(said[0]) if failed else ""

    def smallest(self, place: str, why: str) -> tuple[str, str] | None:
        """The fault in the part at `place`, which fails with `why`. None if it only leads back to
        another part."""
        self._seen.add(place)
        for part in self._parts(place):
            said = "" if part in self._seen else self.failure(part)
            found = self.smallest(part, said) if said else None
            if found is not None:
                return found
        return None if target(at(self._schema, place)) in self._seen else (place, why)

    def _parts(self, place: str) -> Iterator[str]:
        """Pointers to the schemas that the one at `place` is made of."""
        schema = at(self._schema, place)
        if not isinstance(schema, dict):
            return
        for key in _MAPS:
            for name in schema[key] if isinstance(schema.get(key), dict) else ():
                yield f"{place}/{key}{step(name)}"
        for key in _LISTS:
            for index in range(len(schema[key]) if isinstance(schema.get(key), list) else 0):
                yield f"{place}/{key}/{index}"
        for key in _SINGLE:
            if isinstance(schema.get(key), dict):
                yield f"{place}/{key}"
        elsewhere = target(schema)
        if elsewhere is not None:
            yield elsewhere


def _told(said: str) -> str:
    """In one line, and in terms of the schema as it was sent."""
    said = re.sub(r"\s+while processing json-schema:\S*", "", without_root(said))
    if said.startswith("NoExtension"):
        return "no text can meet it, or none that this model's tokens can spell"
    # The lines around the fault, and a remark on the remark.
    said = re.sub(r"\n *\d+ \|.*|<non-verbose/>", "", said, flags=re.DOTALL)
    said = " ".join(said.split())
    return said if len(said) <= MAX_CHARS else said[:MAX_CHARS] + "..."
