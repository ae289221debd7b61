"""The processes that render templates: bounded, replaceable, and gone with whoever asked."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from engine.chat import rendering
from engine.chat.interruption import GivenUp, interruptible
from engine.chat.reasoning import ReasoningControls
from engine.chat.render_frames import MAX_PROMPT_CHARS, Outcome, question
from engine.chat.rendering import PROCESSES, Renderer, RenderProcessFailed, RenderStopped
from engine.chat.templates import ChatTemplate, TemplateSource
from tests.project.checkout import ROOT
from tests.server.running import alive, wait_for

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
IN_ONE_STEP = "{{ 10 ** (10 ** 10) }}"
"""Nothing in Python can interrupt it."""
DOUBLING = "{% set n = namespace(x='a') %}{% for i in range(60) %}{% set n.x = ? %}{% endfor %}"
posix = pytest.mark.skipif(os.name == "nt", reason="signals that Windows does not have")


def processes() -> set[psutil.Process]:
    """Those that render for this process, with what is left of ended ones."""
    found = set()
    for child in psutil.Process().children():
        try:
            zombie = child.status() == psutil.STATUS_ZOMBIE
            if zombie or "engine.chat.render_process" in child.cmdline():
                found.add(child)
        except psutil.NoSuchProcess:
            continue
    return found


Own = Callable[[], set[psutil.Process]]


@pytest.fixture
def renderer() -> Iterator[Renderer]:
    before = processes()
    made = Renderer()
    yield made
    made.close()
    assert processes() <= before


@pytest.fixture
def own(renderer: Renderer) -> Own:
    """The fixture's processes; other tests have left some of the shared renderer."""
    before = processes()
    return lambda: processes() - before


def text(renderer: Renderer, template: str, **variables: Any) -> str:
    outcome, made = renderer.ask(template, variables)
    assert outcome is Outcome.RENDERED, made
    return made


def works(renderer: Renderer) -> bool:
    return text(renderer, "a{{ x }}", x=1) == "a1"


def test_the_process_has_what_templates_need_and_no_more() -> None:
    code = "import engine.chat.render_process, sys; print(*sys.modules)"
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
    )
    heavy = {"torch", "numpy", "tokenizers", "starlette", "asyncio", "psutil", "msgspec"}
    assert not loaded & heavy
    assert not {name for name in loaded if name.startswith(("engine.server", "engine.runtime"))}


def test_one_process_serves_one_thread(renderer: Renderer, own: Own) -> None:
    assert own() == set()  # it starts with the first question
    assert works(renderer) and works(renderer)
    assert len(own()) == 1


def test_text_comes_back_as_it_went(renderer: Renderer) -> None:
    odd = "\x00 \ud83d \U0001f600 <b>&amp;\r\n" + "é" * 300_000
    assert text(renderer, "{{ x }}", x=odd) == odd
    values = {"list": [1, 2.5, None, True, -(1 << 80)], "": "ä"}
    assert text(renderer, "{{ x }}", x=values) == str(values)


def test_fifty_at_once(renderer: Renderer, own: Own) -> None:
    template = "{% for i in range(n) %}{{ i }},{% endfor %}"
    with ThreadPoolExecutor(50) as threads:
        made = list(threads.map(lambda n: text(renderer, template, n=n), range(50)))
    assert made == ["".join(f"{i}," for i in range(n)) for n in range(50)]
    assert len(own()) <= PROCESSES


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [ENDLESS, IN_ONE_STEP])
def test_what_does_not_end_is_ended(
    template: str, renderer: Renderer, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "RENDER_SECONDS", 0.3)
    assert works(renderer)
    before = own()
    with pytest.raises(RenderStopped, match=r"takes longer than 0\.3 seconds"):
        renderer.ask(template, {})
    wait_for(lambda: not own() & before, 5, "the process is gone, and no remains of it")
    wait_for(own, 30, "another one is there before it is asked for")
    monkeypatch.undo()
    assert works(renderer)


def test_a_long_render_keeps_nobody_waiting(renderer: Renderer) -> None:
    assert works(renderer)
    with ThreadPoolExecutor(1) as threads:
        stuck = threads.submit(renderer.ask, ENDLESS, {})
        assert works(renderer) and not stuck.done()
        assert isinstance(stuck.exception(), RenderStopped)


