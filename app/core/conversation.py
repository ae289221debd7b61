"""The chat's document: turns, their other versions, the one that is being written.

Messages form a tree. One that was edited and an answer that was written again stand beside what
they replace, under the same message, so that nothing is lost and each can be gone back to. What is
shown and sent is one path through it.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from app.core.attachments import Attachment, as_turn

ROOT = 0
"""The number that stands for "no message before this one"."""
_TITLE_CHARS = 60


class MessageState(StrEnum):
    DONE = "done"
    STREAMING = "streaming"
    STOPPED = "stopped"
    """The person pressed Stop, or the app ended; what came until then stays."""
    FAILED = "failed"


class ToolCall(msgspec.Struct):
    """What the model wants called. `arguments` is as it wrote it, JSON as a rule."""

    name: str = ""
    arguments: str = ""


class ChatSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation asks of the model. None and "" leave it to the engine and the model."""

    system: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    effort: str = ""
    """How much it shall think: a word of the engine's scale, `none` among them."""


@dataclass
class Message:
    role: str
    """user or assistant"""
    text: str = ""
    reasoning: str = ""
    state: MessageState = MessageState.DONE
    error: str = ""
    note: str = ""
    """Figures of the answer, or why it ended early."""
    cut: bool = False
    """Whether it ended at the length limit."""
    thinking_s: float = 0.0
    """How long the reasoning took."""
    files: list[Attachment] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    number: int = ROOT
    parent: int = ROOT

    @property
    def blank(self) -> bool:
        """Whether a reader would see nothing of the text."""
        return not any(letter.isprintable() and not letter.isspace() for letter in self.text)

    @property
    def empty(self) -> bool:
        """Whether nothing at all came of it."""
        return not (self.text or self.reasoning or self.calls)

    @property
    def continuable(self) -> bool:
        """Whether it is an answer that ended before its end, and within its text."""
        early = self.cut or self.state in (MessageState.STOPPED, MessageState.FAILED)
        return self.role == "assistant" and early and not self.blank and not self.calls


