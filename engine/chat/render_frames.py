"""What passes between a process that renders templates and the one that asks it to.

A frame is its length and that many bytes. A question is JSON: `template`, its source, and
`variables`, or null to see whether the template can be compiled, and the names of its
variables. An answer is an outcome and a text.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any

_LENGTH = struct.Struct("<I")
HEADER_BYTES = _LENGTH.size
MAX_PROMPT_CHARS = 64 << 20
"""Of a rendered prompt."""
RENDER_BYTES = 256 << 20
"""Memory that a render may take beside what the size of its question explains."""
BYTES_PER_BYTE = 24
"""Memory for each byte of a question: it is text, then objects, then pieces, then text again, at
up to four bytes a character."""
_MAX_ANSWER_BYTES = 1 + 4 * MAX_PROMPT_CHARS


class Outcome(IntEnum):
    RENDERED = 0
    REFUSED = 1
    """The template itself raised; the text is what it said."""
    STOPPED = 2
    """A limit was reached; the text says which, and follows "stopped: "."""
    FORBIDDEN = 3
    """The template did what templates may not; the text says what."""
    MISTAKE = 4
    """The source is no template; the text is the line and, after a colon, what is wrong."""
    FAILED = 5
    """The template stumbled over its variables; the text is the error's."""


def allowed_memory(question_bytes: int) -> int:
    """Bytes that a process may take for a question of this size."""
    return RENDER_BYTES + BYTES_PER_BYTE * question_bytes


def question(template: str, variables: dict[str, Any] | None) -> bytes:
    """One frame."""
    content = json.dumps({"template": template, "variables": variables}, ensure_ascii=False)
    body = content.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(body)) + body


def answer(outcome: Outcome, text: str) -> tuple[bytes, bytes]:
    """One frame, to be written in two parts: a copy of a long text may be more than there is room
    for."""
    said = text.encode("utf-8", "surrogatepass")
    return _LENGTH.pack(1 + len(said)) + bytes([outcome]), said


def read_answer(body: bytes) -> tuple[Outcome, str]:
    """Raises ValueError for what is no answer."""
    return Outcome(body[0]), body[1:].decode("utf-8", "surrogatepass")


def answer_length(header: bytes) -> int:
    """Bytes of the body after this header. Raises ValueError where no answer is so long."""
    length = body_length(header)
    if not 0 < length <= _MAX_ANSWER_BYTES:
        raise ValueError(f"an answer of {length} bytes")
    return length


def body_length(header: bytes) -> int:
    return int(_LENGTH.unpack(header)[0])
