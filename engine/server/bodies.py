"""Request bodies: read, decompressed, parsed and checked; every fault is named by its field."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from engine.chat.sampling import RANGES
from engine.errors import InvalidRequest
from engine.server.recording import current

T = TypeVar("T")

MAX_BODY_BYTES = 32 << 20
MAX_LEVELS = 128
"""Of nesting. Whatever reads a body level by level stays far from Python's limit of recursion."""
_PLACE_STEPS = 4
"""Of a place that lies too deep, as many are said: those down to a tool's schema."""
LARGEST = (1 << 31) - 1
"""Of counts in a request: beyond every context, and within what the runtime's records hold."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN_CHARS = 80


class BodyTooLarge(InvalidRequest):
    code = "request_too_large"
    status = 413


class UnsupportedEncoding(InvalidRequest):
    code = "unsupported_encoding"
    status = 415


async def read_body(request: Request) -> bytes:
    """The whole body, decompressed. Raises BodyTooLarge, UnsupportedEncoding, InvalidRequest."""
    body = await _read_body(request)
    if recording := current():
        recording.body = body
    return body


async def _read_body(request: Request) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BODY_BYTES:
        raise _too_large()
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise _too_large()
        pieces.append(piece)
    body = b"".join(pieces)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise UnsupportedEncoding(
            f"Content-Encoding {encoding!r} is not supported.", hint="Send gzip, or no encoding."
        )
    unzip = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        body = unzip.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error as error:
        raise InvalidRequest("The body is not gzip, as its Content-Encoding says.") from error
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    if not unzip.eof:
        raise InvalidRequest("The gzip body ends too early.")
    if unzip.unused_data:
        raise InvalidRequest("The gzip body goes on after its end; send one member.")
    return body


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {MAX_BODY_BYTES >> 20} MiB.")


# --- JSON -------------------------------------------------------------------------------------


def parse_json(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises InvalidRequest that says where the text goes wrong or is nested deeper
    than MAX_LEVELS, or which field holds what JSON has no word for: NaN, an infinity, half of a
    surrogate pair."""
    body = body.removeprefix(_BYTE_ORDER_MARK)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _not_json(body) from error
    if not isinstance(value, dict):
        raise InvalidRequest("The body is not a JSON object.")
    if too_deep(value):
        place = _deepest(value)
        raise InvalidRequest(
            f"{place} is nested too deeply: a body has at most {MAX_LEVELS} levels.", param=place
        )
    return value


def too_deep(value: Any) -> bool:
    """Whether a value of JSON has more than MAX_LEVELS levels of objects and lists."""
    level = [value]
    for _ in range(MAX_LEVELS + 1):
        level = [item for each in level for item in _within(each) if isinstance(item, dict | list)]
    return bool(level)


def _within(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _deepest(value: Any) -> str:
    """The begin of the way to what lies deepest."""
    level: list[tuple[tuple[Any, ...], Any]] = [((), value)]
    while level:
        steps = level[0][0]
        level = [
            ((*path, key)[:_PLACE_STEPS], item)
            for path, each in level
            for key, item in (each.items() if isinstance(each, dict) else enumerate(each))
            if isinstance(item, dict | list)
        ]
    said = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return said.removeprefix(".")


def _not_json(body: bytes) -> InvalidRequest:
    """What is wrong with a text that the strict parser has refused: a lenient one reads on."""
    problem, field = "what it holds cannot be read", ""
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_int=float)
        problem, field = next(_outside_json(value, ""), (problem, field))
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text"
    except RecursionError:
        problem = "it is nested too deeply"
    except json.JSONDecodeError as error:
        problem = f"it goes wrong at line {error.lineno}, column {error.colno}"
        if not text[error.pos :].strip():
            problem = "it ends too early" if text.strip() else "it is empty"
    return InvalidRequest(f"The body is not valid JSON: {problem}.", param=field)


def _outside_json(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """What Python's parser takes and JSON does not have, and in which field."""
    if isinstance(value, dict):
        for key, item in value.items():
            name = f"{path}.{key}" if path else key
            if not _is_text(key):
                yield f"a name in {path or 'it'} has half of a surrogate pair", path
            yield from _outside_json(item, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _outside_json(item, f"{path}[{index}]")
    elif isinstance(value, str) and not _is_text(value):
        yield f"{path or 'it'} has half of a surrogate pair, which is no character", path
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{path or 'it'} is NaN, infinite or too large; it must be a finite number", path


def _is_text(value: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in value)


# --- records ----------------------------------------------------------------------------------

_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]*)`, got `(?P<got>[^`]*)`")
_TAG = "Invalid value "
_ENUM = "Invalid enum value "
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def convert(
    value: dict[str, Any],
    type_: type[T],
    *,
    null_is_absent: tuple[str, ...] = (),
    tags: tuple[str, ...] = (),
) -> T:
    """The value as a record. Raises InvalidRequest whose `param` is the field at fault.

    Nulls at the top level, and anywhere under the fields `null_is_absent`, count as absent.
    `tags` are what a record in it may be told apart by, for the complaint about another one.
    """
    present = {key: item for key, item in value.items() if item is not None}
    try:
        for key in null_is_absent:
            if key in present:
                present[key] = without_nulls(present[key])
        return msgspec.convert(present, type_)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), present, type_, tags) from error


