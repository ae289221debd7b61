"""Text files that go with a message, and how the model is told of them.

In the turn that is sent each file stands before what the person wrote, as Markdown: a line with its
name, then its text in a fence that is longer than any within it.

    File: notes.txt
    ```
    ...
    ```
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

import msgspec

from app.core import units
from engine.errors import HeadraceError

MOST_BYTES = 1 << 20
"""Of one file: some 250,000 tokens, as much as the longest contexts hold."""
MOST_FILES = 16
_BACKTICKS = re.compile(r"`+")
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class AttachmentError(HeadraceError):
    """A file that cannot go with a message."""

    code = "attachment"


class Attachment(msgspec.Struct, frozen=True):
    name: str
    text: str


def read_attachment(path: Path) -> Attachment:
    """A text file in UTF-8, or in UTF-16 with its mark. Raises AttachmentError."""
    try:
        if not path.is_file():
            raise AttachmentError(f"“{path.name}” is no file. Only text files can be attached.")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
            total = path.stat().st_size
    except OSError as error:
        reason = error.strerror or str(error)
        raise AttachmentError(f"“{path.name}” cannot be read: {reason}.") from error
    if len(raw) > MOST_BYTES:
        raise AttachmentError(
            f"“{path.name}” has {units.size(total)}; {units.size(MOST_BYTES)} is the most that a "
            "file may have."
        )
    encoding = next((name for mark, name in _BOMS if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AttachmentError(f"“{path.name}” is not a text file (UTF-8 or UTF-16).")
    return Attachment(path.name, text.replace("\r\n", "\n").replace("\r", "\n"))


def as_turn(text: str, files: list[Attachment]) -> str:
    """What is sent to the model for a message with these files."""
    return "\n\n".join([*map(_fenced, files), *([text] if text else [])])


def _fenced(file: Attachment) -> str:
    longest = max((len(run) for run in _BACKTICKS.findall(file.text)), default=0)
    fence = "`" * max(3, longest + 1)
    name = " ".join(file.name.split())
    return f"File: {name}\n{fence}\n{file.text.removesuffix(chr(10))}\n{fence}"
