"""What a request says that the text of its answer must be."""

from __future__ import annotations

from typing import Any

from engine.chat.structured import AnswerFormat
from engine.errors import InvalidRequest
from engine.schemas import without_null_keywords
from engine.server.bodies import stands
from engine.server.nested import refuse_unknown

_ANY_OBJECT = {"type": "object"}


def answer_format(
    wanted: dict[str, Any],
    regex: str | None = None,
    grammar: str | None = None,
    param: str = "response_format",
) -> AnswerFormat | None:
    """`wanted`: text, json_object or json_schema, in the shapes of chat completions and of
    responses. None: any text will do. Raises InvalidRequest."""
    found = _format(wanted, param)
    formats = [
        found,
        None if regex is None else AnswerFormat("regex", regex, "regex"),
        None if grammar is None else AnswerFormat("lark", grammar, "grammar"),
    ]
    given = [each for each in formats if each is not None]
    for each in given:
        if each.kind != "json_schema" and not each.content:
            raise InvalidRequest(
                f"{each.param} is empty; leave it out, or say what the answer must be.",
                param=each.param,
            )
    if len(given) > 1:
        raise InvalidRequest(f"Of {param}, regex and grammar a request can have one.", param=param)
    return given[0] if given else None


def _format(wanted: dict[str, Any], param: str) -> AnswerFormat | None:
    kind = wanted.get("type")
    if kind == "text":
        refuse_unknown(wanted, param, ())
        return None
    if kind == "json_object":
        schema = _schema(wanted.get("schema"), param, _ANY_OBJECT)
        return AnswerFormat("json_schema", schema, param)
    if kind == "json_schema":
        # Chat completions nest what responses do not.
        nested = wanted.get("json_schema")
        where = f"{param}.json_schema.schema" if nested is not None else f"{param}.schema"
        holder = nested if isinstance(nested, dict) else wanted
        return AnswerFormat("json_schema", _schema(holder.get("schema"), where, None), where)
    for name in ("regex", "grammar"):
        text = wanted.get(name, wanted.get("pattern", wanted.get("value")))
        if kind == name:
            if not isinstance(text, str):
                raise InvalidRequest(f"{stands(f'{param}.{name}', text)}.", param=param)
            return AnswerFormat("regex" if name == "regex" else "lark", text, param)
    raise InvalidRequest(
        f"{stands(f'{param}.type', kind)}; it must be one of text, json_object, json_schema, "
        "regex, grammar.",
        param=param,
    )


def _schema(schema: Any, where: str, default: Any) -> Any:
    if schema is None:
        schema = default
    if not isinstance(schema, dict | bool):
        raise InvalidRequest(f"{where} is not a JSON schema.", param=where)
    return without_null_keywords(schema)
