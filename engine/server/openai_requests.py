"""What clients of OpenAI's chat completions send."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.chat.reasoning import Wish, checked_effort
from engine.chat.templates import Ending
from engine.errors import InvalidRequest
from engine.server.bodies import in_range
from engine.server.nested import refuse_held
from engine.server.openai_common import MAX_TOP_LOGPROBS, CommonFields
from engine.server.openai_messages import ChatMessage, ending_of
from engine.server.openai_tools import tool_use_of
from engine.server.tool_use import ToolUse


class ThinkingSwitch(msgspec.Struct):
    type: Literal["enabled", "disabled", "auto"]
    budget_tokens: int | None = None


class ChatRequest(CommonFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Extension: variables of the model's own template, such as enable_thinking."""
    reasoning_effort: str = ""
    """Of EFFORTS, as far as the model's template knows it."""
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    """Extensions: two spellings of one switch."""
    thinking_budget: int | None = None
    """Extension: tokens, told to the model as far as its template knows it; then thinking is
    closed."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    """Extensions: where the prompt ends, if not where an answer begins."""
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    # Harmless.
    prediction: Any = None
    """Speeds up, by definition without changing the answer."""
    # Refused unless they ask for what happens anyway.
    functions: list[dict[str, Any]] = msgspec.field(default_factory=list)
    function_call: str | dict[str, Any] = "auto"
    modalities: list[str] = msgspec.field(default_factory=lambda: ["text"])
    verbosity: str = "medium"
    audio: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        self.check_common()
        in_range(self.max_completion_tokens, "max_completion_tokens", 1)
        in_range(self.top_logprobs, "top_logprobs", 0, MAX_TOP_LOGPROBS)
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
        if not self.messages:
            raise InvalidRequest("messages is empty; send at least one.", param="messages")
        checked_effort(self.reasoning_effort, "reasoning_effort")
        in_range(self.thinking_budget, "thinking_budget", 0)
        if self.thinking is not None:
            in_range(self.thinking.budget_tokens, "thinking.budget_tokens", 0)
        if self.functions or self.function_call not in ("none", "auto"):
            raise InvalidRequest(
                "functions and function_call are not supported; tools and tool_choice are what "
                "followed them.",
                param="functions" if self.functions else "function_call",
            )
        held = self.wanted() is not None or self.tool_use().enforced
        refuse_held(continued=self.ending == "continued", held=held, param="continue_final_message")
        for name, value, only in (
            ("modalities", self.modalities, ["text"]),
            ("verbosity", self.verbosity, "medium"),
            ("audio", self.audio, None),
            ("web_search_options", self.web_search_options, None),
        ):
            if value != only:
                raise InvalidRequest(f"{name} {value!r} is not supported.", param=name)

    def tool_use(self) -> ToolUse:
        """Raises InvalidRequest."""
        return tool_use_of(self.tools, self.tool_choice, several=self.parallel_tool_calls)

    @property
    def ending(self) -> Ending:
        return ending_of(
            self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continued=self.continue_final_message,
        )

    def wish(self) -> Wish:
        """How much the model shall reason."""
        on, budget = self.enable_thinking, self.thinking_budget
        if self.thinking is not None:
            on = self.thinking.type != "disabled" if on is None else on
            budget = self.thinking.budget_tokens if budget is None else budget
        return Wish(on=on, effort=self.reasoning_effort, budget=budget)

    def switched_off_by(self) -> str:
        """The field that asks for no reasoning; "" where none does."""
        thinking = self.thinking
        asked = {
            "reasoning_effort": self.reasoning_effort == "none",
            "enable_thinking": self.enable_thinking is False,
            "thinking.type": thinking is not None
            and thinking.type == "disabled"
            and self.enable_thinking is None,
            "thinking_budget": self.thinking_budget == 0,
            "thinking.budget_tokens": thinking is not None
            and thinking.budget_tokens == 0
            and self.thinking_budget is None,
        }
        return next((name for name, off in asked.items() if off), "")

    def token_limit(self) -> int | None:
        limits = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(limits, default=None)
