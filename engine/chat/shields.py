"""Control-token spellings inside messages: kept plain text, up to the tokens.

A person may write about `<|im_end|>` without ending a turn. In the messages such a spelling is
broken by a shield character; a template then writes its own, unbroken ones around it. The rendered
text is encoded in one go by a twin of the tokenizer whose control tokens have private spellings.
"""

from __future__ import annotations

import functools
import json
import re
import secrets
from collections.abc import Iterable
from typing import Any

import tokenizers

from engine.chat.pieces import PieceEncoder
from engine.errors import InvalidRequest

# Unicode noncharacters: no text uses them, no tokenizer treats them specially.
SHIELDS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_DIGITS, _OPEN, _CLOSE = SHIELDS[:16], SHIELDS[16], SHIELDS[17]


@functools.lru_cache(maxsize=8)
def starts(spellings: tuple[str, ...]) -> re.Pattern[str]:
    """Matches the first character of every spelling, overlapping ones too."""
    return re.compile(f"(?=(?:{_one_of(spellings)}))(.)", re.DOTALL)


@functools.lru_cache(maxsize=8)
def _unbroken(spellings: tuple[str, ...], shield: str) -> re.Pattern[str]:
    """Matches spellings that no shield breaks (the longest at a place), and shields."""
    return re.compile(f"(?:{_one_of(spellings)})(?!{shield})|{shield}")


def _one_of(spellings: Iterable[str]) -> str:
    """An expression for any of them, longest first, as a tree: its cost is not their number."""
    tree: dict[str, Any] = {}
    for spelling in spellings:
        node = tree
        for char in spelling:
            node = node.setdefault(char, {})
        node[""] = {}

    def expression(node: dict[str, Any]) -> str:
        text = ""
        while len(node) == 1 and "" not in node:
            ((char, node),) = node.items()
            text += re.escape(char)
        branches = [re.escape(char) + expression(node[char]) for char in node if char]
        if not branches:
            return text
        return text + "(?:" + "|".join(branches) + ")" + ("?" if "" in node else "")

    return expression(tree) if tree else "(?!)"


def shield_for(messages: list[dict[str, Any]], control_tokens: re.Pattern[str]) -> str:
    """A character that is in none of the texts and names; "" where none has a control token.

    `control_tokens`: as `starts` makes it. Raises InvalidRequest where every shield is used.
    """
    texts = [text for message in messages for text in _texts(message)]
    if not any(map(control_tokens.search, texts)):
        return ""
    for shield in SHIELDS:
        if not any(shield in text for text in texts):
            return shield
    raise InvalidRequest(
        "The messages hold control-token spellings and every Unicode noncharacter.",
        param="messages",
    )


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def shielded(value: Any, control_tokens: re.Pattern[str], shield: str) -> Any:
    """The same, with every control token in its texts and names broken by the shield."""
    if isinstance(value, str):
        return control_tokens.sub(rf"\1{shield}", value)
    if isinstance(value, dict):
        return {
            shielded(key, control_tokens, shield): shielded(item, control_tokens, shield)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [shielded(item, control_tokens, shield) for item in value]
    return value


class Twin:
    """A tokenizer like another one, to which the spellings of control tokens are plain text."""

    def __init__(
        self, inner: tokenizers.Tokenizer, special: dict[str, int], vocabulary: Iterable[bytes]
    ) -> None:
        """`vocabulary`: as PieceEncoder takes it."""
        self._spellings = tuple(special)
        nonce = secrets.randbits(64)
        self._names = {text: _name(nonce, number) for text, number in special.items()}
        state = _renamed(json.loads(inner.to_str()), self._names)
        twin = tokenizers.Tokenizer.from_str(json.dumps(state))
        self._pieces = PieceEncoder(twin, vocabulary)
        # Numbers are the same unless the library has counted the added tokens another way.
        self._numbers = {}
        for number, token in inner.get_added_tokens_decoder().items():
            own = twin.token_to_id(self._names.get(token.content, token.content))
            if own is not None and own != number:
                self._numbers[own] = number

    def encode(self, text: str, shield: str) -> list[int]:
        """Tokens of a text in which spellings broken by `shield` are plain text, others are not."""
        pattern = _unbroken(self._spellings, shield)
        renamed = pattern.sub(lambda match: self._names.get(match.group(), ""), text)
        ids = self._pieces.encode(renamed)
        return [self._numbers.get(number, number) for number in ids] if self._numbers else ids


def _name(nonce: int, number: int) -> str:
    """A spelling that nobody can write into a message: they cannot know this run's nonce."""
    digits = "".join(_DIGITS[int(digit, 16)] for digit in f"{nonce:016x}{number:x}")
    return _OPEN + digits + _CLOSE


def _renamed(state: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A tokenizer.json whose control tokens are spelled otherwise, with the numbers they had."""
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = state["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): number for text, number in vocabulary.items()}
    else:  # pairs of a piece and its score
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        # A control token is never made by merging.
        model["merges"] = [
            pair for pair in pairs if not {pair[0], pair[1], pair[0] + pair[1]} & names.keys()
        ]
    state["post_processor"] = None
    return state
