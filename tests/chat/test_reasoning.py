"""Reasoning on one scale: what a client asks, in the words of the model's own template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.chat.model_files import ModelPlace
from engine.chat.reasoning import EFFORTS, ReasoningControls, Wish, checked_effort
from engine.chat.templates import ChatTemplate, TemplateSource, TemplateStopped
from engine.chat.text_model import TextModel, load_text_model
from engine.errors import InvalidRequest
from tests.chat.known_templates import llama_cpp_templates
from tests.chat.vocabularies import byte_level

USER = {"role": "user", "content": "How many?"}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SWITCH = (
    PLAIN + "{% if enable_thinking | default(true) %}<think>{% else %}<think></think>{% endif %}"
)
TOLD = "Effort: {{ reasoning_effort | default('medium') }}\n" + PLAIN
STRICT = (
    "{% set effort = reasoning_effort | default('max') %}{% if effort not in ['low', 'max'] %}"
    "{{ raise_exception('low or max') }}{% endif %}" + TOLD
)
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BUDGET = PLAIN + "{% if thinking_budget is defined %}At most {{ thinking_budget }}.{% endif %}"


def controls(source: str) -> ReasoningControls:
    return ChatTemplate(TemplateSource(source, "it"), {}).reasoning


def prompt(source: str, wish: Wish) -> str:
    template = ChatTemplate(TemplateSource(source, "it"), {"bos_token": "<s>"})
    return template.render([USER], variables=template.reasoning.variables(wish)).text


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (PLAIN, []),
        (SWITCH, ["none", "high"]),
        (TOLD, ["low", "medium", "high"]),
        (STRICT, ["low", "max"]),
        (BUDGET, ["none", "minimal", "low", "medium", "high"]),
    ],
)
def test_words_that_make_a_difference(source: str, words: list[str]) -> None:
    assert controls(source).words == words


@pytest.mark.parametrize(
    ("source", "wish", "variables"),
    [
        (PLAIN, Wish(effort="high"), {}),
        (PLAIN, Wish(effort="none"), {}),
        (PLAIN, Wish(on=True, budget=100), {}),
        (SWITCH, Wish(), {}),
        (SWITCH, Wish(effort="none"), {"enable_thinking": False}),
        (SWITCH, Wish(effort="minimal"), {"enable_thinking": True}),
        (SWITCH, Wish(effort="max"), {"enable_thinking": True}),
        (SWITCH, Wish(on=False, effort="high"), {"enable_thinking": False}),
        (SWITCH, Wish(budget=2000), {"enable_thinking": True}),
        (SWITCH, Wish(budget=0), {"enable_thinking": False}),
        (TOLD, Wish(on=True), {}),
        (TOLD, Wish(effort="minimal"), {"reasoning_effort": "low"}),
        (TOLD, Wish(effort="low"), {"reasoning_effort": "low"}),
        (TOLD, Wish(effort="xhigh"), {"reasoning_effort": "high"}),
        (TOLD, Wish(budget=3000), {"reasoning_effort": "medium"}),
        (TOLD, Wish(budget=31_999), {"reasoning_effort": "high"}),
        (TOLD, Wish(effort="low", budget=31_999), {"reasoning_effort": "low"}),
        (TOLD, Wish(effort="none"), {}),
        (STRICT, Wish(effort="minimal"), {"reasoning_effort": "low"}),
        (STRICT, Wish(effort="xhigh"), {"reasoning_effort": "low"}),
        (STRICT, Wish(effort="max"), {"reasoning_effort": "max"}),
        (BUDGET, Wish(budget=700), {"thinking_budget": 700}),
        (BUDGET, Wish(budget=700, effort="high"), {"thinking_budget": 700}),
        (BUDGET, Wish(effort="low"), {"thinking_budget": 2048}),
        (BUDGET, Wish(effort="max"), {}),
        (BUDGET, Wish(effort="none"), {"thinking_budget": 0}),
    ],
)
def test_a_wish_becomes_variables_of_the_template(
    source: str, wish: Wish, variables: dict[str, Any]
) -> None:
    assert controls(source).variables(wish) == variables


@pytest.mark.parametrize(
    "source",
    [
        PLAIN + "{# enable_thinking, reasoning_effort, thinking_budget #}",
        "{{ raise_exception('tools only') }}{{ enable_thinking }}",
        PLAIN + "{% set enable_thinking = true %}{{ enable_thinking }}",
    ],
)
def test_a_name_that_changes_nothing_is_no_control(source: str) -> None:
    assert controls(source) == ReasoningControls()


def test_a_template_that_runs_away_has_no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.chat.rendering.RENDER_SECONDS", 0.2)
    assert controls(ENDLESS + SWITCH) == ReasoningControls()


def test_words_that_are_not_on_the_scale_are_refused() -> None:
    for effort in (None, *EFFORTS):
        assert checked_effort(effort, "it") == effort
    for effort in ("enormous", ""):
        with pytest.raises(InvalidRequest, match="none, minimal, low, medium, high") as raised:
            checked_effort(effort, "it")
        assert raised.value.param == "it"


# --- templates of real models -----------------------------------------------------------------

# What the prompt has, by the models' own descriptions of their templates.
OFF, ON = Wish(effort="none"), Wish(on=True)
KNOWN: list[tuple[str, Wish, str]] = [
    ("Qwen-Qwen3-0.6B", OFF, "<think>\n\n</think>\n\n"),
    ("Qwen3.5-4B", OFF, "<think>\n\n</think>\n\n"),
    ("GLM-4.6", OFF, "/nothink"),
    ("GLM-4.7-Flash", OFF, "<|assistant|></think>"),
    ("GLM-4.7-Flash", ON, "<|assistant|><think>"),
    ("deepseek-ai-DeepSeek-V3.1", OFF, "</think>"),
    ("deepseek-ai-DeepSeek-V4", Wish(effort="max"), "Reasoning Effort: Absolute maximum"),
    ("deepseek-ai-DeepSeek-V4", Wish(effort="low"), "<think>"),
    ("openai-gpt-oss-120b", Wish(effort="minimal"), "Reasoning: low"),
    ("openai-gpt-oss-120b", Wish(budget=32_000), "Reasoning: high"),
    ("ByteDance-Seed-OSS", Wish(budget=512), "is 512."),
    ("ByteDance-Seed-OSS", Wish(effort="low"), "is 2048."),
    ("ByteDance-Seed-OSS", OFF, "<seed:cot_budget_reflect>"),
    ("Kimi-K3", Wish(effort="medium"), "thinking_effort=low"),
    ("Kimi-K3", Wish(effort="xhigh"), "thinking_effort=high"),
    ("tencent-Hy3", Wish(effort="medium"), "reasoning_effort:low"),
    ("tencent-Hy3", OFF, "reasoning_effort:no_think"),
    ("MiniMax-M3", OFF, "Current thinking mode: disabled."),
    ("MiniMax-M3", Wish(effort="low"), "Current thinking mode: enabled."),
    ("inclusionai-ling-3.0-flash", OFF, "detailed thinking off"),
    ("google-gemma-4-31B-it", Wish(effort="high"), "<|think|>"),
    ("HuggingFaceTB-SmolLM3-3B", OFF, "Reasoning Mode: /no_think"),
    ("ibm-granite-granite-3.3-2B-Instruct", ON, "You can write down your thoughts"),
]


@pytest.mark.timeout(600)  # the first run fetches them
@pytest.mark.parametrize(("name", "wish", "said"), KNOWN)
def test_real_templates_are_told_in_their_own_words(name: str, wish: Wish, said: str) -> None:
    source = llama_cpp_templates()[name]
    assert said in prompt(source, wish)
    assert said not in prompt(source, OFF if wish != OFF else Wish(effort="max"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        ("GLM-4.7-Flash", {"clear_thinking": False}),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"truncate_history_thinking": False}),
        ("LFM2.5-8B-A1B", {"preserve_thinking": True}),
        ("tencent-Hy3", {"preserved_thinking": True}),
        ("deepseek-ai-DeepSeek-V4", {"drop_thinking": False}),
    ],
)
def test_reasoning_of_earlier_turns_is_kept_by_the_templates_own_name(
    name: str, keeps: dict[str, bool]
) -> None:
    template = ChatTemplate(TemplateSource(llama_cpp_templates()[name], "it"), {})
    assert template.reasoning.translated("preserve_thinking", True) == keeps
    thought = {"role": "assistant", "content": "Seven.", "reasoning_content": "I count."}
    for keep in (True, False):
        variables = template.reasoning.translated("preserve_thinking", keep)
        variables = {**template.reasoning.variables(ON), **(variables or {})}
        text = template.render([USER, thought, USER], variables=variables).text
        assert ("I count." in text) == keep


# --- the model's side -------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path, request: pytest.FixtureRequest) -> TextModel:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text(request.param)
    return load_text_model(ModelPlace(tmp_path, "m"))


@pytest.mark.parametrize("model", [TOLD, PLAIN + "<think>"], indirect=True)
def test_a_model_that_always_reasons_says_so(model: TextModel) -> None:
    for wish in (OFF, Wish(on=False), Wish(budget=0)):
        with pytest.raises(InvalidRequest, match="knows no reasoning effort 'none'") as raised:
            model.reasoning_variables(wish, "the_field")
        assert raised.value.param == "the_field"
        assert model.reasoning_variables(wish) == {}  # where a protocol cannot say it


@pytest.mark.parametrize("model", [ENDLESS + SWITCH], indirect=True)
def test_who_asks_of_a_template_that_runs_away_is_told(
    model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.chat.rendering.RENDER_SECONDS", 0.2)
    with pytest.raises(TemplateStopped):
        model.reasoning_variables(OFF, "the_field")
    with pytest.raises(TemplateStopped):
        model.template_variables({"thinking": False}, "it")
    assert model.reasoning_variables(Wish(), "the_field") == {}


@pytest.mark.parametrize("model", [PLAIN], indirect=True)
def test_a_model_that_never_reasons_has_nothing_to_switch_off(model: TextModel) -> None:
    assert model.reasoning_variables(OFF, "the_field") == {}
    assert model.reasoning_variables(Wish(effort="high"), "the_field") == {}
    assert model.template_variables({"enable_thinking": False}, "it") == {}
    for name in ("enable_thinking", "preserve_thinking", "made_up"):
        with pytest.raises(InvalidRequest, match="has no effect") as raised:
            model.template_variables({name: True}, "it")
        assert raised.value.param == f"it.{name}"


@pytest.mark.parametrize(
    "model", [SWITCH.replace("enable_thinking", "reasoning") + "An end of thinking."], indirect=True
)
def test_a_clients_name_for_the_switch_becomes_the_templates(model: TextModel) -> None:
    for name in ("enable_thinking", "thinking", "reasoning"):
        for on in (True, False):
            assert model.template_variables({name: on}, "it") == {"reasoning": on}


@pytest.mark.parametrize("model", [PLAIN + "<think>"], indirect=True)
@pytest.mark.parametrize(
    ("begun", "thinking"),
    [
        ("", "none"),
        ("It is", "none"),
        ("<think>\nHm", "opened"),
        ("<think>\nHm\n</think>\n\nIt", "none"),
    ],
)
def test_an_answer_goes_on_where_it_was(model: TextModel, begun: str, thinking: str) -> None:
    messages = [USER, {"role": "assistant", "content": begun}]
    continued = model.chat_prompt(messages, context_tokens=999, ending="continued")
    assert continued.thinking == thinking
