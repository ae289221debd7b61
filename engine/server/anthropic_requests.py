"""What Anthropic clients send: the records and their checks.

As with OpenAI's, a field works, or is harmless and accepted, or is refused by name.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.chat.conversation import NOT_CONTINUED
from engine.chat.reasoning import Wish, checked_effort
from engine.chat.structured import AnswerFormat
from engine.chat.templates import Ending
from engine.errors import HeadraceError, InvalidRequest
from engine.messages import Sampling
from engine.server.answer_formats import answer_format
from engine.server.anthropic_messages import Blocks, Turn
from engine.server.anthropic_tools import tool_use_of
from engine.server.bodies import in_range, sampling_in_range
from engine.server.nested import refuse_held
from engine.server.openai_common import checked_stops, chosen_sampling
from engine.server.tool_use import ToolUse


class ThreadNotFound(HeadraceError):
    code = "thread_not_found"
    status = 404


class Thinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The budget is told to models whose template knows one, thinking is closed where it is used
    up, and thoughts are always shown. A budget of 0 switches thinking off."""

    type: Literal["enabled", "adaptive", "disabled"] = "disabled"
    budget_tokens: int | None = None
    display: str = ""


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of messages and of count_tokens."""

    model: str
    messages: list[Turn]
    system: Blocks = ""
    tools: list[dict[str, Any]] = []
    tool_choice: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "auto"})
    thinking: Thinking = Thinking()
    output_config: dict[str, Any] = {}
    """Its format works; its effort where the template knows one; a budget for a whole task, of
    which this is one request, is a hint."""
    output_format: dict[str, Any] | None = None
    """An older place of the format."""
    mcp_servers: list[Any] = []
    """Only none: nothing is connected to from here."""
    # Harmless: hints about caching, routing and billing.
    cache_control: Any = None
    context_management: dict[str, Any] | None = None
    """No edit is ever applied, and the answer says so."""
    betas: list[str] = []
    speed: str = ""
    inference_geo: str = ""
    diagnostics: Any = None
    user_profile_id: str = ""

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        if not self.messages:
            raise InvalidRequest("messages is empty; send at least one.", param="messages")
        self.tool_use()
        self.wanted()
        if self.mcp_servers:
            raise InvalidRequest("mcp_servers is not supported.", param="mcp_servers")
        for key in self.output_config:
            if key not in ("effort", "format", "task_budget"):
                raise InvalidRequest(
                    f"output_config.{key} is not supported.", param=f"output_config.{key}"
                )
        effort = self.output_config.get("effort")
        if not isinstance(effort, str | None):
            raise InvalidRequest("output_config.effort is not text.", param="output_config.effort")
        checked_effort(effort, "output_config.effort")
        in_range(self.thinking.budget_tokens, "thinking.budget_tokens", 0)

    def wish(self) -> Wish:
        """How much the model shall reason."""
        return Wish(
            on=self.thinking.type != "disabled",
            effort=self.output_config.get("effort") or "",
            budget=self.thinking.budget_tokens,
        )

    @property
    def ending(self) -> Ending:
        """A last message of the assistant is the beginning of the answer."""
        last = self.messages[-1]
        return "continued" if last.role == "assistant" and not last.calls else "answer"

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequest."""
        return tool_use_of(self.tools, self.tool_choice)

    def wanted(self) -> AnswerFormat | None:
        """Raises InvalidRequest."""
        wanted, param = self.output_config.get("format"), "output_config.format"
        if wanted is None:
            wanted, param = self.output_format, "output_format"
        if wanted is None:
            return None
        if not isinstance(wanted, dict):
            raise InvalidRequest(f"{param} is not an object.", param=param)
        return answer_format(wanted, param=param)


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] = []
    stream: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # Harmless.
    metadata: dict[str, Any] = {}
    service_tier: str = ""
    thread: dict[str, Any] = {}
    """Messages are not kept: whoever goes on from one is told to send them all."""
    container: Any = None
    """Only absent or null: there is nowhere to run code."""

    def check(self) -> None:
        super().check()
        in_range(self.max_tokens, "max_tokens", 1)
        sampling_in_range(self)
        self.stop_strings()
        last = f"messages.{len(self.messages) - 1}"
        if self.messages[-1].role == "assistant" and self.ending != "continued":
            raise InvalidRequest(NOT_CONTINUED, param=last)
        held = self.wanted() is not None or self.tool_use().enforced
        refuse_held(continued=self.ending == "continued", held=held, param=last)
        if self.thread.get("type") == "continue":
            raise ThreadNotFound(
                "No message threads are kept here.", hint="Send the whole conversation."
            )
        if self.container is not None:
            raise InvalidRequest("container is not supported.", param="container")

    def stop_strings(self) -> tuple[str, ...]:
        return checked_stops(self.stop_sequences, "stop_sequences")

    def sampling(self, defaults: Sampling) -> Sampling:
        return chosen_sampling(self, defaults)