def _invalid(
    text: str, value: dict[str, Any], type_: type[Any], tags: tuple[str, ...]
) -> InvalidRequest:
    """msgspec's complaint in the words of this server."""
    at = _AT.search(text)
    path = at.group("path") if at else ""
    problem = text[: at.start()] if at else text
    prefix = f"{path}." if path else ""
    if unknown := _UNKNOWN.match(problem):
        field = prefix + unknown.group("name")
        return unsupported(field)
    if missing := _MISSING.match(problem):
        field = prefix + missing.group("name")
        return InvalidRequest(f"The parameter {field!r} is missing.", param=field)
    if problem.startswith(_TAG):
        allowed = f"one of {', '.join(tags)}"
    elif problem.startswith(_ENUM):
        allowed = f"one of {', '.join(_words(msgspec.inspect.type_info(type_), path))}"
    elif expected := _EXPECTED.match(problem):
        kinds = [_KINDS[name] for name in expected.group("types").split(" | ") if name in _KINDS]
        allowed = " or ".join(kinds)
    else:
        allowed = "another value"
    outer, inside, _ = path.partition("[...]")  # a value in a mapping, whose key is not told
    if inside:
        return InvalidRequest(f"A value in {outer} must be {allowed}.", param=outer)
    found = shown(_at(value, path))
    return InvalidRequest(f"{path} is {found}; it must be {allowed}.", param=path)


def _words(info: msgspec.inspect.Type, path: str) -> list[str]:
    """Those that may stand at a path in a value of this type."""
    found = _plain([info])
    for _, name in _STEP.findall(path):
        if name:  # an index leads into the type of a list's items, which `_plain` has taken
            fields = [field for each in found for field in getattr(each, "fields", ())]
            found = _plain([field.type for field in fields if field.encode_name == name])
    return [str(word) for each in found for word in getattr(each, "values", ())]


def _plain(types: Iterable[msgspec.inspect.Type]) -> list[msgspec.inspect.Type]:
    """The types without unions and lists of them."""
    plain: list[msgspec.inspect.Type] = []
    for each in types:
        if isinstance(each, msgspec.inspect.UnionType):
            plain += _plain(each.types)
        elif isinstance(each, msgspec.inspect.ListType):
            plain += _plain([each.item_type])
        else:
            plain.append(each)
    return plain


def unsupported(field: str) -> InvalidRequest:
    return InvalidRequest(
        f"The parameter {field!r} is not supported.",
        hint="Leave it out. Nothing that would change the answer is ignored in silence.",
        param=field,
    )


def _at(value: Any, path: str) -> Any:
    for index, name in _STEP.findall(path):
        value = value[int(index)] if index else value[name]
    return value


def stands(path: str, value: Any) -> str:
    """What stands at a path, as the begin of a sentence."""
    return f"{path} is missing" if value is None else f"{path} is {shown(value)}"


def shown(value: Any) -> str:
    """A value of JSON for an error message."""
    if isinstance(value, dict | list):
        return _KINDS["object" if isinstance(value, dict) else "array"]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."


def switch(value: Any, path: str) -> bool:
    """A boolean that no record reads. Null is false. Raises InvalidRequest for another value."""
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"{stands(path, value)}; it must be true or false.", param=path)
    return bool(value)


_VERBATIM = frozenset({"arguments", "input", "parameters", "input_schema", "schema"})
"""A call's arguments, and JSON schemas: in both null is a value like others."""


def without_nulls(value: Any) -> Any:
    """Nested objects without their null members, but for those that hold other people's JSON."""
    if isinstance(value, dict):
        return {
            key: item if key in _VERBATIM else without_nulls(item)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def in_range(value: float | None, name: str, low: float, high: float = LARGEST) -> None:
    """Raises InvalidRequest naming the field, its value and its bounds. None is absent."""
    if value is not None and not low <= value <= high:
        raise InvalidRequest(f"{name} is {value}; it must be from {low} to {high}.", param=name)


def sampling_in_range(record: Any) -> None:
    """The same for every sampling parameter that the record has."""
    for name, (low, high) in RANGES.items():
        in_range(getattr(record, name, None), name, low, high)
