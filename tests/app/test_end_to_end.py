"""The app with the real engine on a tiny model: it streams, survives, and leaves nothing."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.core import server_record, settings
from app.core.conversation import ChatSettings, MessageState
from app.core.settings import Settings
from app.core.supervisor import Phase
from app.ui import window
from app.ui.application import Headrace
from app.ui.widgets.message_view import AssistantMessage
from engine import paths
from tests.app.conftest import PATIENCE_MS, Opener, alive, close_app, ready, wait_until

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made in a process of its own: the app's never imports torch."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    maker = ROOT / "tests" / "server" / "tiny_model.py"
    subprocess.run([sys.executable, str(maker), str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture
def start(open_app: Opener, tiny_model: Path, qtbot: QtBot) -> Callable[[], Headrace]:
    def starter() -> Headrace:
        headrace = open_app(start_engine_at_launch=True, **engine_settings(tiny_model))
        ready(headrace, qtbot)
        return headrace

    return starter


def engine_settings(model: Path) -> dict[str, object]:
    """A short context, since a random model rarely comes to an end by itself."""
    return {
        "model": str(model),
        "device": "sim",
        "moe_cache_rate": 0.5,
        "context_tokens": 128,
        "port": 0,
    }


def family(pid: int) -> list[int]:
    """A server's process and its runtime's."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def all_gone(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def ask(headrace: Headrace, qtbot: QtBot, text: str) -> AssistantMessage:
    headrace.window.open_page(window.CHAT)
    page = headrace.window.chat
    qtbot.keyClicks(page.composer.editor, text)
    qtbot.keyClick(page.composer.editor, Qt.Key.Key_Return)
    view = page.views[-1]
    assert isinstance(view, AssistantMessage)
    return view


def test_it_streams_and_each_killed_part_comes_back(
    start: Callable[[], Headrace], qtbot: QtBot
) -> None:
    """One long test, since each start of the engine costs seconds."""
    others = set(threading.enumerate())  # what earlier tests of this run have left
    headrace = start()
    check_chat(headrace, qtbot, others)
    check_dashboard(headrace, qtbot)
    check_continuing(headrace, qtbot)
    kill_runtime(headrace, qtbot)
    kill_server(headrace, qtbot)
    check_chat(headrace, qtbot, others)
    last = family(headrace.engine.server_pid)
    close_app(headrace, qtbot)
    wait_until(lambda: all_gone(last))
    assert not server_record.running_servers()


def check_continuing(headrace: Headrace, qtbot: QtBot) -> None:
    """An answer that was cut goes on in the same message; another one stands beside it."""
    page = headrace.window.chat
    page.session.new_chat()
    page.session.use_settings(ChatSettings(max_tokens=6, temperature=0.0))
    view = ask(headrace, qtbot, "Count.")
    qtbot.waitUntil(lambda: not page.session.busy, timeout=PATIENCE_MS)
    begun = view.message.text
    assert (
        view.message.cut and view.on.isVisible() and "Cut at the length limit" in view.message.note
    )
    view.on.click()
    qtbot.waitUntil(lambda: not page.session.busy, timeout=PATIENCE_MS)
    assert not view.message.error
    assert view.message.text.startswith(begun) and len(view.message.text) > len(begun)
    view.again.click()
    qtbot.waitUntil(lambda: not page.session.busy, timeout=PATIENCE_MS)
    again = page.session.conversation.messages[-1]
    assert again.text == begun and len(page.session.conversation.versions(again)) == 2


def check_chat(headrace: Headrace, qtbot: QtBot, others: set[threading.Thread]) -> None:
    headrace.window.chat.session.new_chat()
    view = ask(headrace, qtbot, "Say ok.")
    message = view.message
    lengths: list[int] = []
    threads: set[threading.Thread] = set()

    def changed() -> None:
        lengths.append(len(message.text))
        threads.update(threading.enumerate())

    headrace.window.chat.session.changed.connect(changed)
    qtbot.waitUntil(lambda: not headrace.window.chat.session.busy, timeout=PATIENCE_MS)
    assert message.state is MessageState.DONE, message.error
    assert message.text and view.views
    assert lengths == sorted(lengths)
    assert "tokens" in message.note
    main = {threading.main_thread()}
    # All runs on Qt's event loop, but for the thread that writes conversations to disk.
    assert {one.name for one in threads - (others - main)} == {"MainThread", "headrace-serial"}


def check_dashboard(headrace: Headrace, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: headrace.engine.stats.requests_finished == 1, timeout=PATIENCE_MS)
    stats = headrace.engine.stats
    assert stats.expert_slots == 4 and stats.expert_hits + stats.expert_misses > 0
    dashboard = headrace.window.dashboard
    assert dashboard.channel.slots.accessibleDescription().endswith("/ 4")
    assert "Expert slots" in dashboard.memory.vram.bar.accessibleDescription()
    headrace.window.open_page(window.DASHBOARD)
    words = dashboard.residency.map.accessibleDescription
    qtbot.waitUntil(
        lambda: words().startswith(f"{stats.expert_slots_used} of "), timeout=PATIENCE_MS
    )


def kill_runtime(headrace: Headrace, qtbot: QtBot) -> None:
    """Its server restarts it."""
    server = headrace.engine.server_pid
    os.kill(headrace.engine.stats.runtime_pid, signal.SIGKILL)
    qtbot.waitUntil(lambda: headrace.engine.stats.runtime_restarts == 1, timeout=PATIENCE_MS)
    ready(headrace, qtbot)
    assert headrace.engine.server_pid == server


