"""What a model writes is shown, never obeyed."""

import html
from html.parser import HTMLParser

import pytest

from app.core.markdown import Code, Markdown, Prose


@pytest.fixture
def markdown() -> Markdown:
    return Markdown(style="one-dark", inline_code="#112233", muted="#445566", rule="#778899")


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def tags(body: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(body)
    return parser.found


def prose(markdown: Markdown, text: str) -> str:
    (piece,) = markdown.pieces(text)
    assert isinstance(piece, Prose)
    return piece.html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "hello <img src=x onerror=alert(1)> there",
        "<b>bold</b>",
        "a <!-- comment --> b",
        '<a href="file:///etc/passwd">x</a>',
    ],
)
def test_html_is_text(markdown: Markdown, text: str) -> None:
    body = prose(markdown, text)
    assert {tag for tag, _ in tags(body)} <= {"p"}
    assert "&lt;" in body


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "vbscript:x",
        "//evil.example/x",
        "/etc/passwd",
        "smb://host/x",
    ],
)
def test_unsafe_links_are_no_links(markdown: Markdown, url: str) -> None:
    body = prose(markdown, f"[text]({url}) and <{url}>")
    assert not [tag for tag, _ in tags(body) if tag == "a"]


def test_safe_links_stay(markdown: Markdown) -> None:
    body = prose(markdown, "[a](https://example.org/?x=1&y=2) <mailto:me@example.org>")
    links = [attributes["href"] for tag, attributes in tags(body) if tag == "a"]
    assert links == ["https://example.org/?x=1&y=2", "mailto:me@example.org"]


def test_images_are_not_loaded(markdown: Markdown) -> None:
    body = prose(markdown, '![a "cat"](https://example.org/track.png) ![](x.png)')
    assert not [tag for tag, _ in tags(body) if tag == "img"]
    assert "[image: a &quot;cat&quot;]" in body
    assert "track.png" not in body


def test_code_stands_apart(markdown: Markdown) -> None:
    first, code, last = markdown.pieces("before\n\n```python\nx = '<b>'\n```\n\nafter")
    assert isinstance(first, Prose) and isinstance(last, Prose) and isinstance(code, Code)
    assert (code.text, code.language) == ("x = '<b>'", "python")
    assert {tag for tag, _ in tags(code.html)} == {"span"}


@pytest.mark.parametrize("text", ["[a]: http://b.c", "#", "-", "> ", "&nbsp;", "[](http://a.b)"])
def test_markup_around_nothing_is_seen_as_it_is(markdown: Markdown, text: str) -> None:
    assert prose(markdown, text) == f"<p>{html.escape(text)}</p>"


def test_an_open_fence_is_code_already(markdown: Markdown) -> None:
    (piece,) = markdown.pieces("```\nhalf a li")
    assert piece == Code("half a li", "", "half a li")


@pytest.mark.parametrize("language", ["", "no-such-language", "text onclick=x"])
def test_unknown_languages_are_plain(markdown: Markdown, language: str) -> None:
    (piece,) = markdown.pieces(f"```{language}\n<x>\n```")
    assert isinstance(piece, Code)
    assert "&lt;x&gt;" in piece.html


def test_nested_code_and_tables(markdown: Markdown) -> None:
    body = prose(markdown, "- a\n\n  ```c\n  int <x>;\n  ```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    kinds = [tag for tag, _ in tags(body)]
    assert "pre" in kinds and "table" in kinds
    assert "&lt;" in body


def test_highlighting_changes_no_text(markdown: Markdown) -> None:
    class Text(HTMLParser):
        text = ""

        def handle_data(self, data: str) -> None:
            self.text += data

    source = "\n\ndef f(x):\n\treturn f'{x!r}' + \"<&>\"  # ü\n\n\n"
    parser = Text()
    parser.feed(markdown.highlight(source, "python"))
    assert parser.text == source
