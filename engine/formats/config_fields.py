"""Typed access to a JSON config; every complaint names the file and the field. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.errors import ModelConfigError, ModelFilesError
from engine.formats.file_checks import require_file, unreadable

LARGEST_SIZE = 1 << 31
"""No size in a config is near this; a damaged one must not make anything that large."""

LARGEST_NUMBER = 3e38


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ModelFilesError that names the file."""
    require_file(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from error
    except UnicodeDecodeError as error:
        raise ModelFilesError(f"{path} is not UTF-8 text") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} does not hold a JSON object")
    return value


class Fields:
    """One object of a config. `source` is what a message calls it, such as a path."""

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.values = values
        self.source = source

    def error(self, name: str, problem: str) -> ModelConfigError:
        return ModelConfigError(f"{self.source}: field {name} {problem}")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def _value(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise self.error(name, "is missing")
        return default

    def integer(
        self,
        name: str,
        default: int | None = None,
        minimum: int = 1,
        maximum: int = LARGEST_SIZE,
    ) -> int:
        value = self._value(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(name, f"is {value!r}, not a whole number")
        if value < minimum:
            raise self.error(name, f"is {value}, below {minimum}")
        if value > maximum:
            raise self.error(name, f"is {value}, above {maximum}")
        return value

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        """A number greater than `above` that float32 can hold."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.error(name, f"is {value!r}, not a number")
        if not above < value < LARGEST_NUMBER:
            raise self.error(name, f"is {value!r}, not a usable number above {above:g}")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {value!r}, not true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"is {value!r}, not a string")
        return value

    def integers(self, name: str) -> list[int]:
        """A list of whole numbers; missing or null is an empty one."""
        value = self._value(name, [])
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self.error(name, f"is {value!r}, not a list of whole numbers")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings; missing or null is an empty one."""
        value = self._value(name, [])
        if not isinstance(value, list) or any(not isinstance(item, str) for item in value):
            raise self.error(name, f"is {value!r}, not a list of strings")
        return value

    def child(self, name: str) -> Fields:
        value = self._value(name, None)
        if not isinstance(value, dict):
            raise self.error(name, f"is {value!r}, not an object")
        return Fields(value, f"{self.source}: {name}")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id, a list of them, or null: as a tuple."""
        value = self.values.get(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        for item in ids:
            if type(item) is not int or item < 0:
                raise self.error(name, f"holds {item!r}, not a token id")
        return tuple(ids)
