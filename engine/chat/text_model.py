"""The text side of a model: tokenizer, chat template, ends, sampling defaults. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.chat.conversation import Message
from engine.chat.model_files import ModelPlace, read_json
from engine.chat.parsers import harmony, hermes
from engine.chat.parsers.answer import END_OF_THINKING, THINK, thinking_ends, thinking_opens
from engine.chat.parsers.families import (
    PLAIN,
    Family,
    family_named,
    family_of,
    opens_thinking,
)
from engine.chat.parsers.stream import OutputStream
from engine.chat.parsers.tools import Tool
from engine.chat.reasoning import ReasoningControls, Variables, Wish
from engine.chat.sampling import sampling_defaults
from engine.chat.structured import Thinking
from engine.chat.templates import ChatTemplate, Ending, TemplateSource, template_source
from engine.chat.tokenizer import Tokenizer, end_tokens, load_tokenizer, special_map
from engine.errors import ContextLengthExceeded, InvalidRequest
from engine.messages import Sampling, ThinkingBudget, UseVocabulary


class PromptTooLong(ContextLengthExceeded):
    """`tokens` is what was counted before giving up: a lower bound where `exact` is False."""

    def __init__(self, tokens: int, limit: int, param: str, *, exact: bool = True) -> None:
        count = str(tokens) if exact else f"at least {tokens}"
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but the prompt has {count} "
            "tokens and the answer needs at least one more.",
            hint="Shorten the conversation.",
            param=param,
        )
        self.tokens = tokens
        self.limit = limit


@dataclass(frozen=True)
class ChatPrompt:
    tokens: list[int]
    thinking: Thinking
    """Whether the answer begins inside a thinking tag, or may open one."""


@dataclass(frozen=True)
class TextModel:
    place: ModelPlace
    tokenizer: Tokenizer
    template: ChatTemplate | None
    end_tokens: tuple[int, ...]
    """Union of what config.json, generation_config.json and the tokenizer call ends."""
    defaults: Sampling
    family: Family = PLAIN
    """How the model writes reasoning and tool calls."""

    @property
    def name(self) -> str:
        return self.place.name

    def speaking(self, *, tools: bool) -> Family:
        """The family of an answer. A model without a way of its own to call tools is told of the
        most common one, as its template tells it of the tools."""
        if tools and self.family is PLAIN:
            return family_named(hermes.NAME)
        return self.family

    def chat_prompt(
        self,
        messages: list[Message],
        *,
        context_tokens: int,
        variables: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
        ending: Ending = "answer",
    ) -> ChatPrompt:
        """A conversation up to where the answer begins, or goes on.

        Raises ContextLengthExceeded (quickly, for texts far too long), and InvalidRequest when the
        template refuses the messages or there is none.
        """
        if self.template is None:
            raise InvalidRequest(
                f"The model {self.name} has no chat template.",
                hint="Send plain text to /v1/completions instead.",
                param="messages",
            )
        for message in messages:
            # Rendering takes its time with long texts. What a person says is in every prompt whole;
            # templates may leave out parts of older answers, and spaces around a text.
            if message["role"] in ("user", "tool"):
                self._refuse_far_too_long(message["content"].strip(), context_tokens, "messages")
        rendered = self.template.render(
            messages,
            control_tokens=tuple(self.tokenizer.special),
            variables=variables,
            tools=tools,
            ending=ending,
        )
        self._refuse_far_too_long(rendered.text, context_tokens, "messages")
        if rendered.shield:
            tokens = self.tokenizer.encode_shielded(rendered.text, rendered.shield)
        else:
            tokens = self.tokenizer.encode(rendered.text)
        tokens = fitting(tokens, context_tokens, "messages")
        if ending == "continued":
            return ChatPrompt(tokens, _thinking_within(messages[-1]["content"]))
        return ChatPrompt(tokens, self._thinking(rendered.text))

    @property
    def thinks(self) -> bool:
        """Whether the model may write reasoning before its answer."""
        known = self.template is not None and self.template.mentions(THINK)
        return known or self.family.name == harmony.NAME

    def _thinking(self, prompt: str) -> Thinking:
        if opens_thinking(prompt):
            return "opened"
        return (
            "possible" if self.thinks and not prompt.rstrip().endswith(END_OF_THINKING) else "none"
        )

    def thinking_budget(
        self, prompt: ChatPrompt, tokens: int | None, tools: Sequence[Tool]
    ) -> ThinkingBudget | None:
        """What closes an answer's thinking after so many tokens. None where none is asked, nothing
        is thought, or thoughts stand in no tags: gpt-oss's are messages of their own."""
        if tokens is None or prompt.thinking == "none" or self.family.name == harmony.NAME:
            return None
        stream = OutputStream(self.tokenizer.special)
        calls = self.speaking(tools=True).calls if tools else None
        opening = thinking_opens(stream) if prompt.thinking == "possible" else ""
        return ThinkingBudget(
            tokens=tokens,
            closing=self.tokenizer.encode(END_OF_THINKING),
            end=_sent(thinking_ends(stream)),
            call=_sent(calls(stream, tools).header) if calls is not None else "",
            opening=_sent(opening),
            marks=[self.tokenizer.special[spelling] for spelling in stream.marks],
        )

    @property
    def efforts(self) -> list[str]:
        """As `ReasoningControls.words`."""
        return self._reasoning.words

    @property
    def _reasoning(self) -> ReasoningControls:
        return ReasoningControls() if self.template is None else self.template.reasoning_controls

    def reasoning_variables(self, wish: Wish, param: str = "") -> Variables:
        """The template's variables for as much reasoning as is asked.

        It may render the template. Raises InvalidRequest naming `param`, if it is given, where a
        model that always reasons is asked not to, and TemplateStopped.
        """
        if wish == Wish():
            return {}
        controls = self._reasoning
        if param and wish.none and controls.off is None and (self.thinks or controls.always):
            raise InvalidRequest(
                f"The model {self.name} knows no reasoning effort 'none', which {param} asks "
                "for: its chat template cannot switch reasoning off.",
                param=param,
            )
        return controls.variables(wish)

    def template_variables(self, given: Variables, param: str) -> Variables:
        """A client's variables for the template, under the names that it has for them.

        It may render the template. Raises InvalidRequest naming `param` for a variable that the
        template never reads, and TemplateStopped. To switch off what a template cannot do is no
        contradiction.
        """
        found: Variables = {}
        for name, value in given.items():
            if self.template is None or self.template.reads(name):
                found[name] = value
                continue
            translated = self._reasoning.translated(name, value)
            if translated is None and value is not False:
                raise InvalidRequest(
                    f"{param}.{name} has no effect: the chat template of the model {self.name} "
                    "does not read it.",
                    param=f"{param}.{name}",
                )
            found.update(translated or {})
        return found

    def vocabulary(self) -> UseVocabulary:
        """What the runtime must know to hold an answer to a grammar."""
        return UseVocabulary(
            tokens=self.tokenizer.spellings(),
            special=sorted(self.tokenizer.special_ids),
            ends=list(self.end_tokens),
        )

    def text_prompt(self, text: str, *, context_tokens: int) -> list[int]:
        """Tokens of a plain text, with what the tokenizer itself puts in front."""
        self._refuse_far_too_long(text, context_tokens, "prompt")
        tokens = self.tokenizer.encode(text, add_special_tokens=True)
        return fitting(tokens, context_tokens, "prompt")

    def _refuse_far_too_long(self, text: str, context_tokens: int, param: str) -> None:
        least = self.tokenizer.at_least(text, context_tokens)
        if least > context_tokens:
            raise PromptTooLong(least, context_tokens, param, exact=False)


