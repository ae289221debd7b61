"""Stop strings: found wherever the text is cut, never shown in part."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.chat.stops import StopStrings

TEXTS = st.text(alphabet="abc\n", max_size=24)
STOPS = st.lists(st.text(alphabet="abc\n", min_size=1, max_size=4), max_size=3)


def whole(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By the letter of the definition: the first end of any stop string, the longest one there."""
    for end in range(1, len(text) + 1):
        here = [stop for stop in stops if text[:end].endswith(stop)]
        if here:
            stop = max(here, key=len)
            return text[: end - len(stop)], stop
    return text, None


def streamed(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    finder = StopStrings(stops)
    shown = ""
    for piece in pieces:
        result = finder.feed(piece)
        shown += result.text
        if result.matched is not None:
            return shown, result.matched
    return shown + finder.finish(), None


@given(TEXTS, STOPS, st.lists(st.integers(0, 24), max_size=6))
def test_every_cut_gives_the_same(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert streamed(pieces, stops) == whole(text, stops)
    assert streamed(list(text), stops) == whole(text, stops)


def test_a_growing_stop_string_is_held_back() -> None:
    finder = StopStrings(["beta gamma"])
    assert finder.feed("alpha beta ").text == "alpha "
    assert finder.feed("gam").text == ""
    result = finder.feed("ma delta")
    assert (result.text, result.matched) == ("", "beta gamma")


def test_what_turns_out_otherwise_is_shown() -> None:
    finder = StopStrings(["</s>"])
    assert finder.feed("x </").text == "x "
    assert finder.feed("b>").text == "</b>"
    assert finder.finish() == ""


def test_no_stop_strings_hold_nothing_back() -> None:
    finder = StopStrings([""])
    assert finder.feed("<").text == "<"
