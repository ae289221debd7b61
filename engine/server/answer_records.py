"""What endpoints answer with, as records, of which the OpenAPI document is made.

Answers themselves are put together where their parts arise; tests hold them to these shapes.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from engine.messages import LayerResidency

FinishReason = Literal["stop", "length", "tool_calls"]


class _Exactly(Struct, forbid_unknown_fields=True, kw_only=True):
    """No other fields than these."""


# --- errors -----------------------------------------------------------------------------------


class ErrorDetail(_Exactly, kw_only=True):
    message: str
    type: str
    param: str | None
    """The field at fault."""
    code: str


class Error(_Exactly, kw_only=True):
    """A refusal, in OpenAI's shape."""

    error: ErrorDetail


class AnthropicErrorDetail(_Exactly, kw_only=True):
    type: str
    message: str
    details: dict[str, str]


class AnthropicError(_Exactly, kw_only=True):
    """A refusal, in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorDetail


# --- chat completions and completions ---------------------------------------------------------


class CachedTokens(_Exactly, kw_only=True):
    cached_tokens: int


class ReasoningTokens(_Exactly, kw_only=True):
    reasoning_tokens: int


class Usage(_Exactly, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TopLogprob(_Exactly, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Exactly, kw_only=True):
    content: list[TokenLogprobs]
    refusal: None


class FunctionAnswer(_Exactly, kw_only=True):
    name: str
    arguments: str


class ToolCallAnswer(_Exactly, kw_only=True):
    id: str
    type: Literal["function"]
    function: FunctionAnswer


class ChatAnswerMessage(_Exactly, kw_only=True):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET


class ChatChoice(_Exactly, kw_only=True):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(_Exactly, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class CompletionLogprobs(_Exactly, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(_Exactly, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(_Exactly, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


# --- responses --------------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(_Exactly, kw_only=True):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprobs]


class ReasoningText(_Exactly, kw_only=True):
    type: Literal["reasoning_text"]
    text: str


class MessageItem(_Exactly, kw_only=True, tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningItem(_Exactly, kw_only=True, tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(_Exactly, kw_only=True, tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomToolCallItem(_Exactly, kw_only=True, tag="custom_tool_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class InputTokensDetails(_Exactly, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(_Exactly, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ModelResponse(_Exactly, kw_only=True):
    """A response. Much of it tells back what the request said."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | UnsetType | None = UNSET
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: bool
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: str
    usage: ResponseUsage | None
    user: str | None


class InputTokens(_Exactly, kw_only=True):
    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(_Exactly, kw_only=True):
    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(_Exactly, kw_only=True):
    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool
    first_id: str | None
    last_id: str | None


# --- messages ---------------------------------------------------------------------------------


class TextBlock(_Exactly, kw_only=True, tag="text"):
    text: str


class ThinkingBlock(_Exactly, kw_only=True, tag="thinking"):
    thinking: str
    signature: str


class ToolUseBlock(_Exactly, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(_Exactly, kw_only=True):
    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class Message(_Exactly, kw_only=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    context_management: dict[str, list[Any]] | UnsetType = UNSET


class MessageTokens(_Exactly, kw_only=True):
    input_tokens: int


# --- models, tokens, the engine ---------------------------------------------------------------


class Model(_Exactly, kw_only=True):
    """In the shape of OpenAI and of Anthropic at once."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    created_at: str
    reasoning_efforts: list[str]
    """Extension: what of `reasoning_effort` makes a difference to this model."""
    context_length: int | None


class ModelList(_Exactly, kw_only=True):
    object: Literal["list"]
    data: list[Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


class TokenPiece(_Exactly, kw_only=True):
    id: int
    piece: str


class Tokens(_Exactly, kw_only=True):
    count: int
    max_model_len: int | None
    tokens: list[int | TokenPiece]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(_Exactly, kw_only=True):
    prompt: str
    content: str


class HealthError(_Exactly, kw_only=True):
    code: str
    message: str
    hint: str


class Health(_Exactly, kw_only=True):
    status: str
    model: str
    phase: str | UnsetType = UNSET
    done: int | UnsetType = UNSET
    total: int | UnsetType = UNSET
    unit: str | UnsetType = UNSET
    error: HealthError | UnsetType = UNSET


class ExpertResidency(_Exactly, kw_only=True):
    experts: int
    generation: int
    layers: list[LayerResidency]


class OwnerAnswer(_Exactly, kw_only=True):
    owner_pid: int


class Stopping(_Exactly, kw_only=True):
    status: Literal["stopping"]