def test_a_large_question_has_time_of_its_own(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert works(renderer)
    monkeypatch.setattr(rendering, "RENDER_SECONDS", 0.0)
    monkeypatch.setattr(rendering, "SECONDS_PER_BYTE", 1e-4)
    slow = "{% for i in range(90000) %}{% endfor %}{{ x | length }}"
    assert text(renderer, slow, x="a" * 300_000) == "300000"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}",
        ENDLESS.replace("{% endfor %}", "{{ 'a' * 999 }}{% endfor %}"),
        DOUBLING.replace("?", "n.x ~ n.x"),
        DOUBLING.replace("?", "[n.x, n.x]") + "{{ n.x }}",
        "{{ (range(90000) | list) * 90000 }}",
    ],
)
def test_what_grows_without_end_is_ended(template: str, renderer: Renderer, own: Own) -> None:
    try:
        outcome, made = renderer.ask(template, {})
    except RenderStopped:
        outcome, made = Outcome.STOPPED, ""
    assert outcome is Outcome.STOPPED, made[:100]
    peak = max((child.memory_info().rss for child in own()), default=0)
    assert peak < 1 << 30
    assert works(renderer)


def test_a_prompt_has_a_size(renderer: Renderer) -> None:
    template = "{% for i in range(70) %}{{ x }}{% endfor %}"
    outcome, why = renderer.ask(template, {"x": "a" * (1 << 20)})
    assert outcome is Outcome.STOPPED and str(MAX_PROMPT_CHARS) in why


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'ä' * 60000000 }}",
        "{{ 'ä😀' * 20000000 }}",
        "{{ raise_exception('ä' * 60000000) }}",
    ],
)
def test_a_text_that_grows_on_its_way_is_ended(
    template: str, renderer: Renderer, own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    assert works(renderer)
    first = own()
    with caplog.at_level(logging.WARNING):
        try:
            outcome, made = renderer.ask(template, {})
        except RenderStopped:
            outcome, made = Outcome.STOPPED, ""
        else:
            assert own() == first
    assert outcome is Outcome.STOPPED or len(made) >= 60_000_000
    assert "ended by itself" not in caplog.text
    assert works(renderer)


def test_memory_is_looked_at_from_outside_too(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every system lets a process limit itself."""
    monkeypatch.setattr(rendering, "allowed_memory", lambda _bytes: 60 << 20)
    holds = "{% set x = 'a' * 90000000 %}" + ENDLESS
    with pytest.raises(RenderStopped, match="too much memory"):
        renderer.ask(holds, {})


def test_endless_recursion_is_an_error_of_the_template(renderer: Renderer) -> None:
    assert renderer.ask("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {}) == (
        Outcome.FAILED,
        "it nests too deeply",
    )
    assert works(renderer)


# --- processes that end, and people who leave -------------------------------------------------

A_SECOND = "{% for i in range(99999) %}{% for j in range(n) %}{% endfor %}{% endfor %}done"


def kill(found: set[psutil.Process]) -> None:
    for child in found:
        child.kill()


def test_a_process_that_is_killed_at_work_is_replaced(
    renderer: Renderer, own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    assert works(renderer)
    first = own()
    with ThreadPoolExecutor(1) as threads, caplog.at_level(logging.WARNING):
        asked = threads.submit(text, renderer, A_SECOND, n=15)
        wait_for(lambda: sum(c.cpu_percent(0.05) for c in first) > 20, 5, "at work")
        kill(first)
        assert asked.result() == "done"
    assert "ended by itself" in caplog.text
    assert not own() & first


def test_a_render_that_ends_every_process_fails(renderer: Renderer, own: Own) -> None:
    over = threading.Event()

    def kills() -> None:
        while not over.is_set():
            kill(own())
            time.sleep(0.01)

    killing = threading.Thread(target=kills)
    killing.start()
    try:
        with pytest.raises(RenderProcessFailed) as raised:
            renderer.ask(ENDLESS, {})
        assert raised.value.record().code == "template_process"
    finally:
        over.set()
        killing.join()
    assert works(renderer)


def test_a_process_that_is_killed_at_rest_is_replaced(renderer: Renderer, own: Own) -> None:
    assert works(renderer)
    first = own()
    kill(first)
    wait_for(lambda: not own(), 5, "nothing is left of it")
    assert works(renderer)


@posix
def test_a_process_that_stands_still_is_ended(
    renderer: Renderer, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "RENDER_SECONDS", 0.3)
    assert works(renderer)
    for child in own():
        child.send_signal(signal.SIGSTOP)
    with pytest.raises(RenderStopped):
        renderer.ask("{{ x }}", {"x": "a" * 3_000_000})
    monkeypatch.undo()
    assert works(renderer)


@posix
def test_a_stall_is_no_knowledge_of_a_template(
    renderer: Renderer, own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    switch = "{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}"
    template = ChatTemplate(TemplateSource(switch, "it"), {}, renderer)
    monkeypatch.setattr(rendering, "RENDER_SECONDS", 0.3)
    for _ in range(2):
        wait_for(own, 30, "one is there")
        assert works(renderer)
        for child in own():
            child.send_signal(signal.SIGSTOP)
        assert template.reasoning == ReasoningControls()
    assert caplog.text.count("of reasoning is not known yet") == 1
    monkeypatch.undo()
    for child in own():  # those that still stand
        child.send_signal(signal.SIGCONT)
    assert template.reasoning.off == {"enable_thinking": False}


def test_who_leaves_ends_the_work(renderer: Renderer, own: Own) -> None:
    assert works(renderer)
    first, left = own(), threading.Event()
    threading.Timer(0.2, left.set).start()
    with interruptible(left), pytest.raises(GivenUp):
        renderer.ask(ENDLESS, {})
    wait_for(lambda: not own() & first, 5, "ended")
    assert works(renderer)


def test_closing_ends_the_work(renderer: Renderer, own: Own) -> None:
    closing = Renderer()
    assert works(closing)
    (child,) = own()
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(closing.ask, ENDLESS, {})
        wait_for(lambda: child.cpu_percent(0.05) > 20, 5, "at work")
        closing.close()
        assert isinstance(asked.exception(), GivenUp)
    assert not own()
    assert works(renderer)


def test_whoever_asks_while_it_closes_is_answered_or_sent_away(renderer: Renderer) -> None:
    closing = Renderer()
    assert works(closing)
    asking = threading.Event()

    def asks() -> None:
        for n in itertools.count():
            assert text(closing, "{{ n }}", n=n) == str(n)
            asking.set()

    with ThreadPoolExecutor(20) as threads:
        asked = [threads.submit(asks) for _ in range(20)]
        assert asking.wait(30)
        closing.close()
        assert {type(each.exception(30)) for each in asked} == {GivenUp}
    with pytest.raises(GivenUp):
        closing.ask("a", {})
    assert works(renderer)


def test_processes_that_are_replaced_count_too(
    renderer: Renderer, own: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "RENDER_SECONDS", 0.5)
    most = 0
    with ThreadPoolExecutor(2 * PROCESSES) as threads:
        asked = [threads.submit(renderer.ask, ENDLESS, {}) for _ in range(2 * PROCESSES)]
        while not all(each.done() for each in asked):
            most = max(most, len(own()))
        assert {type(each.exception()) for each in asked} == {RenderStopped}
    monkeypatch.undo()
    assert works(renderer)
    assert max(most, len(own())) <= PROCESSES


@posix
@pytest.mark.parametrize("template", [ENDLESS, IN_ONE_STEP])
def test_a_process_that_nobody_ends_ends_itself(template: str) -> None:
    code = "import engine.chat.render_process as its; its._ALONE_SECONDS = 1.0; its.main()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=pipe, stdout=pipe) as alone:
        assert alone.stdin is not None and alone.stdout is not None
        try:
            for asked in ("a", "b"):
                alone.stdin.write(question(asked, {}))
                alone.stdin.flush()
                time.sleep(1.2)
                assert alone.poll() is None  # at rest it has all the time
            alone.stdin.write(question(template, {}))
            alone.stdin.flush()
            assert alone.wait(20) == -signal.SIGALRM
        finally:
            alone.kill()


@pytest.mark.parametrize("template", [ENDLESS, IN_ONE_STEP])
def test_no_process_is_left_of_a_dead_server(template: str) -> None:
    code = (
        "import sys\n"
        "from engine.chat import rendering\n"
        "rendering.RENDER_SECONDS = 99.0\n"
        "renderer = rendering.Renderer()\n"
        "print(renderer.ask('there', {})[1], flush=True)\n"
        "renderer.ask(sys.argv[1], {})\n"
    )
    command = [sys.executable, "-c", code, template]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "there\n"
        children = psutil.Process(server.pid).children()
        assert len(children) == 1
        time.sleep(0.3)  # it is at work
        server.kill()
        server.wait()
        wait_for(lambda: not any(map(alive, children)), 5, "gone with the server")