def _sent(pattern: str) -> str:
    """The same pattern in ASCII: no message can hold the surrogates that are control tokens."""
    return pattern.encode("ascii", "backslashreplace").decode()


def _thinking_within(content: str) -> Thinking:
    """Of an answer that goes on after this."""
    return "opened" if content.rfind(THINK) > content.rfind(END_OF_THINKING) else "none"


def fitting(tokens: list[int], context_tokens: int, param: str) -> list[int]:
    """The tokens, when there is room for them and one more."""
    if len(tokens) >= context_tokens:
        raise PromptTooLong(len(tokens), context_tokens, param)
    if not tokens:
        raise InvalidRequest("The prompt is empty: it has no tokens.", param=param)
    return tokens


def load_text_model(place: ModelPlace, family: str = "") -> TextModel:
    """`family`: how the model writes reasoning and calls; "" means as its template does.

    Raises ModelFilesError or UnsupportedModel naming the file and the field at fault."""
    if place.is_gguf:
        return _from_gguf(place, family)
    tokenizer = load_tokenizer(place)
    config = read_json(place.path / "config.json", required=True)
    generation_path = place.path / "generation_config.json"
    generation = read_json(generation_path)
    tokenizer_config = read_json(place.path / "tokenizer_config.json")
    special = special_map(tokenizer_config, read_json(place.path / "special_tokens_map.json"))
    nested = config.get("text_config")
    nested = nested if isinstance(nested, dict) else {}
    sizes = [fields.get("vocab_size") for fields in (config, nested)]
    ends = end_tokens(
        tokenizer,
        {
            f"{place.path / 'config.json'}: eos_token_id": config.get("eos_token_id"),
            f"{place.path / 'config.json'}: text_config.eos_token_id": nested.get("eos_token_id"),
            f"{generation_path}: eos_token_id": generation.get("eos_token_id"),
            f"{place.path / 'tokenizer_config.json'}: eos_token": special.get("eos_token"),
        },
        vocab_size=max((size for size in sizes if isinstance(size, int)), default=0),
    )
    source = template_source(place.path, tokenizer_config)
    return TextModel(
        place=place,
        tokenizer=tokenizer,
        template=ChatTemplate(source, special) if source else None,
        end_tokens=ends,
        defaults=sampling_defaults(generation, generation_path),
        family=_family(family, source),
    )


def _family(name: str, source: TemplateSource | None) -> Family:
    if name:
        return family_named(name)
    return family_of(source.text) if source else PLAIN


def _from_gguf(place: ModelPlace, family: str) -> TextModel:
    from engine.chat import gguf_tokenizer as gguf  # numpy only where a GGUF file is read

    metadata = gguf.read_metadata(place.path)
    tokenizer = Tokenizer(gguf.gguf_tokenizer(place.path, metadata), place.path)
    template = metadata.get("tokenizer.chat_template")
    source = (
        TemplateSource(template, f"{place.path}: tokenizer.chat_template")
        if isinstance(template, str)
        else None
    )
    special = gguf.gguf_special_tokens(place.path, metadata)
    return TextModel(
        place=place,
        tokenizer=tokenizer,
        template=ChatTemplate(source, special) if source else None,
        end_tokens=end_tokens(
            tokenizer, {f"{place.path}: the end tokens": gguf.gguf_ends(metadata)}
        ),
        defaults=Sampling(),
        family=_family(family, source),
    )
