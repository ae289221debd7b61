"""Our reading of Harmony beside OpenAI's own, token by token, on answers of every shape."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from engine.chat.parsers import harmony as ours
from engine.chat.parsers.events import Piece
from tests.chat.oracles.harmony import harmony
from tests.chat.parsers.goldens import HARMONY, Answer, answer

ANSWERS = 300
FULL_ANSWERS = 20_000
FULL = pytest.param(FULL_ANSWERS, marks=[pytest.mark.full, pytest.mark.timeout(3000)])
TEXTS = (
    "Hm. 17 × 3 = 51.",
    "Yes",
    "",
    " two  spaces ",
    "line\nline\n\n",
    "a <|end|> as text, <|call|> too",
    "naïve 聪明 👩‍🚀🏳️‍🌈 𒂀",
    'to=functions.f <|channel|>final "{}"',
    "analysis",
    "{}",
)
VALUES = ("Oslo", "", 'a "quote"', "}{", "é👩‍🚀", "two\nlines", 7, -2.5, None, True, [1, {"a": []}])
NAMES = ("f", "read_file", "a.b-c", "get_weather2")


@dataclass
class Written:
    """An answer as a model writes it, and what it says."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


class Writer:
    def __init__(self, draw: random.Random, encoding: Any) -> None:
        self.draw = draw
        self.encoding = encoding

    def write(self) -> list[int]:
        """After `<|start|>assistant`, which the prompt ends with."""
        kinds = ["analysis", "final", "preamble", "call", "call"]
        tokens: list[int] = []
        for number in range(self.draw.randrange(1, 6)):
            if number:
                tokens += self.markup("<|start|>assistant")
            tokens += self.message(self.draw.choice(kinds))
        # The token that ends an answer is not part of the output.
        return tokens[:-1] if self.draw.random() < 0.5 else tokens

    def message(self, kind: str) -> list[int]:
        if kind == "call":
            return self.call()
        channel = "commentary" if kind == "preamble" else kind
        head = self.markup(f"<|channel|>{channel}<|message|>")
        return [*head, *self.plain(self.draw.choice(TEXTS)), *self.markup("<|end|>")]

    def call(self) -> list[int]:
        to = f" to=functions.{self.draw.choice(NAMES)}"
        before = self.draw.random() < 0.4
        head = f"{to if before else ''}<|channel|>commentary{'' if before else to}"
        head += self.draw.choice((" <|constrain|>json", "<|constrain|>json", " json", ""))
        keys = self.draw.sample(("a", "city", "é"), self.draw.randrange(4))
        arguments = {key: self.draw.choice(VALUES) for key in keys}
        indent = self.draw.choice((None, 2))
        body = json.dumps(arguments, indent=indent, ensure_ascii=self.draw.random() < 0.5)
        return [*self.markup(f"{head}<|message|>"), *self.plain(body), *self.markup("<|call|>")]

    def markup(self, text: str) -> list[int]:
        return list(self.encoding.encode(text, allowed_special="all"))

    def plain(self, text: str) -> list[int]:
        return list(self.encoding.encode(text, disallowed_special=()))


def theirs(tokens: list[int]) -> tuple[Written, bool]:
    """What their parser makes of it; whether it ends within a header."""
    package, encoding = harmony()
    parser = package.StreamableParser(encoding, package.Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    found = Written(tokens)
    for message in parser.messages:
        _take(found, message.channel, message.recipient, message.content[0].text)
    inside = parser.state == package.StreamState.CONTENT
    if inside:
        _take(found, parser.current_channel, parser.current_recipient, parser.current_content)
    return found, not inside


def _take(found: Written, channel: str, recipient: str | None, content: str) -> None:
    if recipient is not None and recipient != "assistant":
        found.calls.append((recipient.removeprefix("functions."), content))
    elif channel == "analysis":
        found.reasoning += content
    else:
        found.text += content


def pieces(encoding: Any, tokens: list[int]) -> Iterator[Piece]:
    """As a detokenizer hands tokens on: text in whole characters, control tokens by themselves."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for token in tokens:
        if encoding.is_special_token(token):
            if rest := decoder.decode(b"", final=True):
                yield Piece(rest)
            yield Piece(encoding.decode([token]), control=True)
        elif text := decoder.decode(bytes(encoding._inner.decode_bytes([token]))):
            yield Piece(text)


def parsed(tokens: list[int]) -> Answer:
    _, encoding = harmony()
    parser = ours.parser(HARMONY, tools=True)
    events = [event for piece in pieces(encoding, tokens) for event in parser.feed(piece)]
    return answer([*events, *parser.finish()])


def compare(tokens: list[int]) -> None:
    expected, in_header = theirs(tokens)
    got = parsed(tokens)
    shown = harmony()[1].decode(tokens)
    assert got.reasoning == expected.reasoning, shown
    # What was begun as a header and never became one is text here, so that nothing is lost.
    assert got.text == expected.text or (in_header and got.text.startswith(expected.text)), shown
    calls = [(name, arguments) for name, arguments, _ in got.calls]
    assert [name for name, _ in calls] == [name for name, _ in expected.calls], shown
    for (_, arguments), (_, content) in zip(calls, expected.calls, strict=True):
        assert arguments.strip() == content.strip(), shown


@pytest.mark.parametrize("answers", [ANSWERS, FULL])
def test_answers_are_read_as_by_their_parser(answers: int) -> None:
    _, encoding = harmony()
    for seed in range(answers):
        draw = random.Random(seed)
        tokens = Writer(draw, encoding).write()
        compare(tokens)
        compare(tokens[: draw.randrange(len(tokens) + 1)])


def test_what_their_renderer_writes_is_read() -> None:
    """Messages in their words, rendered by them: the assistant's turn comes back as it was."""
    package, encoding = harmony()
    role = package.Role.ASSISTANT

    def message(text: str, channel: str) -> Any:
        return package.Message.from_role_and_content(role, text).with_channel(channel)

    call = message('{"city": "Oslo"}', "commentary").with_recipient("functions.weather")
    turns = [
        message("Hm, the weather.", "analysis"),
        message("I look.", "commentary"),
        call.with_content_type("<|constrain|>json"),
    ]
    conversation = package.Conversation.from_messages(turns)
    keep = package.RenderConversationConfig(auto_drop_analysis=False)
    rendered = encoding.render_conversation(conversation, config=keep)
    start = encoding.encode("<|start|>assistant", allowed_special="all")
    assert rendered[: len(start)] == start
    got = parsed(rendered[len(start) :])
    assert (got.reasoning, got.text) == ("Hm, the weather.", "I look.")
    assert got.calls == [("weather", '{"city": "Oslo"}', True)]
