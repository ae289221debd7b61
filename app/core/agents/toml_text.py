"""Edits of TOML files that people write: comments, order and layout stay as they are."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.agents.agent import AgentError

Plain = str | int | bool
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


def put(
    text: str, keys: Mapping[str, Plain], table: Sequence[str], own: Mapping[str, Plain]
) -> str:
    """The text with these keys at the top level, and with a table of this name that holds `own`.

    A table of that name is replaced. Raises AgentError where the text is no TOML, or where the
    same things are written in a way that is not understood here (an inline table, say).
    """
    bom = "\ufeff" if text.startswith("\ufeff") else ""
    newline = "\r\n" if "\r\n" in text else "\n"
    old = _parsed(text.removeprefix(bom))
    pieces = _statements(text.removeprefix(bom))
    for name, value in keys.items():
        _put_key(pieces, name, value, newline)
    _put_table(pieces, table, own, newline)
    result = "".join(pieces)
    if _parsed(result) != _changed({**old, **keys}, table, own):
        raise AgentError(
            f"{'.'.join(table)} is written there in a way that cannot be changed automatically.",
            hint="Write the lines by hand, or take the old ones out first.",
        )
    return bom + result


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AgentError(f"No TOML: {error}.") from error


def written(value: Plain) -> str:
    """A value in TOML, whose strings differ from JSON's in one letter."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _statements(text: str) -> list[str]:
    """The text in pieces of one statement each: lines up to where they can be read alone."""
    pieces, piece = [], ""
    for line in _LINES.findall(text):
        piece += line
        try:
            tomllib.loads(piece)
        except tomllib.TOMLDecodeError:
            continue
        pieces.append(piece)
        piece = ""
    return [*pieces, piece] if piece else pieces


def _is_header(piece: str) -> bool:
    return piece.lstrip().startswith("[")


def _put_key(pieces: list[str], name: str, value: Plain, newline: str) -> None:
    top = next((at for at, piece in enumerate(pieces) if _is_header(piece)), len(pieces))
    line = f"{name} = {written(value)}"
    for at, piece in enumerate(pieces[:top]):
        found = tomllib.loads(piece)
        if list(found) == [name]:
            if found[name] != value or type(found[name]) is not type(value):
                pieces[at] = line + _ending(piece)
            return
    # Behind the last key of the top level, in front of what is said of the first table.
    keys = [at for at, piece in enumerate(pieces[:top]) if tomllib.loads(piece)]
    at = keys[-1] + 1 if keys else 0
    _end_line(pieces, at, newline)
    pieces.insert(at, line + newline)


def _ending(piece: str) -> str:
    """A statement's comment and line end."""
    for at, letter in enumerate(piece):
        if letter == "#":
            try:
                if tomllib.loads(piece[:at]):
                    bare = piece[:at].rstrip()
                    return piece[len(bare) :]
            except tomllib.TOMLDecodeError:
                continue  # within a string
    return piece[len(piece.rstrip("\r\n")) :]


def _put_table(
    pieces: list[str], name: Sequence[str], own: Mapping[str, Plain], newline: str
) -> None:
    header = f"[{'.'.join(name)}]"
    lines = [header, *(f"{key} = {written(value)}" for key, value in own.items())]
    body = [line + newline for line in lines]
    wanted = _changed({}, name, {})
    for at, piece in enumerate(pieces):
        if _is_header(piece) and tomllib.loads(piece) == wanted:
            keys = [at]
            for further in range(at + 1, len(pieces)):
                if _is_header(pieces[further]):
                    break
                if tomllib.loads(pieces[further]):
                    keys.append(further)
            pieces[at : keys[-1] + 1] = body
            return
    _end_line(pieces, len(pieces), newline)
    if pieces and pieces[-1].strip():
        pieces.append(newline)
    pieces.extend(body)


def _end_line(pieces: list[str], at: int, newline: str) -> None:
    if at and not pieces[at - 1].endswith("\n"):
        pieces[at - 1] += newline


def _changed(whole: Mapping[str, Any], path: Sequence[str], value: Any) -> Any:
    if not path:
        return dict(value)
    inner = whole.get(path[0], {})
    if not isinstance(inner, dict):
        raise AgentError(f"{path[0]} is no table there.")
    return {**whole, path[0]: _changed(inner, path[1:], value)}
