"""Grammars of texts as JSON strings spell them: equal to the text's own grammar, text by text."""

from __future__ import annotations

import contextlib
import json
import random
import threading

import pytest

from engine.chat.interruption import GivenUp, interruptible
from engine.chat.parsers.grammar import Grammar
from engine.chat.parsers.quoted_lark import quoted_lark
from engine.chat.parsers.quoted_regex import quoted_regex
from tests.chat.grammars import ByteModel, takes

MODEL = ByteModel(())
WALKS = 20


def fits(grammar: str, text: str) -> bool:
    whole = Grammar({})
    document = whole.document(whole.inner("lark_grammar", grammar))
    return takes(MODEL.compile(document), text.encode(), MODEL.end)


def spelled(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


STRINGS = """\
%import common.WS
%import common (LF, INT)
%import common.ESCAPED_STRING -> S
start: S WS INT LF
"""
GRAMMARS: list[tuple[str, list[str], list[str]]] = [
    ('start: "a"+', ["a", "aaa"], ["", "b"]),
    (r"start: /[^x]+/", ['a"\\\n\x00é\x1f/'], ["x", "ax"]),
    (r"start: /.+/", ['a"\\\t'], ["a\n"]),
    (r"start: /.+/s", ['a"\\\t\n'], [""]),
    (r"start: /(?s:.)./", ['\n"'], ["\n\n"]),
    (r"start: /((?s).(?-s).)./", ['\n"a'], ["\n\na", "aa\n"]),
    (r"start: /\s\S/", ['\n"', " a", '\x0b"'], ["\x1ca", "\n\n"]),
    (r'start: /[\s"]+/', ['\n" '], ["\x1c"]),
    (r'start: /[\n"]+/', ['\n"'], [" "]),
    (r"start: /\x{0a}\u{22}\x41\\\U0000000A/", ['\n"A\\\n'], [" "]),
    (r"start: /[[:cntrl:]]a/", ["\na"], ["xa"]),
    (r"start: /[^\s\d]{2}/", ['"\\'], ["\n1"]),
    (r"start: /[\w\"&&[^a]]\p{Greek}/", ['"α', "bβ"], ["aα"]),
    (r"start: /a\/b[\/\"]/", ['a/b"', "a/b/"], ["a/b\\"]),
    (r'start: /(?P<one>"|(?i:n\n))/', ['"', "N\n"], ["\\N"]),
    (r'start: "a\n\"b\\é\u0041"', ['a\n"b\\éA'], ["anb"]),
    (r'start: "N\n"i', ["n\n", "N\n"], ["nN"]),
    (r'start: " ".."#"', [" ", '"', "#"], ["$"]),
    (STRINGS, ['"a\\"b" \n7\n'], ['"a"7\n', '"a"b" 7\n']),
    ("%import common.C_COMMENT\nstart: C_COMMENT", ['/* a * "b" \n*/'], ["/* */ */"]),
    (
        '%ignore /[ \\n]+/\nstart: A B~2..3 // no "quote"\nA: /a+/ & /../\nB: "b" # nor "here"\n',
        ["aa\nb b"],
        ["aab", "abbb"],
    ),
]


@pytest.mark.parametrize(("grammar", "good", "bad"), GRAMMARS, ids=[each[0] for each in GRAMMARS])
def test_a_text_and_its_spelling_fit_alike(grammar: str, good: list[str], bad: list[str]) -> None:
    quoted = quoted_lark(grammar)
    for text in good:
        assert fits(grammar, text) and fits(quoted, spelled(text)), text
    for text in bad:
        assert not fits(grammar, text) and not fits(quoted, spelled(text)), text


@pytest.mark.parametrize(
    "name", ["WS_INLINE", "WS", "CR", "LF", "NEWLINE", "SH_COMMENT", "SQL_COMMENT", "CPP_COMMENT"]
)
def test_what_lark_has_in_common_is_what_it_is_there(name: str) -> None:
    grammar = f"%import common.{name}\nstart: {name}"
    texts = [" ", "\t", "\r", "\n", "\r\n", "\f", "\n\n", "\x0b", "", '# "', '// "', "-- a", "#\n"]
    for text in texts:
        assert fits(grammar, text) == fits(quoted_lark(grammar), spelled(text)), text


WALKED = [each[0] for each in GRAMMARS if "%" not in each[0]]  # others may go on for long


@pytest.mark.parametrize("grammar", WALKED)
def test_whatever_is_allowed_is_the_spelling_of_a_text(grammar: str) -> None:
    draw = random.Random(grammar)
    whole = Grammar({})
    quoted = whole.document(f'"\\"" {whole.inner("lark_grammar", quoted_lark(grammar))} "\\""')
    for _ in range(WALKS):
        walked = MODEL.walk(MODEL.compile(quoted), draw)
        (piece,) = MODEL.pieces(walked)
        assert fits(grammar, json.loads(piece.text)), piece.text


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        ("start: ~A\nA: /a/", "~"),
        ("start: <|im_end|>", "<|"),
        ("start: @other", "@o"),
        ('start: %json {"type": "null"}', "%json"),
        (r'start: "\q"', "is no string"),
        ('start: "ab".."c"', "one character"),
        ("start: /a b/x", "flag x"),
        (r"start: /\p{Nothing}/", "cannot be read"),
        (r'start: "(" start ")" | /[^()]+/', "refer to themselves"),
        ('start: "a\\n" start | "\\t"', "refer to themselves"),
        ('start: a\na[stop="x"]: /.+/', "cannot stand"),
        ("start: a\na[stop=/x/]: /.+/", "cannot stand"),
        (r'start: a "\n"\na[lazy]: /.+/', "attributes"),
        ("start: /[a/", "cannot be read"),
        ("start: /[" + "[]" * 9 + "/", "cannot be read"),
        ("start: /[" + "[]" * 200 + "/", "nested"),
        ("start: /[" + "[]a" * 20_000 + "/", "nested"),
        (f"start: /{'[' * 1000}a{']' * 1000}/", "nested"),
        (r'start: "\ud800"', "surrogate"),
        (r'start: "\ud800"i', "surrogate"),
        (r'start: "a".."\udfff"', "surrogate"),
        ('start: "' + r"\"" * 40_000, "no end"),
        ("start: /" + r"\/" * 40_000, "no end"),
    ],
)
def test_what_has_no_spelling_is_refused(grammar: str, why: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        quoted_lark(grammar)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    "part", ["{1", "(?a", "(?P<a", r"\x{", r"\p{", "[a]", "[[]a]", "[^]]", "{"]
)
def test_time_grows_with_the_expression(part: str) -> None:
    """Quoted or refused, but within the time of a test: backtracking would take years."""
    for expression in (part * 20_000, part + "1" * 60_000):
        with contextlib.suppress(ValueError):
            quoted_regex(expression)


