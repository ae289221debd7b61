"""Fields that chat completions and completions share: the records, their checks, their meaning.

Every known field is one of three kinds: it works; it is harmless here and accepted (the records
say which and why); or it would change the answer and is refused by name. A field that is not known
at all is refused too.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

import msgspec

from engine.chat.structured import AnswerFormat
from engine.errors import InvalidRequest
from engine.messages import Sampling
from engine.server.answer_formats import answer_format
from engine.server.bodies import in_range, sampling_in_range
from engine.server.choices import MAX_CHOICES

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
Verbosity = Literal["low", "medium", "high"]
"""A hint that no template knows."""


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Padding against traffic analysis over the internet: meaningless on loopback, accepted."""


class CommonFields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Fields of chat completions and of completions."""

    least_max_tokens: ClassVar[int] = 1

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
    response_format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    # Extensions that local engines share.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool = False
    regex: str | None = None
    """What the answer must match, as a whole."""
    grammar: str | None = None
    """The same as a Lark grammar with a rule `start`."""
    # Harmless: they label or route a request, or hint at caching, and never touch the answer.
    user: str = ""
    metadata: dict[str, Any] = {}
    service_tier: str = ""
    prompt_cache_key: str = ""
    prompt_cache_retention: str = ""
    prompt_cache_options: dict[str, Any] = {}
    safety_identifier: str = ""
    provider: Any = None
    cache_prompt: bool = True
    keep_alive: Any = None
    usage: Any = None
    """Asks for more than counts of tokens, which are always there."""
    store: bool = False
    """Only false: nothing is stored here."""

    def check_common(self) -> None:
        in_range(self.n, "n", 1, MAX_CHOICES)
        if self.store:
            raise InvalidRequest("store: true is not supported; nothing is stored.", param="store")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest(
                "stream_options is only allowed with stream: true.", param="stream_options"
            )
        in_range(self.max_tokens, "max_tokens", self.least_max_tokens)
        sampling_in_range(self)
        self.stop_strings()

    @property
    def usage_wanted(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def wanted(self) -> AnswerFormat | None:
        """What the text of the answer must be. Raises InvalidRequest."""
        return answer_format(self.response_format, self.regex, self.grammar)

    def stop_strings(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop
        return checked_stops(stops, "stop")

    def sampling(self, defaults: Sampling, vocab_size: int) -> Sampling:
        """The request's sampling over the model's own defaults."""
        return msgspec.structs.replace(
            chosen_sampling(self, defaults),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed is None else self.seed % (1 << 63),
            bias=_bias(self.logit_bias, vocab_size),
        )


def chosen_sampling(record: Any, defaults: Sampling) -> Sampling:
    """What the record sets of the parameters that a model may have its own defaults of."""
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    chosen = {name: getattr(record, name, None) for name in names}
    if chosen["top_k"] is not None:
        chosen["top_k"] = max(0, chosen["top_k"])
    return msgspec.structs.replace(
        defaults, **{name: value for name, value in chosen.items() if value is not None}
    )


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
