"""A tokenizer out of the vocabulary that a GGUF file carries.

Only byte-pair vocabularies ("gpt2") with a pre-tokenizer that is known here by name are read: a
wrong pre-tokenizer splits words in other places and the model answers worse without a sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ModelFilesError, UnsupportedModel
from engine.formats.model_files import open_gguf

_CONTROL, _USER_DEFINED = 3, 4


@dataclass(frozen=True)
class _PreTokenizer:
    pattern: str | None
    """None: every digit by itself, then GPT-2's own pattern."""
    ignore_merges: bool = False
    nfc: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PRE_TOKENIZERS = {
    "smollm": _PreTokenizer(None),
    # Llama 3: words with one leading character, up to three digits together.
    "llama-bpe": _PreTokenizer(
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST, ignore_merges=True
    ),
    # Qwen 2 to 3: the same with single digits, over composed characters.
    "qwen2": _PreTokenizer(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST, nfc=True),
}


def read_metadata(path: Path) -> dict[str, Any]:
    """A GGUF file's metadata. Raises ModelFilesError naming the file."""
    return open_gguf(path).metadata


def gguf_tokenizer(path: Path, metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """Raises ModelFilesError for a broken vocabulary, UnsupportedModel for an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise UnsupportedModel(
            f"{path}: tokenizer.ggml.model is {kind!r}; only 'gpt2' (byte-pair) can be read."
        )
    name = metadata.get("tokenizer.ggml.pre")
    if name not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedModel(
            f"{path}: tokenizer.ggml.pre is {name!r}; the pre-tokenizers known are {known}."
        )
    pre = _PRE_TOKENIZERS[name]
    tokens = _strings(path, metadata, "tokenizer.ggml.tokens")
    merges = []
    for index, merge in enumerate(_strings(path, metadata, "tokenizer.ggml.merges")):
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise ModelFilesError(f"{path}: tokenizer.ggml.merges[{index}] is {merge!r}.")
        merges.append((left, right))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    try:
        inner = tokenizers.Tokenizer(
            models.BPE(vocabulary, merges, ignore_merges=pre.ignore_merges, fuse_unk=False)
        )
    except Exception as error:  # the library raises plain Exception, for a merge of unknown tokens
        raise ModelFilesError(f"{path}: tokenizer.ggml.merges: {error}.") from error
    if pre.nfc:
        inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = _pre_tokenizer(pre)
    inner.decoder = decoders.ByteLevel()
    _add_special_tokens(inner, path, metadata, tokens)
    return inner


def _pre_tokenizer(pre: _PreTokenizer) -> pre_tokenizers.PreTokenizer:
    if pre.pattern is None:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pre.pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _add_special_tokens(
    inner: tokenizers.Tokenizer, path: Path, metadata: dict[str, Any], tokens: list[str]
) -> None:
    kinds = metadata.get("tokenizer.ggml.token_type")
    if kinds is None or len(kinds) != len(tokens):
        raise ModelFilesError(
            f"{path}: tokenizer.ggml.token_type has {0 if kinds is None else len(kinds)} entries "
            f"for {len(tokens)} tokens."
        )
    inner.add_special_tokens(
        [
            AddedToken(token, normalized=False, special=True)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    inner.add_tokens(
        [
            AddedToken(token, normalized=False, special=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _USER_DEFINED
        ]
    )
    begin = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and begin is not None:
        text = _token_text(path, tokens, "tokenizer.ggml.bos_token_id", begin)
        inner.post_processor = processors.TemplateProcessing(
            single=f"{text} $A", special_tokens=[(text, int(begin))]
        )


def gguf_special_tokens(path: Path, metadata: dict[str, Any]) -> dict[str, str]:
    """bos_token and eos_token as text, for the template."""
    tokens = _strings(path, metadata, "tokenizer.ggml.tokens")
    found = {}
    for name in ("bos", "eos", "padding", "unknown"):
        key = f"tokenizer.ggml.{name}_token_id"
        if metadata.get(key) is not None:
            short = {"padding": "pad", "unknown": "unk"}.get(name, name)
            found[f"{short}_token"] = _token_text(path, tokens, key, metadata[key])
    return found


def gguf_ends(metadata: dict[str, Any]) -> list[int]:
    """Ids of the tokens that end an answer: end of sequence, of turn, of message."""
    keys = (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
    return [int(metadata[key]) for key in keys if metadata.get(key) is not None]


def _token_text(path: Path, tokens: list[str], key: str, number: int) -> str:
    if not 0 <= number < len(tokens):
        raise ModelFilesError(f"{path}: {key} is {number}, beyond the {len(tokens)} tokens.")
    return tokens[number]


def _strings(path: Path, metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise ModelFilesError(f"{path}: {key} is missing or not a list of strings.")
    return value