def test_quoting_can_be_given_up() -> None:
    given_up = threading.Event()
    given_up.set()
    with interruptible(given_up), pytest.raises(GivenUp):
        quoted_regex("a")
    with interruptible(given_up), pytest.raises(GivenUp):
        quoted_lark('start: "a"')


@pytest.mark.parametrize("char", ["a", "é", '"', "\n", r"\n", ".", r"\.", r"\s", "[a\t]"])
def test_an_atom_is_looked_at_once(char: str) -> None:
    once = quoted_regex(char)
    assert quoted_regex(char * 60_000) == once * 60_000


PATCH = """\
start: "*** Begin Patch" LF file+ last
last: "*** End Patch" LF?

file: added | deleted | updated
added: "*** Add File: " path LF new+
deleted: "*** Delete File: " path LF
updated: "*** Update File: " path LF moved? changed?

path: /(.+)/
new: "+" /(.*)/ LF -> line

moved: "*** Move to: " path LF
changed: (place | line)+ end?
place: ("@@" | "@@ " /(.+)/) LF
line: ("+" | "-" | " ") /(.*)/ LF
end: "*** End of File" LF

%import common.LF
"""
"""What Codex's tool for patches takes, said as Codex says it."""
PATCHES = [
    "*** Begin Patch\n*** Delete File: a\n*** End Patch\n",
    '*** Begin Patch\n*** Delete File: a\\b\n*** Delete File: "c"\n*** End Patch',
    '*** Begin Patch\n*** Add File: a b\n+print("x\\n")\n+\n+\tend\n*** End Patch\n',
    "*** Begin Patch\n*** Update File: a\n*** Move to: b\n@@ f():\n-\tx\n+\ty\n \n*** End Patch\n",
    "*** Begin Patch\n*** Update File: a\n@@\n+x\n*** End of File\n*** End Patch\n",
]
BORDERS = [
    (PATCH, PATCHES, ["*** Begin Patch\n*** End Patch\n", PATCHES[0][1:], PATCHES[0] + "x"]),
    (r'start: /.+/ "\n"', ["a\n", "\t\n", 'say "\\"\n'], ["a", "\n", "a\nb\n"]),
    (r'start: (/[^\n]*/ "\n")+', ["a\nb\n", "\n\n", '"\n\t\n'], ["a", ""]),
    (r'start: /[a\t]+/ "\n"', ["a\t\n", "\ta\n"], ["a\t"]),
    (r'start: /[^\n;]+/ "\n"', ["a\\\n"], ["a;\n"]),
    ("start: a b?\na: /x+/ |\n!b: [A] A{1,2}\nA: /\\s/", ["", "xx\n\t", "\n\t\n"], ["xx\n\t\n\n"]),
    ('%ignore /[ \\n]/\n%ignore /#[^\\n]*/\nstart: w ("," w)*\nw: "\\"" A "\\""\nA: /[a-z\\t]+/',
     ['"a"', ' "a" \n, #x"\n"\tb"\n'], ['"a', '"a",']),
    ('start: "a" | "(" start ")" | "\\n" start', ["a", "(\n(a))"], ["(a"]),
]  # fmt: skip


@pytest.mark.parametrize(("grammar", "good", "bad"), BORDERS, ids=[each[0] for each in BORDERS])
def test_no_border_is_in_the_way(grammar: str, good: list[str], bad: list[str]) -> None:
    quoted = quoted_lark(grammar)
    for text in good:
        assert fits(quoted, spelled(text)), text
    for text in bad:
        assert not fits(quoted, spelled(text)), text


def test_nothing_of_an_expression_gets_lost() -> None:
    plain = r"a(?:b|[c-e]{1,2})*?\d+\.x$"
    assert quoted_regex(plain) == plain
