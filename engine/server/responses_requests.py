"""What clients of the Responses API send."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from engine.chat.reasoning import checked_effort
from engine.chat.structured import AnswerFormat
from engine.errors import InvalidRequest
from engine.messages import Sampling
from engine.server.answer_formats import answer_format
from engine.server.bodies import in_range, sampling_in_range
from engine.server.openai_common import MAX_TOP_LOGPROBS, StreamOptions, Verbosity, chosen_sampling
from engine.server.responses_tools import ResponseTools, response_tools

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
_OTHER_INCLUDES = ("web_search_call.", "file_search_call.", "code_interpreter_call.", "message.")


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    """Effort works as far as the model's template knows it. Reasoning is never summarised."""

    effort: str | None = None
    summary: str = ""
    generate_summary: str = ""


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    verbosity: Verbosity = "medium"


class InputTokensRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields that make the prompt."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str = ""
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning: Reasoning = Reasoning()
    text: TextOptions = TextOptions()
    truncation: Literal["auto", "disabled"] = "disabled"
    """Nothing is ever cut away: what is too long is refused."""
    conversation: Any = None
    """Only none: previous_response_id is what is kept here."""

    def check(self) -> None:
        """Raises InvalidRequest naming the field."""
        self.response_tools()
        self.wanted()
        checked_effort(self.reasoning.effort, "reasoning.effort")
        if self.conversation is not None:
            raise InvalidRequest(
                "conversation is not supported; previous_response_id is.", param="conversation"
            )

    def response_tools(self) -> ResponseTools:
        """Raises InvalidRequest."""
        return response_tools(self.tools, self.tool_choice, several=self.parallel_tool_calls)

    def wanted(self) -> AnswerFormat | None:
        """Raises InvalidRequest."""
        return answer_format(self.text.format, param="text.format")


class ResponsesRequest(InputTokensRequest, kw_only=True):
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int = 0
    stream: bool = False
    stream_options: StreamOptions | None = None
    store: bool = True
    include: list[str] = []
    # Extensions that local engines share.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    # Harmless: they label or route a request, hint at caching, or limit what does not happen here.
    metadata: dict[str, Any] = {}
    client_metadata: dict[str, Any] = {}
    user: str = ""
    prompt_cache_key: str = ""
    prompt_cache_retention: str = ""
    prompt_cache_options: dict[str, Any] = {}
    safety_identifier: str = ""
    service_tier: str = ""
    max_tool_calls: int | None = None
    context_management: list[Any] = []
    # Refused unless they ask for what happens anyway.
    background: bool = False
    prompt: Any = None

    def check(self) -> None:
        super().check()
        in_range(self.max_output_tokens, "max_output_tokens", 1)
        in_range(self.top_logprobs, "top_logprobs", 0, MAX_TOP_LOGPROBS)
        sampling_in_range(self)
        for name in self.include:
            if name != ENCRYPTED and not name.startswith(_OTHER_INCLUDES):
                raise InvalidRequest(f"include names {name!r}, unknown here.", param="include")
        if self.background:
            raise InvalidRequest("background is not supported.", param="background")
        if self.prompt is not None:
            raise InvalidRequest(
                "prompt is not supported: no prompts are stored here.", param="prompt"
            )

    @property
    def logprobs(self) -> int:
        """As in Submit."""
        return self.top_logprobs if LOGPROBS in self.include or self.top_logprobs else -1

    def sampling(self, defaults: Sampling) -> Sampling:
        seed = None if self.seed is None else self.seed % (1 << 63)
        return msgspec.structs.replace(chosen_sampling(self, defaults), seed=seed)
