"""The Jinja environment of chat templates: programs that come with downloaded models.

Jinja's sandbox keeps a template from Python's internals, and the environment has what the field's
templates were written for. It bounds neither time nor memory: that is done from outside, by
whoever can end the process that renders (engine.chat.rendering).
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefusal(Exception):
    """The template itself called raise_exception."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; for a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A scope of its own, as it has where it is not transparent.
        return nodes.Scope(cast("list[nodes.Node]", body), lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """`namespace(...)` without names that begin with an underscore: they could reach internals."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        fields = dict(*args, **kwargs)
        for name in fields:
            _refuse_private(name)
        super().__init__(fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not have a field {name!r}")


@jinja2.pass_context
def _unchanged(_context: Any, value: Any) -> Any:
    """As `finalize`, it keeps Jinja from evaluating constant expressions before it renders, which
    could take for ever: a template that runs away shall not keep its model from loading."""
    return value


def template_environment() -> jinja2.Environment:
    """As transformers has it, but for `lipsum`, which makes nothing that belongs in a prompt."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        optimized=False,
        finalize=_unchanged,
        extensions=[jinja2.ext.loopcontrols, _GenerationTag],
    )
    environment.filters["tojson"] = _to_json
    del environment.globals["lipsum"]
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    # A function, because a template has no business with the class and its attributes.
    environment.globals["dict"] = lambda *args, **kwargs: dict(*args, **kwargs)
    return environment


def _raise_exception(message: Any) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    # Local time that does not name its zone: templates are tested with that.
    return datetime.now().astimezone().replace(tzinfo=None).strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the field's templates expect: no HTML escapes, keys in their order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
