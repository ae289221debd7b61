"""The engine's sentences in the app's terms: who has a window has fields, not a command line."""

from __future__ import annotations

import re

from app.core.settings import LABELS

_FIELDS = {
    "--model": "model",
    "--device": "device",
    "--moe-cache-rate": "moe_cache_rate",
    "--context": "context_tokens",
    "--port": "port",
    "--api-key": "api_key",
    "--api-key-file": "api_key",
}
"""Options of `headrace serve`, and the settings that the app makes them of."""

_OTHERS = {
    "--max-sequences": "the number of requests at once",
    "--prefill-chunk": "the tokens of a prompt in a step",
    "--kv-reserve-tokens": "the context that has room before experts",
    "--emulate-vram": "the size of the GPU that is played",
    "--emulate-link": "the rate of the link that is played",
}
"""Options that the app leaves as they are, in words."""

_OPTION = re.compile(r"(--[a-z][a-z-]*[a-z])(?: (auto|cpu|sim|cuda)\b)?")


def in_settings(sentence: str) -> str:
    """`End that program, or choose another port with “Port” in Settings`, for `--port`.

    An option may be followed by a device's name as its value. Options that no server of the app's
    can complain of stay as they are.
    """
    last = max((at.start() for at in _OPTION.finditer(sentence) if at[1] in _FIELDS), default=-1)

    def replaced(at: re.Match[str]) -> str:
        option, value = at[1], at[2]
        if option not in _FIELDS:
            return _OTHERS.get(option, option) + (f" {value}" if value else "")
        name = LABELS[_FIELDS[option]]
        quoted = f"“{name}: {value}”" if value else f"“{name}”"
        return f"{quoted} in Settings" if at.start() == last else quoted

    return _OPTION.sub(replaced, sentence)


def names_settings(sentence: str) -> bool:
    """Whether it sends the person to the settings."""
    return "” in Settings" in sentence
