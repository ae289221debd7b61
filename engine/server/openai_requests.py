"""What OpenAI clients send: the records, their checks, and their meaning in the engine's terms.

Every known field is one of three kinds: it works; it is harmless here and accepted (the records
below say which and why); or it would change the answer and is refused by name. A field that is not
known at all is refused too.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec

from engine.chat.conversation import Message
from engine.errors import InvalidRequest
from engine.messages import Sampling
from engine.server.bodies import in_range, sampling_in_range
from engine.server.nested import CONTINUED, answering, refuse_unknown

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Padding against traffic analysis over the internet: meaningless on loopback, accepted."""


class _Common(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of chat completions and of completions."""

    model: str
    # These work.
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []
    logit_bias: dict[str, float] = {}
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = 1
    # Extensions that local engines share.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    # Harmless: they label or route a request, or hint at caching, and never touch the answer.
    user: str = ""
    metadata: dict[str, Any] = {}
    service_tier: str = ""
    prompt_cache_key: str = ""
    prompt_cache_retention: str = ""
    safety_identifier: str = ""
    store: bool = False
    """Only false: nothing is stored here."""

    def check_common(self) -> None:
        if self.n != 1:
            raise InvalidRequest(f"n is {self.n}; only 1 is supported.", param="n")
        if self.store:
            raise InvalidRequest("store: true is not supported; nothing is stored.", param="store")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options is only allowed with stream: true.", param="stream_options"
            )
        in_range(self.max_tokens, "max_tokens", 1)
        sampling_in_range(self)
        self.stop_strings()

    @property
    def usage_wanted(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def stop_strings(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        return checked_stops(stops, "stop")

    def sampling(self, defaults: Sampling, vocab_size: int) -> Sampling:
        """The request's sampling over the model's own defaults."""
        chosen: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": None if self.top_k is None else max(0, self.top_k),
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return msgspec.structs.replace(
            defaults,
            **{name: value for name, value in chosen.items() if value is not None},
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed is None else self.seed % (1 << 63),
            bias=_bias(self.logit_bias, vocab_size),
        )


class ChatRequest(_Common, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    chat_template_kwargs: dict[str, Any] = {}
    """Extension: variables of the model's own template, such as enable_thinking."""
    reasoning_effort: str = ""
    """Works where the template knows it; `none` also where it cannot reason."""
    # Harmless.
    parallel_tool_calls: bool = True
    prediction: Any = None
    """Speeds up, by definition without changing the answer."""
    # Refused unless they ask for what happens anyway.
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    functions: list[dict[str, Any]] = []
    function_call: str | dict[str, Any] = "auto"
    response_format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
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
        for tools, choice, name in (
            (self.tools, self.tool_choice, "tool_choice"),
            (self.functions, self.function_call, "function_call"),
        ):
            # With "none" the model is not told of the tools, so that it cannot call one.
            if choice not in ("none", "auto") and not (choice == "required" and tools):
                raise InvalidRequest(f"{name} {choice!r} is not supported yet.", param=name)
            if tools and choice != "none":
                field = "tools" if name == "tool_choice" else "functions"
                raise InvalidRequest(f"{field} is not supported yet.", param=field)
        if self.response_format.get("type") != "text":
            raise InvalidRequest(
                f"response_format {self.response_format.get('type')!r} is not supported yet.",
                param="response_format",
            )
        refuse_unknown(self.response_format, "response_format", ())
        for name, value, only in (
            ("modalities", self.modalities, ["text"]),
            ("verbosity", self.verbosity, "medium"),
            ("audio", self.audio, None),
            ("web_search_options", self.web_search_options, None),
        ):
            if value != only:
                raise InvalidRequest(f"{name} {value!r} is not supported.", param=name)

    def token_limit(self) -> int | None:
        limits = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(limits, default=None)


class CompletionRequest(_Common, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool = False
    suffix: str = ""
    best_of: int = 1

    def check(self) -> None:
        self.check_common()
        in_range(self.logprobs, "logprobs", 0, MAX_TOP_LOGPROBS)
        for name, value, only in (
            ("echo", self.echo, False),
            ("suffix", self.suffix, ""),
            ("best_of", self.best_of, 1),
        ):
            if value != only:
                raise InvalidRequest(f"{name} {value!r} is not supported.", param=name)

    def single_prompt(self, vocab_size: int) -> str | list[int]:
        """The prompt as text or token ids. Raises InvalidRequest for several prompts."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return prompt
        if len(prompt) == 1 and isinstance(prompt[0], str):
            return prompt[0]
        if len(prompt) == 1 and isinstance(prompt[0], list):
            prompt = list(prompt[0])
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) != len(prompt) or not ids:
            raise InvalidRequest(
                f"prompt is a list of {len(prompt)}; one prompt a request is supported: text, a "
                "list of one text, or token ids.",
                param="prompt",
            )
        for index, token in enumerate(ids):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"prompt[{index}] is {token}; the vocabulary ends at {vocab_size - 1}.",
                    param="prompt",
                )
        return ids


def checked_stops(stops: list[str], name: str) -> tuple[str, ...]:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"{name} has {len(stops)} entries, at most {MAX_STOPS}.", param=name)
    for index, stop in enumerate(stops):
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"{name}[{index}] has {len(stop)} characters; 1 to {MAX_STOP_CHARS} are allowed.",
                param=name,
            )
    return tuple(stops)


_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def _bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    found = {}
    for key, value in bias.items():
        token = int(key) if _TOKEN_ID.fullmatch(key) else vocab_size
        if token >= vocab_size:
            raise InvalidRequest(
                f"logit_bias names token {key!r}; the vocabulary is 0 to {vocab_size - 1}.",
                param="logit_bias",
            )
        in_range(value, "logit_bias", -100, 100)
        found[token] = value
    return found


# --- messages ---------------------------------------------------------------------------------

Content = str | list[dict[str, Any]]


class _Turn(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role"):
    content: Content = ""
    name: str = ""
    cache_control: Any = None
    """A caching hint of other servers, harmless."""


class SystemTurn(_Turn, tag="system", kw_only=True):
    pass


class DeveloperTurn(_Turn, tag="developer", kw_only=True):
    pass


class UserTurn(_Turn, tag="user", kw_only=True):
    pass


class CalledFunction(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    arguments: str | dict[str, Any] = "{}"


class ToolCall(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    function: CalledFunction
    id: str = ""
    type: str = "function"
    index: int = 0
    """Of a streamed call, replayed; they are in order."""


class AssistantTurn(_Turn, tag="assistant", kw_only=True):
    tool_calls: list[ToolCall] = []
    function_call: CalledFunction | None = None
    reasoning_content: str = ""
    reasoning: str = ""
    refusal: str = ""
    # Replayed parts of an answer that carry no text of their own.
    annotations: list[Any] = []
    audio: Any = None


class ToolTurn(_Turn, tag="tool", kw_only=True):
    tool_call_id: str = ""


class FunctionTurn(_Turn, tag="function", kw_only=True):
    pass


ChatMessage = SystemTurn | DeveloperTurn | UserTurn | AssistantTurn | ToolTurn | FunctionTurn
ROLES = tuple(str(turn.__struct_config__.tag) for turn in get_args(ChatMessage))


def conversation(messages: list[ChatMessage]) -> list[Message]:
    """The messages as templates read them. Raises InvalidRequest naming the part at fault."""
    return answering([_message(turn, f"messages[{index}]") for index, turn in enumerate(messages)])


def _message(turn: ChatMessage, where: str) -> Message:
    role = str(turn.__struct_config__.tag)
    message: Message = {
        "role": "tool" if role == "function" else role,
        "content": plain_text(turn.content, f"{where}.content"),
    }
    if turn.name:
        message["name"] = turn.name
    if isinstance(turn, ToolTurn) and turn.tool_call_id:
        message["tool_call_id"] = turn.tool_call_id
    if isinstance(turn, AssistantTurn):
        if not message["content"] and turn.refusal:
            message["content"] = turn.refusal
        if turn.reasoning_content or turn.reasoning:
            message["reasoning_content"] = turn.reasoning_content or turn.reasoning
        calls = list(turn.tool_calls)
        if turn.function_call is not None:
            calls.append(ToolCall(function=turn.function_call))
        if calls:
            message["tool_calls"] = [
                _tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)
            ]
    return message


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    arguments: Any = call.function.arguments
    if isinstance(arguments, str):
        try:
            # Strictly: what is no JSON, such as NaN, would stand in the prompt as if it were.
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError):
            arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequest(
            f"{where}.function.arguments is not a JSON object.", param=f"{where}.function.arguments"
        )
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def plain_text(content: Content, where: str) -> str:
    """Text, or the text parts joined by newlines. Raises InvalidRequest for anything else."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type")
        text = part.get("refusal" if kind == "refusal" else "text")
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise InvalidRequest(
                f"{where}[{index}] is of type {kind!r}; this model reads text only.",
                param=f"{where}[{index}]",
            )
        if not isinstance(text, str):
            raise InvalidRequest(f"{where}[{index}].text is not text.", param=f"{where}[{index}]")
        refuse_unknown(part, f"{where}[{index}]", ("refusal" if kind == "refusal" else "text",))
        texts.append(text)
    return "\n".join(texts)
