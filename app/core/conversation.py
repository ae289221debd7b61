"""The chat's document: messages, the one that is being written, and what is sent to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MessageState(StrEnum):
    DONE = "done"
    STREAMING = "streaming"
    STOPPED = "stopped"
    """The person pressed Stop; what came until then stays."""
    FAILED = "failed"


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

    @property
    def blank(self) -> bool:
        """Whether a reader would see nothing of the text."""
        return not any(letter.isprintable() and not letter.isspace() for letter in self.text)


class Conversation:
    """User and assistant messages in turn. At most the last one is being written."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    @property
    def answer(self) -> Message | None:
        """The message that is being written."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.state is MessageState.STREAMING else None

    def ask(self, text: str) -> Message:
        """Add the person's message and begin the answer to it. Raises ValueError out of turn."""
        if self.answer is not None:
            raise ValueError("an answer is still being written")
        if not text.strip():
            raise ValueError("a message needs some text")
        self.messages.append(Message("user", text.strip()))
        return self._begin_answer()

    def retry(self) -> Message:
        """Drop the last answer and begin it again. Raises ValueError where there is none."""
        if self.answer is not None or len(self.messages) < 2:
            raise ValueError("there is no finished answer to write again")
        self.messages.pop()
        return self._begin_answer()

    def append(self, text: str, reasoning: str = "") -> None:
        """Text that arrived for the answer; late pieces of a stopped one are dropped."""
        if answer := self.answer:
            answer.text += text
            answer.reasoning += reasoning

    def finish(self, note: str = "") -> None:
        self._close(MessageState.DONE, note=note)

    def stop(self) -> None:
        self._close(MessageState.STOPPED, note="Stopped")

    def fail(self, error: str) -> None:
        self._close(MessageState.FAILED, error=error)

    def clear(self) -> None:
        self.messages.clear()

    def for_request(self) -> list[dict[str, str]]:
        """The messages to send: no reasoning, no turns that failed before any text."""
        sent: list[dict[str, str]] = []
        for message in self.messages:
            if message.state is MessageState.STREAMING:
                continue
            if message.role == "assistant" and not message.text:
                if sent and sent[-1]["role"] == "user":
                    sent.pop()  # a question without an answer would stand twice in a row
                continue
            sent.append({"role": message.role, "content": message.text})
        return sent

    def _begin_answer(self) -> Message:
        answer = Message("assistant", state=MessageState.STREAMING)
        self.messages.append(answer)
        return answer

    def _close(self, state: MessageState, *, note: str = "", error: str = "") -> None:
        if answer := self.answer:
            answer.state, answer.note, answer.error = state, note, error
