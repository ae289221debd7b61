"""A Jinja environment for templates that come with downloaded models.

Jinja's sandbox keeps a template from Python's internals; this adds bounds on time and size, which
it does not have. The parsed template is rewritten so that loops and macros call `tick` and joins
call `join_checked`; operators, methods and filters that make long results of short ones are
checked before they run or not offered; nothing is evaluated while a template is loaded.

What this is not: a hard limit. The clock is looked at between steps, so one filter over a long list
runs to its end, and the text of a list is made before its length is known (`[a] * n | string`).
A template written to exhaust memory can still slow this process down. Only a worker process that
can be killed would prevent that.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes as nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from engine.chat.interruption import check

RENDER_SECONDS = 10.0
RENDER_CHARS = 64 << 20


class TemplateRefusal(Exception):
    """The template itself called raise_exception."""


class LimitExceeded(Exception):
    """Rendering took too long or made too much text."""


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks assistant text for training; for a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return cast(
            "list[nodes.Node]", parser.parse_statements(("name:endgeneration",), drop_needle=True)
        )


class _Bounds(NodeTransformer):
    """Puts the checks into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._call(node, "join_checked", *node.nodes)

    def _ticking(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        tick = nodes.ExprStmt(self._call(node, "tick"), lineno=node.lineno)
        node.body.insert(0, tick)
        return node

    @staticmethod
    def _call(at: nodes.Node, method: str, *arguments: nodes.Expr) -> nodes.Call:
        # EnvironmentAttribute cannot be shadowed by a variable of the template.
        function = nodes.EnvironmentAttribute(method, lineno=at.lineno)
        return nodes.Call(function, list(arguments), [], None, None, lineno=at.lineno)


# Methods and filters whose result can be far longer than all that goes in, and which no known
# template uses.
_GROWING_METHODS = frozenset(
    {"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map"}
)
_GROWING_FILTERS = ("batch", "center", "format", "slice", "urlize", "wordwrap")
_MAX_BITS = 4096
"""Of a whole number: beyond what a prompt can mean, and quick to compute with."""
_MAX_SPACING = 64
"""Characters that JSON is indented by, or its items are put apart by."""


@jinja2.pass_context
def _unchanged(_context: Any, value: Any) -> Any:
    """As `finalize`, it keeps Jinja from evaluating constant expressions at load: it might need
    the context of the rendering.
    """
    return value


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "%", "**"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_unchanged,
            extensions=[jinja2.ext.loopcontrols, _GenerationTag],
        )
        self._render = threading.local()
        self.filters["tojson"] = _to_json
        for name in _GROWING_FILTERS:
            self.filters[name] = _refused(name)
        self.filters["indent"] = self._indented
        self.filters["join"] = self._joined
        self.filters["replace"] = self._replaced
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def load(self, source: str) -> jinja2.Template:
        """Raises jinja2.TemplateSyntaxError with a line number."""
        tree = cast(nodes.Template, _Bounds().visit(self.parse(source)))
        tree.set_environment(self)
        return self.from_string(tree)

    def render(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """The text. Raises LimitExceeded, TemplateRefusal and whatever the template provokes."""
        self._render.deadline = time.monotonic() + RENDER_SECONDS
        pieces, size = [], 0
        for piece in template.generate(variables):
            size += len(piece)
            self._check_size(size)
            self.tick()
            pieces.append(piece)
        return "".join(pieces)

    # Called by rewritten templates.

    def tick(self) -> None:
        check()
        if time.monotonic() > self._render.deadline:
            raise LimitExceeded(f"rendering takes longer than {RENDER_SECONDS:g} seconds")

    def join_checked(self, *parts: Any) -> str:
        texts = [str(part) for part in parts]
        self._check_size(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, str | list) and isinstance(right, str | list):
            self._check_size(len(left) + len(right))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MAX_BITS:
                raise LimitExceeded("a whole number grows out of bounds")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(times, int):
                    self._check_size(len(value) * times)
        elif operator == "%" and isinstance(left, str):
            raise LimitExceeded("text formatting with % is not offered to templates")
        elif operator == "**" and (abs(left) > 1e6 or abs(right) > 64):
            raise LimitExceeded(f"{left} ** {right} is out of bounds")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _GROWING_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str) and name == "replace":
            self._check_replace(owner, *args, **kwargs)
        elif isinstance(owner, str) and name == "join" and len(args) == 1 and not kwargs:
            return self._join(owner, args[0])
        result = super().call(context, obj, *args, **kwargs)
        if isinstance(result, str | list):
            self._check_size(len(result))
        return result

    # Filters.

    def _indented(self, value: Any, width: int | str = 4, *rest: Any, **options: Any) -> Any:
        text = str(value)
        step = width if isinstance(width, int) else len(width)
        self._check_size(len(text) + step * (text.count("\n") + 1))
        return jinja2.filters.do_indent(text, width, *rest, **options)

    def _joined(self, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            value = map(jinja2.filters.make_attrgetter(self, attribute), value)
        return self._join(str(d), map(str, value))

    def _join(self, between: str, items: Iterable[Any]) -> str:
        pieces, size = [], 0
        for item in items:
            pieces.append(item)
            size += len(item) + len(between)
            self._check_size(size)
        return between.join(pieces)

    def _replaced(self, value: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, old, new = str(value), str(old), str(new)
        self._check_replace(text, old, new)
        return text.replace(old, new, -1 if count is None else count)

    def _check_replace(self, text: str, old: str, new: str, *_count: Any, **_named: Any) -> None:
        self._check_size(len(text) + text.count(old) * len(new))

    @staticmethod
    def _check_size(size: int) -> None:
        if size > RENDER_CHARS:
            raise LimitExceeded(f"a text of {size} characters exceeds the limit of {RENDER_CHARS}")


def _refused(name: str) -> Callable[..., Any]:
    def refused(*_args: Any, **_options: Any) -> Any:
        raise LimitExceeded(f"the filter {name} is not offered to templates")

    return refused


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the field's templates expect: no HTML escapes, keys in their order."""
    spacing = [indent] if isinstance(indent, int) else [len(indent or "")]
    if max(*spacing, *map(len, separators or ()), 0) > _MAX_SPACING:
        raise LimitExceeded(f"JSON is spaced by more than {_MAX_SPACING} characters")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
