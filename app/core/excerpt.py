"""The beginning of a long text, for where all of it would be too much to lay out."""

from __future__ import annotations


def beginning(text: str, most_chars: int, most_lines: int) -> tuple[str, int]:
    """At most so much of the text, cut between words where it has any, and how many characters
    that leaves out.
    """
    end = len(text)
    if end > most_chars:
        end = most_chars
        blank = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
        end = blank if blank > most_chars // 2 else end
    lines = text[:end].split("\n", most_lines)
    if len(lines) > most_lines:
        end -= len(lines[-1]) + 1
    return text[:end], len(text) - end
