"""When a step's experts are streamed: predicted seconds, without torch."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.experts.regime import Absence, seconds_fetched, seconds_streamed, streams
from tests.properties import examples

BLOB = 1_769_472
LINK = 55e9


def absence(tokens: int, absent: int = 6451) -> Absence:
    """Of 40 layers with 256 experts, 8 of them a token."""
    return Absence(tokens * 8, 256, 40, absent * BLOB)


def test_long_chunks_are_streamed_and_short_extends_fetched() -> None:
    assert [tokens for tokens in (1, 8, 30, 60) if streams(absence(tokens), LINK)] == []
    assert [n for n in (256, 512, 2048, 8192) if not streams(absence(n), LINK)] == []


def test_little_is_fetched_however_long_the_chunk() -> None:
    assert not streams(absence(8192, absent=0), LINK)
    assert not streams(absence(8192, absent=3), LINK)


def test_everything_crosses_once() -> None:
    nbytes = absence(8192).absent_bytes
    assert nbytes / LINK < seconds_streamed(absence(8192), LINK) < 1.05 * nbytes / LINK
    assert nbytes / LINK < seconds_fetched(absence(8192), LINK) < 1.1 * nbytes / LINK


@settings(max_examples=examples(100))
@given(st.integers(1, 4000), st.integers(1, 10240), st.floats(1e9, 2e11))
def test_more_tokens_never_fetch_what_fewer_stream(tokens: int, absent: int, link: float) -> None:
    if streams(absence(tokens, absent), link):
        assert streams(absence(tokens + 1, absent), link)


def test_it_needs_no_torch() -> None:
    code = "import sys, engine.experts.regime; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
