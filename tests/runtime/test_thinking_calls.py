"""What ends thinking before its budget does: to the runtime the same as to each family's parser."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import tokenizers

from engine.chat.detokenizer import Detokenizer
from engine.chat.model_files import locate
from engine.chat.parsers.deepseek_tokens import BEGIN, BLOCK, BLOCK_END, END, SEPARATOR
from engine.chat.parsers.events import CallOpened, Reasoning
from engine.chat.parsers.families import FAMILIES
from engine.chat.parsers.tools import Tool
from engine.chat.text_model import ChatPrompt, TextModel, load_text_model
from engine.chat.tokenizer import Tokenizer
from engine.runtime.thinking import PATIENCE, ThinkingLimit

NOW = (Tool("now", {"type": "object", "properties": {}}),)
DSML = "｜DSML｜"
CALLS = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "glm": "<tool_call>now\n</tool_call>",
    "deepseek_tokens": f"{BLOCK}{BEGIN}now{SEPARATOR}{{}}{END}{BLOCK_END}",
    "deepseek_dsml": f'<{DSML}function_calls>\n<{DSML}invoke name="now">\n</{DSML}invoke>\n'
    f"</{DSML}function_calls>",
}
CALLS["plain"] = CALLS["hermes"]
MARKS = ("<tool_call>", "</tool_call>", BLOCK, BEGIN, SEPARATOR, END, BLOCK_END, DSML)
CONTROLS = ["<think>", "</think>", *MARKS]
MENTIONS = (*MARKS, "<function=", "<tool_call>\n<function=", "<tool_call>{", f"<{DSML}invoke name=")
BUDGET = 60


def model(family: str, *, controls: bool) -> TextModel:
    """The demo model's vocabulary, in which the tags are text unless they are `controls`."""
    text = load_text_model(locate("demo"), family)
    if not controls:
        return text
    inner = tokenizers.Tokenizer.from_file(str(text.tokenizer.origin))
    inner.add_special_tokens(CONTROLS)
    return replace(text, tokenizer=Tokenizer(inner, text.tokenizer.origin))


def spelled(text: TextModel, said: str) -> list[int]:
    """Its tokens, none of them a control token."""
    return [token for letter in said for token in text.tokenizer.encode(letter)]


def meant(text: TextModel, said: str) -> list[int]:
    """Its tokens, control tokens among them."""
    return text.tokenizer.encode(said)


def said(text: TextModel, wanted: list[int], budget: int = BUDGET) -> list[int]:
    """What comes of a model that would think this, token by token."""
    given = text.thinking_budget(ChatPrompt([], "opened"), budget, NOW)
    assert given is not None
    limit = ThinkingLimit(given, text.vocabulary(), text.tokenizer.vocab_size)
    output = []
    for token in wanted:
        output.append(token if limit.forced is None else limit.forced)
        limit.accept(output[-1])
    return output


def parsed(text: TextModel, tokens: list[int]) -> tuple[str, bool]:
    """The reasoning, and whether a call was opened."""
    parser = text.speaking(tools=True).parser(NOW, text.tokenizer.special, thinking=True)
    detokenizer = Detokenizer(text.tokenizer)
    events = [each for token in tokens for each in parser.feed(detokenizer.piece(token))]
    events += parser.finish()
    reasoning = "".join(each.text for each in events if isinstance(each, Reasoning))
    return reasoning, any(isinstance(each, CallOpened) for each in events)


@pytest.fixture(
    scope="module",
    params=[(name, controls) for name in sorted(CALLS) for controls in (False, True)],
    ids=lambda param: f"{param[0]}-{'controls' if param[1] else 'text'}",
)
def text(request: pytest.FixtureRequest) -> TextModel:
    family, controls = request.param
    return model(family, controls=controls)


def test_every_family_with_thoughts_between_tags_is_here() -> None:
    assert {family.name for family in FAMILIES} == {*CALLS, "harmony"}


def test_thoughts_that_mention_markup_are_closed(text: TextModel) -> None:
    after = " later. Hm. Hm. Hm.\n" * 40
    closing = text.tokenizer.encode("</think>")
    for mention, as_tokens in product(MENTIONS, (spelled, meant)):
        named = as_tokens(text, mention)
        wanted = [*spelled(text, "I may write "), *named, *spelled(text, after)]
        output = said(text, wanted)
        (end,) = [at for at in range(len(output)) if output[at : at + len(closing)] == closing]
        assert BUDGET <= end <= BUDGET + PATIENCE
        assert output[:end] == wanted[:end]
        thoughts, called = parsed(text, output)
        assert thoughts == parsed(text, wanted[:end])[0].rstrip() and not called


def test_a_spelled_tag_is_text_where_it_is_a_control_token(text: TextModel) -> None:
    wanted = spelled(text, "Then </think> comes." + " Hm." * 60)
    closed = text.tokenizer.encode("</think>")
    output = said(text, wanted)
    if "</think>" in text.tokenizer.special:
        assert output[:BUDGET] == wanted[:BUDGET] and output[BUDGET : BUDGET + 1] == closed
    else:
        assert output == wanted


def test_a_call_that_has_begun_is_finished(text: TextModel) -> None:
    """Wherever in it the budget is used up, and it ends thinking."""
    call = CALLS[text.family.name]
    begin, made = spelled(text, "Hm. "), text.tokenizer.encode(call)
    wanted = [*begin, *made, *spelled(text, " Done." * 40)]
    assert parsed(text, wanted) == ("Hm.", True)
    for budget in range(len(begin) + 1, len(begin) + len(made) + 1):
        assert said(text, wanted, budget) == wanted
    closing = text.tokenizer.encode("</think>")
    assert said(text, wanted, len(begin))[len(begin) :][: len(closing)] == closing