class Conversation:
    """User and assistant messages in turn. At most the last one is being written."""

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self.title = ""
        self.created = self.updated = time.time()
        self.settings = ChatSettings()
        self.messages: list[Message] = []
        """The path that is shown, from the first turn to the last."""
        self.all: dict[int, Message] = {}
        """Every message by its number."""

    @property
    def answer(self) -> Message | None:
        """The message that is being written."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.state is MessageState.STREAMING else None

    @property
    def leaf(self) -> int:
        """The number of the last message on the path."""
        return self.messages[-1].number if self.messages else ROOT

    def versions(self, message: Message) -> list[Message]:
        """The message and what stands in its place on other paths, the oldest first."""
        beside = [other for other in self.all.values() if other.parent == message.parent]
        return sorted(beside, key=lambda other: other.number)

    def ask(self, text: str, files: list[Attachment] | None = None) -> Message:
        """Add the person's message and begin the answer to it. Raises ValueError out of turn."""
        self._refuse_while_writing()
        if not text.strip() and not files:
            raise ValueError("a message needs some text")
        self._add(Message("user", text.strip(), files=list(files or [])))
        self.title = self.title or title_of(self.messages[0])
        return self._begin_answer()

    def edit(self, message: Message, text: str, files: list[Attachment] | None = None) -> Message:
        """Put another version beside a message of the person's and begin the answer to it."""
        self._refuse_while_writing()
        if not text.strip() and not files:
            raise ValueError("a message needs some text")
        self._cut_before(message)
        return self.ask(text, files)

    def retry(self) -> Message:
        """Begin the last answer again, beside what came of it. Raises ValueError where there is
        none."""
        if self.answer is not None or len(self.messages) < 2:
            raise ValueError("there is no finished answer to write again")
        last = self.messages.pop()
        if last.empty:
            del self.all[last.number]
        return self._begin_answer()

    def go_on(self) -> Message:
        """Let the last answer, which ended early, be written on."""
        self._refuse_while_writing()
        last = self.messages[-1] if self.messages else None
        if last is None or not last.continuable:
            raise ValueError("there is no answer to go on with")
        last.state, last.error, last.note, last.cut = MessageState.STREAMING, "", "", False
        return last

    def choose(self, message: Message) -> None:
        """Show the path through this version, to its newest end."""
        self._refuse_while_writing()
        self.show(_newest_end(self.all, message))

    def show(self, leaf: int) -> None:
        """Show the path to this message; to the newest one where there is no such."""
        path: list[Message] = []
        number = leaf if leaf in self.all else max(self.all, default=ROOT)
        while (message := self.all.get(number)) is not None:
            path.append(message)
            number = message.parent
        self.messages[:] = reversed(path)

    def append(self, text: str, reasoning: str = "") -> None:
        """Text that arrived for the answer; late pieces of a stopped one are dropped."""
        if answer := self.answer:
            answer.text += text
            answer.reasoning += reasoning

    def append_call(self, index: int, name: str, arguments: str) -> None:
        """A piece of the answer's call with this index."""
        if answer := self.answer:
            while len(answer.calls) <= index:
                answer.calls.append(ToolCall())
            answer.calls[index].name += name
            answer.calls[index].arguments += arguments

    def finish(self, note: str = "", *, cut: bool = False) -> None:
        self._close(MessageState.DONE, note=note, cut=cut)

    def stop(self) -> None:
        self._close(MessageState.STOPPED, note="Stopped")

    def fail(self, error: str) -> None:
        self._close(MessageState.FAILED, error=error)

    def for_request(self) -> list[dict[str, str]]:
        """The messages to send: no reasoning, no turns that failed before any text. An answer that
        is to go on stands at the end with what there is of it."""
        sent: list[dict[str, str]] = []
        for message in self.messages:
            if message.role == "assistant" and not message.text:
                if message is self.answer:
                    continue
                if sent and sent[-1]["role"] == "user":
                    sent.pop()  # a question without an answer would stand twice in a row
                continue
            sent.append({"role": message.role, "content": as_turn(message.text, message.files)})
        if self.settings.system.strip():
            sent.insert(0, {"role": "system", "content": self.settings.system.strip()})
        return sent

    def _refuse_while_writing(self) -> None:
        if self.answer is not None:
            raise ValueError("an answer is still being written")

    def _cut_before(self, message: Message) -> None:
        at = next(at for at, other in enumerate(self.messages) if other is message)
        del self.messages[at:]

    def _begin_answer(self) -> Message:
        return self._add(Message("assistant", state=MessageState.STREAMING))

    def _add(self, message: Message) -> Message:
        message.parent = self.leaf
        message.number = max(self.all, default=ROOT) + 1
        self.all[message.number] = message
        self.messages.append(message)
        self.updated = time.time()
        return message

    def _close(
        self, state: MessageState, *, note: str = "", error: str = "", cut: bool = False
    ) -> None:
        if answer := self.answer:
            answer.state, answer.note, answer.error, answer.cut = state, note, error, cut
            self.updated = time.time()


def title_of(message: Message) -> str:
    """A conversation's name from its first turn: one line, cut between words."""
    words = message.text or ", ".join(file.name for file in message.files)
    line = " ".join(words[: 4 * _TITLE_CHARS].split())
    if len(line) <= _TITLE_CHARS:
        return line
    cut = line[:_TITLE_CHARS].rsplit(" ", 1)[0]
    return f"{cut}…"


def _newest_end(every: dict[int, Message], message: Message) -> int:
    """The end of the path that always takes the newest of what follows."""
    followers: dict[int, int] = {}
    for number, other in every.items():
        followers[other.parent] = max(number, followers.get(other.parent, ROOT))
    number = message.number
    while number in followers:
        number = followers[number]
    return number
