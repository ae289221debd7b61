"""An answer that grows shows what it would show whole, and costs the same at its end."""

import html
import random
import re

import pytest

from app.core.code_spans import MOST_OPEN_CHARS, CodeSpans
from app.core.growing_markdown import READ_CHARS, GrowingMarkdown
from app.core.markdown import Code, Markdown, Piece

PARAGRAPHS = "\n\n".join(f"Line {at} of **a** `story` about <rivers>. " * 6 for at in range(20))
CODE = "".join(f"def f{at}(x):\n    return 'a' + x  # {at}\n\n" for at in range(90))
TEXTS = {
    "paragraphs": PARAGRAPHS,
    "one paragraph": "word and word " * 400,
    "no blank": "x" * 7_000,
    "code": f"Here:\n\n```python\n{CODE}```\n\nThat is it.",
    "open code": f"Here:\n\n~~~\n{CODE}",
    "nested fences": "````md\n```py\nx = 1\n```\n````\n\nafter\n\n```\n~~~\n```\n",
    "list": "".join(f"{at}. item *number* {at}\n" for at in range(1, 250)),
    "loose list": "".join(f"- item\n\n  more of {at}\n\n" for at in range(90)),
    "table": "| a | b |\n|---|---|\n" + "".join(f"| {at} | x{at} |\n" for at in range(160)),
    "quote": "".join(f"> line {at} of a long quote\n" for at in range(120)),
    "headings": "".join(f"# Part {at}\n\ntext\n\n---\n\n" for at in range(60)),
    "long line of code": "```\n" + "y" * 6_000 + "\n```\n\nend",
}


@pytest.fixture
def markdown() -> Markdown:
    return Markdown(style="one-dark", inline_code="#112233", muted="#445566", rule="#778899")


def words(pieces: list[Piece]) -> str:
    """All that a reader sees, without white space; a table's head, which is repeated, once."""
    seen = []
    for piece in pieces:
        shown = piece.text if isinstance(piece, Code) else _plain(piece.html)
        seen.append("".join(shown.split()))
    return "".join(seen)


def _plain(body: str) -> str:
    return html.unescape(re.sub(r"<thead>.*?</thead>|<[^>]*>", "", body, flags=re.DOTALL))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("step", [71, 5_000])
def test_it_shows_what_the_whole_text_shows(markdown: Markdown, text: str, step: int) -> None:
    growing = GrowingMarkdown(markdown)
    shown: list[Piece] = []
    for end in [*range(step, len(text), step), len(text)]:
        while True:
            before = growing.work
            fresh = growing.grow(text[:end])
            assert growing.pieces[:fresh] == shown[:fresh], "what was closed has changed"
            assert growing.work - before <= 2 * READ_CHARS
            shown = list(growing.pieces)
            if growing.taken >= end:
                break
    assert growing.taken == len(text)
    assert words(shown) == words(markdown.pieces(text))
    assert len(shown) <= len(text) / 250 + 6
    codes = [piece for piece in shown if isinstance(piece, Code)]
    whole = [piece for piece in markdown.pieces(text) if isinstance(piece, Code)]
    assert [(c.text, c.language) for c in codes] == [(c.text, c.language) for c in whole]


def test_numbers_of_a_list_go_on(markdown: Markdown) -> None:
    growing = GrowingMarkdown(markdown)
    text = TEXTS["list"]
    while growing.taken < len(text):
        growing.grow(text)
    starts = [int(at) for p in growing.pieces for at in re.findall(r'start="(\d+)"', p.html)]
    assert len(starts) > 2 and starts == sorted(starts)


def test_a_tables_parts_have_its_head(markdown: Markdown) -> None:
    growing = GrowingMarkdown(markdown)
    text = TEXTS["table"]
    while growing.taken < len(text):
        growing.grow(text)
    assert len(growing.pieces) > 1
    assert all("<th>a</th>" in piece.html for piece in growing.pieces)


def test_code_that_grows_has_the_colours_of_the_whole() -> None:
    whole, _ = CodeSpans("python", "one-dark").spans(CODE)
    growing = CodeSpans("python", "one-dark")
    pick = random.Random(1)
    settled, colours, end = 0, "", 0
    while end < len(CODE):
        end = min(len(CODE), end + pick.randint(1, 200))
        spans, more = growing.spans(CODE[settled:end])
        assert "".join(span.text for span in spans) == CODE[settled:end]
        assert end - settled <= MOST_OPEN_CHARS + 400
        colours = colours[:settled] + "".join(span.colour[-1:] * len(span.text) for span in spans)
        settled += more
    assert colours == "".join(span.colour[-1:] * len(span.text) for span in whole)


def test_nothing_is_settled_within_a_long_text() -> None:
    code = 'x = """\n' + "def f(): pass\n" * 50
    _, settled = CodeSpans("python", "one-dark").spans(code)
    assert settled == 0
