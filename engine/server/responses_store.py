"""Responses that clients may refer to later: in memory, and only so many."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine.errors import HeadraceError
from engine.server.responses_input import Item

MAX_RESPONSES = 512
MAX_BYTES = 64 << 20


class ResponseNotFound(HeadraceError):
    code = "response_not_found"
    status = 404


class PreviousResponseNotFound(HeadraceError):
    code = "previous_response_not_found"
    status = 400


@dataclass(frozen=True)
class Stored:
    response: dict[str, Any]
    input: list[Item]
    """Of its own request."""
    conversation: list[Item]
    """All up to and with this response."""
    nbytes: int


class ResponseStore:
    """The oldest are forgotten first. Shared by everybody who may use the server."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, Stored] = OrderedDict()
        self._nbytes = 0

    def put(self, response: dict[str, Any], before: Sequence[Item], sent: list[Item]) -> None:
        """`before`: the conversation that this response's own input, `sent`, went on from."""
        nbytes = len(msgspec.json.encode((response, sent)))
        whole = [*before, *sent, *response["output"]]
        self._held[response["id"]] = Stored(response, sent, whole, nbytes)
        self._nbytes += nbytes
        while self._held and (
            len(self._held) > self._max_responses or self._nbytes > self._max_bytes
        ):
            _, oldest = self._held.popitem(last=False)
            self._nbytes -= oldest.nbytes

    def get(self, id_: str) -> Stored:
        """Raises ResponseNotFound."""
        found = self._held.get(id_)
        if found is None:
            raise ResponseNotFound(
                f"There is no response {id_!r}: it was never stored, or is forgotten.",
                hint=f"The last {self._max_responses} are kept, in memory.",
                param="response_id",
            )
        return found

    def previous(self, id_: str) -> Stored:
        """Raises PreviousResponseNotFound."""
        found = self._held.get(id_)
        if found is None:
            raise PreviousResponseNotFound(
                f"Previous response with id {id_!r} not found: it was not stored, or is forgotten.",
                hint="Send the whole conversation as input.",
                param="previous_response_id",
            )
        return found

    def delete(self, id_: str) -> None:
        """Raises ResponseNotFound."""
        self._nbytes -= self.get(id_).nbytes
        del self._held[id_]

    def item(self, id_: str) -> Item | None:
        """An output item, for clients that send no more than its id."""
        for stored in reversed(self._held.values()):
            for item in stored.response["output"]:
                if item.get("id") == id_:
                    return dict(item)
        return None
