"""What clients of OpenAI's chat completions send."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.errors import InvalidRequest
from engine.server.bodies import in_range
from engine.server.nested import CONTINUED
from engine.server.openai_common import MAX_TOP_LOGPROBS, CommonFields
from engine.server.openai_messages import AssistantTurn, ChatMessage
from engine.server.openai_tools import tool_use_of
from engine.server.tool_use import ToolUse


class ThinkingSwitch(msgspec.Struct):
    type: Literal["enabled", "disabled", "auto"]


class ChatRequest(CommonFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    """Extension: variables of the model's own template, such as enable_thinking."""
    reasoning_effort: str = ""
    """Works where the template knows it; `none` also where it cannot reason."""
    enable_thinking: bool | None = None
    thinking: ThinkingSwitch | None = None
    """Extensions: two spellings of one switch."""
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
        if isinstance(self.messages[-1], AssistantTurn):
            raise InvalidRequest(CONTINUED, param=f"messages[{len(self.messages) - 1}].role")
        if self.functions or self.function_call not in ("none", "auto"):
            raise InvalidRequest(
                "functions and function_call are not supported; tools and tool_choice are what "
                "followed them.",
                param="functions" if self.functions else "function_call",
            )
        self.tool_use()
        self.wanted()
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
    def thinks(self) -> bool | None:
        """Whether the model shall think; None leaves it to the model."""
        if self.enable_thinking is not None or self.thinking is None:
            return self.enable_thinking
        return self.thinking.type != "disabled"

    def token_limit(self) -> int | None:
        limits = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(limits, default=None)