def kill_server(headrace: Headrace, qtbot: QtBot) -> None:
    """The app restarts it and says why it had to."""
    before = family(headrace.engine.server_pid)
    assert len(before) >= 2
    phases: list[Phase] = []
    headrace.engine.view_changed.connect(lambda view: phases.append(view.phase))
    os.kill(before[0], signal.SIGKILL)
    qtbot.waitUntil(lambda: Phase.BACKING_OFF in phases, timeout=PATIENCE_MS)
    banner = headrace.window.dashboard.banner
    assert "SIGKILL" in banner.text
    ready(headrace, qtbot)
    assert "SIGKILL" in banner.text
    headrace.window.dashboard.dismissed.emit()
    assert banner.isHidden()
    wait_until(lambda: all_gone(before))


@pytest.fixture
def app_process(tiny_model: Path) -> Iterator[Callable[..., tuple[int, Callable[[], None]]]]:
    """Run the app as a process; gives its server's pid and a way to kill the app alone."""
    started: list[subprocess.Popen[bytes]] = []

    def starter(grace_s: float = 60.0) -> tuple[int, Callable[[], None]]:
        settings.save(Settings(**engine_settings(tiny_model)))  # type: ignore[arg-type]
        environment = os.environ | {"HEADRACE_DEBUG_OWNER_GRACE": str(grace_s)}
        app = subprocess.Popen([sys.executable, "-m", "app.cli", "--hidden"], env=environment)
        started.append(app)
        wait_until(lambda: bool(server_record.running_servers()))
        (record,) = server_record.running_servers()
        assert record.owner_pid == app.pid

        def kill() -> None:
            app.kill()
            app.wait()

        return record.pid, kill

    yield starter
    for app in started:
        app.kill()
        app.wait()
    for record in server_record.running_servers():
        server_record.end_process(record)


def test_a_server_outlives_a_killed_app_and_is_adopted(
    app_process: Callable[..., tuple[int, Callable[[], None]]],
    open_app: Opener,
    tiny_model: Path,
    qtbot: QtBot,
) -> None:
    pid, kill_app = app_process()
    kill_app()
    assert alive(pid)
    headrace = open_app(start_engine_at_launch=True, **engine_settings(tiny_model))
    ready(headrace, qtbot)
    assert headrace.engine.server_pid == pid
    assert headrace.engine.view.adopted
    qtbot.waitUntil(
        lambda: server_record.running_servers()[0].owner_pid == os.getpid(), timeout=PATIENCE_MS
    )
    pids = family(pid)
    close_app(headrace, qtbot)
    wait_until(lambda: all_gone(pids))


def test_a_server_that_nobody_adopts_ends(
    app_process: Callable[..., tuple[int, Callable[[], None]]],
) -> None:
    pid, kill_app = app_process(grace_s=0.5)
    wait_until(lambda: len(family(pid)) > 1)
    pids = family(pid)
    kill_app()
    wait_until(lambda: all_gone(pids))
    assert not server_record.running_servers()
    # It was not ended with the app, but ended itself.
    log = (paths.log_folder() / "server.log").read_text(encoding="utf-8")
    assert re.search(r"the server ends: its owner, process \d+, is gone", log), log


def test_the_app_ends_in_order_on_a_signal(
    app_process: Callable[..., tuple[int, Callable[[], None]]],
) -> None:
    pid, _ = app_process()
    (record,) = server_record.running_servers()
    pids = [*family(pid), record.owner_pid]
    os.kill(record.owner_pid, signal.SIGTERM)
    wait_until(lambda: all_gone(pids))


def test_a_taken_port_is_told_at_once(open_app: Opener, tiny_model: Path, qtbot: QtBot) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        wanted = {**engine_settings(tiny_model), "port": port}
        headrace = open_app(start_engine_at_launch=True, **wanted)
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.GAVE_UP, timeout=PATIENCE_MS)
        view = headrace.engine.view
        assert str(port) in view.reason and view.crashes == 0
        assert "“Port” in Settings" in view.hint and "--" not in view.hint
        page = headrace.window.settings
        page.port.setValue(0)
        assert page.apply.text() == "Apply and start engine"
        page.apply.click()
        ready(headrace, qtbot)
        assert headrace.window.dashboard.banner.isHidden()


def test_a_server_started_by_hand_is_used_and_left(
    open_app: Opener, tiny_model: Path, qtbot: QtBot
) -> None:
    command = [sys.executable, "-m", "engine.cli", "serve", "--model", str(tiny_model)]
    by_hand = subprocess.Popen(
        [*command, "--port", "0", "--device", "cpu"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: bool(server_record.running_servers()))
        (record,) = server_record.running_servers()
        headrace = open_app(start_engine_at_launch=True, port=record.port)
        qtbot.waitUntil(lambda: headrace.engine.view.health is not None, timeout=PATIENCE_MS)
        assert headrace.engine.server_pid == by_hand.pid
        assert not headrace.engine.view.ours
        close_app(headrace, qtbot)
        assert by_hand.poll() is None
    finally:
        by_hand.terminate()
        by_hand.wait(20)


def test_the_demo_model_answers(open_app: Opener, qtbot: QtBot) -> None:
    """What a person sees first, but for the sampling: the likeliest answer must be right.

    At the model's own temperature (0.3) so small a model may err.
    """
    headrace = open_app(start_engine_at_launch=True, port=0)
    headrace.window.chat.session.use_settings(ChatSettings(temperature=0.0))
    view = ask(headrace, qtbot, "What is the capital of France?")
    qtbot.waitUntil(lambda: not headrace.window.chat.session.busy, timeout=PATIENCE_MS)
    assert view.message.state is MessageState.DONE, view.message.error
    assert "Paris" in view.message.text
    assert headrace.window.header.model.text() == "demo"
