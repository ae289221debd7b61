"""Chat templates: where a model keeps them, and messages to prompt text."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from engine.chat import tool_history
from engine.chat.conversation import (
    NOT_CONTINUED,
    WAYS_TO_SAY,
    Message,
    is_instruction,
    may_go_on,
    tools_as_text,
    with_marked_instructions,
)
from engine.chat.model_files import read_json
from engine.chat.reasoning import ASKED, ReasoningControls, probed
from engine.chat.render_frames import Outcome
from engine.chat.rendering import Renderer, RenderStopped, shared_renderer
from engine.chat.shields import shield_for, shielded, starts
from engine.errors import InvalidRequest, ModelFilesError, UnsupportedModel
from engine.formats.file_checks import require_file

log = logging.getLogger("headrace.templates")

_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Ends the message that is to be continued, so that its end can be found in the prompt. Templates
know this one, which is transformers'."""

Ending = Literal["answer", "continued", "bare"]
"""A prompt ends where the assistant's answer begins, within its last message, or after the last
message, whoever goes on then."""


class TemplateStopped(InvalidRequest):
    """Rendering was ended: it took too long, or too much memory."""

    code = "template_stopped"


class _Refused(Exception):
    """The template itself refuses the messages; with what it says."""


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
    """A model's template. Safe to use from several threads."""

    def __init__(
        self, source: TemplateSource, special: dict[str, str], renderer: Renderer | None = None
    ) -> None:
        """`special`: bos_token and its like, which templates write out themselves.

        Raises ModelFilesError for what is no template.
        """
        self.origin = source.origin
        self._source = source.text
        self._special = special
        self._renderer = renderer or shared_renderer()
        self._variables = self._compiled()
        self._told_of_stop = False

    def _compiled(self) -> frozenset[str]:
        """Names of the template's variables."""
        try:
            outcome, text = self._renderer.ask(self._source, None)
        except RenderStopped as error:
            outcome, text = Outcome.STOPPED, str(error)
        if outcome is Outcome.MISTAKE:
            line, _, mistake = text.partition(":")
            raise ModelFilesError(
                f"{self.origin}, line {line}: the chat template has a mistake: {mistake}."
            )
        if outcome is not Outcome.RENDERED:
            raise ModelFilesError(f"{self.origin}: the chat template cannot be compiled: {text}.")
        return frozenset(text.split())

    def reads(self, name: str) -> bool:
        """Whether it has a variable of this name."""
        return name in self._variables

    def mentions(self, name: str) -> bool:
        """Whether this is somewhere in the template: the name of a role or field, a tag."""
        return name in self._source

    @cached_property
    def reasoning_controls(self) -> ReasoningControls:
        """What the template offers of reasoning. Found by some renders, until they were not stopped
        once. Raises TemplateStopped."""
        return probed(self._probe, self.reads)

    @property
    def reasoning(self) -> ReasoningControls:
        """What is known of `reasoning_controls`: nothing where a render was stopped."""
        try:
            return self.reasoning_controls
        except TemplateStopped as error:
            if not self._told_of_stop:
                self._told_of_stop = True
                log.warning(
                    "%s: what it offers of reasoning is not known yet: %s", self.origin, error
                )
            return ReasoningControls()

    @cached_property
    def takes_tools(self) -> bool:
        """Whether tools reach the prompt."""
        offered = self._probe(ASKED, {}, tool_history.EXAMPLE_TOOLS)
        return tool_history.is_offered(offered)

    @property
    def takes_tool_use(self) -> bool:
        """Whether calls and their results reach the prompt as they are."""
        return self._saying_tool_use is tool_history.as_they_are

    @cached_property
    def _saying_tool_use(self) -> tool_history.Saying:
        tools = tool_history.EXAMPLE_TOOLS if self.takes_tools else None
        for saying in tool_history.WAYS:
            if tool_history.is_told(self._probe(saying(tool_history.EXAMPLE), {}, tools)):
                return saying
        return tool_history.as_text

    @cached_property
    def _developers(self) -> bool:
        """Whether there is a developer role of its own, that is more than a user's."""
        if not self.mentions("developer"):
            return False
        words = "Be brief."
        alone = {
            role: self._probe([{"role": role, "content": words}, *ASKED])
            for role in ("developer", "user", "system")
        }
        told = {role for role, text in alone.items() if text is not None and words in text}
        # Of a developer's message no less may be left than of the system's.
        heard = "developer" in told or "system" not in told
        return heard and alone["developer"] not in (None, alone["user"])

    def render(
        self,
        messages: list[Message],
        *,
        control_tokens: Iterable[str] = (),
        variables: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
        ending: Ending = "answer",
    ) -> RenderedPrompt:
        """The prompt, up to where `ending` says.

        Spellings of `control_tokens` inside messages are broken by a shield character, so that a
        person can write about them without ending a turn. Raises InvalidRequest when the template
        refuses the messages.
        """
        for name in variables or {}:
            if name in _RESERVED:
                raise InvalidRequest(
                    f"chat_template_kwargs must not set {name!r}.", param="chat_template_kwargs"
                )
        if ending == "continued" and not may_go_on(messages[-1]):
            raise InvalidRequest(NOT_CONTINUED, param="messages")
        prepared = [self._prepared(message) for message in messages]
        if any(map(tool_history.is_tool_use, prepared)):
            prepared = self._saying_tool_use(prepared)
        if tools and not self.takes_tools:
            prepared, tools = tools_as_text(prepared, tools), None
        pattern = starts(tuple(control_tokens))
        shield = shield_for([*prepared, *(tools or [])], pattern)
        if shield:
            prepared = [shielded(message, pattern, shield) for message in prepared]
            tools = shielded(tools, pattern, shield)
        context = {
            **(variables or {}),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": ending == "answer",
        }
        if ending == "continued":
            return RenderedPrompt(self._continued(prepared, context), shield)
        return RenderedPrompt(self._first_accepted(prepared, context), shield)

    def _prepared(self, message: Message) -> Message:
        if message["role"] == "developer" and not self._developers:
            return {**message, "role": "system"}
        thoughts = message.get("reasoning_content")
        # Some templates know reasoning by the name that it has in gpt-oss's.
        return message if thoughts is None else {"thinking": thoughts, **message}

    def _continued(self, messages: list[Message], context: dict[str, Any]) -> str:
        """The prompt up to the end of the last message's content."""
        last = messages[-1]
        tagged = [*messages[:-1], {**last, "content": last["content"] + _TAG}]
        text = self._first_accepted(tagged, context)
        end = text.rfind(_TAG.strip())
        if end < 0 or last["content"].strip() not in text:
            raise InvalidRequest(
                "The model's chat template does not write the last message as it is, so that it "
                "cannot be continued.",
                param="messages",
            )
        # A template that trims messages has trimmed the tag: then it trims what is before it too.
        return text[:end] if text.startswith(_TAG, end) else text[:end].rstrip()

    def _first_accepted(self, messages: list[Message], context: dict[str, Any]) -> str:
        """Some templates refuse neighbours of one role, or a system role, or pass over system
        messages that are not the first: say it otherwise."""
        refusal: _Refused | None = None
        scattered = any(map(is_instruction, messages[1:]))
        marked, words = with_marked_instructions(messages) if scattered else ([], [])
        for said in WAYS_TO_SAY:
            try:
                if scattered:
                    text = self._render({**context, "messages": said(marked)})
                    if not all(word in text for word in words):
                        continue
                return self._render({**context, "messages": said(messages)})
            except _Refused as error:
                refusal = refusal or error
        raise InvalidRequest(
            "The model's chat template refuses these messages: "
            f"{refusal or 'it passes over instructions'}",
            param="messages",
        )

    def _probe(
        self,
        messages: list[Message],
        variables: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> str | None:
        """The prompt; None where the template does not render it. Raises TemplateStopped."""
        context = {**(variables or {}), "tools": tools, "documents": None}
        try:
            return self._render({**context, "messages": messages, "add_generation_prompt": True})
        except TemplateStopped:
            raise
        except (_Refused, InvalidRequest, UnsupportedModel):
            return None

    def _render(self, context: dict[str, Any]) -> str:
        try:
            outcome, text = self._renderer.ask(self._source, {**self._special, **context})
        except RenderStopped as error:
            outcome, text = Outcome.STOPPED, str(error)
        match outcome:
            case Outcome.RENDERED:
                return text
            case Outcome.REFUSED:
                raise _Refused(text)
            case Outcome.STOPPED:
                raise TemplateStopped(f"The chat template was stopped: {text}.", param="messages")
            case Outcome.FORBIDDEN:
                raise UnsupportedModel(
                    f"{self.origin}: the chat template does what templates may not: "
                    f"{text.rstrip('.')}."
                )
            case _:
                # Templates are programs: what a message provokes in one is the message's fault.
                raise InvalidRequest(
                    f"The model's chat template cannot render these messages: {text}",
                    param="messages",
                )
