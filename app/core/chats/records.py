"""Conversations as rows of the database, and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from app.core.conversation import ChatSettings, Conversation, Message, MessageState

_COLUMNS = ("number", "parent", "role", "text")
_CUT_OFF = "Cut off: Headrace ended while this was being written"


@dataclass(frozen=True)
class Entry:
    """A line of the list."""

    id: str
    title: str
    updated: float
    """Seconds since 1970."""


@dataclass(frozen=True)
class Snapshot:
    """A conversation as it was at a moment, with some of its messages, for another thread."""

    id: str
    title: str
    created: float
    updated: float
    leaf: int
    settings: ChatSettings
    messages: list[Message] = field(default_factory=list)

    @classmethod
    def of(cls, chat: Conversation, messages: Iterable[Message]) -> Snapshot:
        return cls(
            chat.id,
            chat.title,
            chat.created,
            chat.updated,
            chat.leaf,
            chat.settings,
            [_copy(message) for message in messages],
        )

    def after(self, earlier: Snapshot) -> Snapshot:
        """This one, with the messages of an earlier one that was not written."""
        every = {m.number: m for m in (*earlier.messages, *self.messages)}
        return replace(self, messages=list(every.values()))


def rest_of(message: Message) -> str:
    """What of a message has no column of its own, as JSON."""
    every: dict[str, object] = msgspec.to_builtins(message)
    return msgspec.json.encode({k: v for k, v in every.items() if k not in _COLUMNS}).decode()


class _Head(msgspec.Struct, array_like=True, frozen=True):
    id: str
    title: str
    created: float
    updated: float
    leaf: int
    settings: str
    deleted: float | None
    broken: int


def entry_of(row: tuple[object, ...]) -> Entry | None:
    """None where it is not to be listed. Raises msgspec.ValidationError where it is damaged."""
    if row[-1]:
        return None
    head = msgspec.convert(row, _Head)
    return Entry(head.id, head.title, head.updated) if head.deleted is None else None


def conversation_of(row: tuple[object, ...], rows: list[tuple[object, ...]]) -> Conversation:
    """Raises msgspec.MsgspecError, ValueError or TypeError where something of it is damaged."""
    head = msgspec.convert(row, _Head)
    chat = Conversation()
    chat.id, chat.title, chat.created, chat.updated = (
        head.id,
        head.title,
        head.created,
        head.updated,
    )
    chat.settings = msgspec.json.decode(head.settings, type=ChatSettings)
    for _, number, parent, role, text, rest in rows:
        columns = {"number": number, "parent": parent, "role": role, "text": text}
        if not isinstance(rest, str):
            raise TypeError("a message is not text")
        message = msgspec.convert({**msgspec.json.decode(rest), **columns}, Message)
        if message.role not in ("user", "assistant") or not message.parent < message.number:
            raise ValueError(f"message {message.number} stands nowhere")
        if message.state is MessageState.STREAMING:
            message.state, message.note = MessageState.STOPPED, _CUT_OFF
        chat.all[message.number] = message
    chat.show(head.leaf)
    return chat


def _copy(message: Message) -> Message:
    calls = [msgspec.structs.replace(call) for call in message.calls]
    return replace(message, files=list(message.files), calls=calls)
