"""Chat templates: where a model keeps them, and messages to prompt text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from engine.chat.conversation import (
    Message,
    fold_system,
    merge_turns,
    tool_calls_as_text,
    tools_as_text,
)
from engine.chat.model_files import read_json
from engine.chat.sandbox import BoundedEnvironment, LimitExceeded, TemplateRefusal
from engine.chat.shields import SHIELDS, starts
from engine.errors import InvalidRequest, ModelFilesError, UnsupportedModel
from engine.formats.file_checks import require_file

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


@dataclass(frozen=True)
class RenderedPrompt:
    text: str
    shield: str
    """A character put into control-token spellings inside messages; "" where there were none."""


@dataclass(frozen=True)
class TemplateSource:
    text: str
    origin: str
    """File (and field) for error messages."""


def template_source(folder: Path, tokenizer_config: dict[str, Any]) -> TemplateSource | None:
    """The default chat template of a model's folder: the side files win over tokenizer_config.

    Raises ModelFilesError when a template file is unreadable or of the wrong type.
    """
    jinja = folder / "chat_template.jinja"
    if os.path.lexists(jinja):
        try:
            return TemplateSource(require_file(jinja).read_text(encoding="utf-8"), str(jinja))
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFilesError(f"{jinja} cannot be read as UTF-8: {error}.") from error
    side = folder / "chat_template.json"
    if os.path.lexists(side):
        found = _choose(read_json(side).get("chat_template"), str(side))
        if found:
            return found
        raise ModelFilesError(f"{side} has no field chat_template.")
    return _choose(tokenizer_config.get("chat_template"), str(folder / "tokenizer_config.json"))


def _choose(value: Any, origin: str) -> TemplateSource | None:
    """One template, or the one named `default` of a list of named ones."""
    if value is None:
        return None
    if isinstance(value, str):
        return TemplateSource(value, origin)
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if isinstance(value, dict) and isinstance(value.get("default"), str):
        return TemplateSource(value["default"], f"{origin}: chat_template[default]")
    raise ModelFilesError(f"{origin}: chat_template is neither text nor a list with a `default`.")


class ChatTemplate:
    """A compiled template. Safe to use from several threads."""

    def __init__(self, source: TemplateSource, special: dict[str, str]) -> None:
        """`special`: bos_token and its like, which templates write out themselves."""
        self.origin = source.origin
        self._source = source.text
        self._special = special
        self._environment = BoundedEnvironment()
        try:
            self._template = self._environment.load(source.text)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFilesError(
                f"{source.origin}, line {error.lineno}: the chat template has a mistake: "
                f"{error.message}."
            ) from error
        except RecursionError as error:
            raise ModelFilesError(
                f"{source.origin}: the chat template nests too deeply."
            ) from error

    def mentions(self, name: str) -> bool:
        """Whether the template knows of a role, field or variable of this name."""
        return name in self._source

    def render(
        self,
        messages: list[Message],
        *,
        control_tokens: Iterable[str] = (),
        variables: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> RenderedPrompt:
        """The prompt up to where the assistant's answer begins.

        Spellings of `control_tokens` inside messages are broken by a shield character, so that a
        person can write about them without ending a turn. Raises InvalidRequest when the template
        refuses the messages.
        """
        for name in variables or {}:
            if name in _RESERVED:
                raise InvalidRequest(
                    f"chat_template_kwargs must not set {name!r}.", param="chat_template_kwargs"
                )
        prepared = [self._prepared(message) for message in messages]
        if not self.mentions("tool_calls"):
            prepared = tool_calls_as_text(prepared)
        if tools and not self.mentions("tools"):
            prepared = tools_as_text(prepared, tools)
        pattern = starts(tuple(control_tokens))
        shield = _shield_for([*prepared, *(tools or [])], pattern)
        if shield:
            prepared = [_shielded(message, pattern, shield) for message in prepared]
            tools = _shielded(tools, pattern, shield)
        context = {
            **self._special,
            **(variables or {}),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
        }
        return RenderedPrompt(self._first_accepted(prepared, context), shield)

    def _prepared(self, message: Message) -> Message:
        if message["role"] == "developer" and not self.mentions("developer"):
            return {**message, "role": "system"}
        return message

    def _first_accepted(self, messages: list[Message], context: dict[str, Any]) -> str:
        """Some templates refuse neighbours of one role, or a system role: say it otherwise."""
        merged = merge_turns(messages)
        refusal: TemplateRefusal | None = None
        for attempt in (messages, merged, fold_system(merged)):
            try:
                return self._render({**context, "messages": attempt})
            except TemplateRefusal as error:
                refusal = refusal or error
        raise InvalidRequest(
            f"The model's chat template refuses these messages: {refusal}", param="messages"
        )

    def _render(self, context: dict[str, Any]) -> str:
        try:
            return self._environment.render(self._template, context)
        except TemplateRefusal:
            raise
        except LimitExceeded as error:
            raise InvalidRequest(
                f"The chat template was stopped: {error}.", param="messages"
            ) from error
        except SecurityError as error:
            raise UnsupportedModel(
                f"{self.origin}: the chat template does what templates may not: {error}."
            ) from error
        except (MemoryError, RecursionError, jinja2.TemplateError, ArithmeticError) as error:
            raise self._cannot(error) from error
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            # Templates are programs: what a message provokes in one is the message's fault.
            raise self._cannot(error) from error

    @staticmethod
    def _cannot(error: BaseException) -> InvalidRequest:
        return InvalidRequest(
            f"The model's chat template cannot render these messages: {error}", param="messages"
        )


def _shield_for(messages: list[Message], control_tokens: re.Pattern[str]) -> str:
    texts = [text for message in messages for text in _texts(message)]
    if not any(map(control_tokens.search, texts)):
        return ""
    for shield in SHIELDS:
        if not any(shield in text for text in texts):
            return shield
    raise InvalidRequest(
        "The messages hold control-token spellings and every Unicode noncharacter.",
        param="messages",
    )


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _shielded(value: Any, control_tokens: re.Pattern[str], shield: str) -> Any:
    if isinstance(value, str):
        return control_tokens.sub(rf"\1{shield}", value)
    if isinstance(value, dict):
        return {key: _shielded(item, control_tokens, shield) for key, item in value.items()}
    if isinstance(value, list):
        return [_shielded(item, control_tokens, shield) for item in value]
    return value
