"""A server that runs when the app comes: whose it is decides what the app may do to it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QLabel, QLineEdit, QWidget
from pytestqt.qtbot import QtBot

import engine
from app.core import server_record, settings
from app.core.conversation import Message
from app.core.server_record import ServerRecord
from app.core.supervisor import Phase
from app.ui.application import Headrace
from app.ui.window import LOGS, SETTINGS
from engine import api_keys
from engine.options import DEFAULT_PORT
from tests.app.conftest import PATIENCE_MS, STAND_IN, Opener, alive, close_app, ready, wait_until

Found = Callable[[int], ServerRecord]


@pytest.fixture
def found(stand_in: Callable[..., None]) -> Iterator[Found]:
    """Start a stand-in that this process owns (0: nobody) before the app opens."""
    started: list[subprocess.Popen[bytes]] = []

    def start(owner: int) -> ServerRecord:
        command = [sys.executable, str(STAND_IN), "serve", "--owner-pid", str(owner)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        wait_until(lambda: len(server_record.running_servers()) == len(started))
        return server_record.running_servers()[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def somebody() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its standard input closes."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def nobody() -> int:
    """The pid of a process that is gone."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def use(open_app: Opener, qtbot: QtBot, port: int = DEFAULT_PORT) -> Headrace:
    headrace = open_app(start_engine_at_launch=True, port=port)
    ready(headrace, qtbot)
    return headrace


def shown(page: QWidget) -> str:
    """The words of all labels on a page that can be seen."""
    return "\n".join(words.text() for words in page.findChildren(QLabel) if words.isVisible())


def facts(headrace: Headrace) -> str:
    dashboard = headrace.window.dashboard
    dashboard.show_stats(headrace.engine.stats)
    return dashboard.facts


def test_a_server_whose_owner_lives_is_used_and_left(
    open_app: Opener, found: Found, somebody: subprocess.Popen[bytes], qtbot: QtBot
) -> None:
    record = found(somebody.pid)
    headrace = use(open_app, qtbot, record.port)
    assert headrace.engine.server_pid == record.pid
    assert not headrace.engine.view.ours and not headrace.engine.view.adopting
    main = headrace.window
    assert not main.dashboard.toggle.isEnabled() and main.dashboard.toggle.toolTip()
    assert not headrace.tray.engine_action.isEnabled()
    assert "started outside the app" in facts(headrace)
    main.open_page(SETTINGS)
    assert "started outside the app" in shown(main.settings)
    main.settings.port.setValue(1)
    assert f"{record.url}/v1" in shown(main.settings)
    main.settings.port.setValue(record.port)
    main.settings.context.setValue(4096)
    assert main.settings.apply.text() == "Apply"
    main.settings.apply.click()
    headrace.engine.stop()
    qtbot.wait(500)
    assert headrace.engine.view.phase is Phase.READY
    close_app(headrace, qtbot)
    assert alive(record.pid)
    assert server_record.running_servers() == [record]


def test_the_logs_page_says_where_a_log_is_not(
    open_app: Opener, found: Found, nobody: int, qtbot: QtBot
) -> None:
    headrace = use(open_app, qtbot, found(0).port)
    headrace.window.open_page(LOGS)
    logs = headrace.window.logs
    assert "it logs where it was started" in shown(logs)
    logs.source.setCurrentIndex(1)
    assert "it logs where it was started" not in shown(logs)
    assert logs.view.placeholderText() == "Nothing has been logged here yet."


def test_of_an_own_engine_nothing_is_said(
    open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
) -> None:
    headrace = open_app(start_engine_at_launch=True, port=1)
    ready(headrace, qtbot)
    endpoint = headrace.engine.endpoint
    for page in (SETTINGS, LOGS):
        headrace.window.open_page(page)
        assert "outside the app" not in shown(headrace.window)
    headrace.window.open_page(SETTINGS)
    assert f"{endpoint}/v1" in shown(headrace.window.settings)
    headrace.window.settings.port.setValue(int(endpoint.rsplit(":", 1)[1]))
    assert f"{endpoint}/v1" not in shown(headrace.window.settings)


def test_an_orphan_is_taken_over_though_others_run(
    open_app: Opener, found: Found, nobody: int, qtbot: QtBot
) -> None:
    """Servers that somebody starts before and after it neither hide it nor are taken for it."""
    before, orphan, after = found(0), found(nobody), found(0)
    headrace = use(open_app, qtbot)
    qtbot.waitUntil(lambda: headrace.engine.view.adopted, timeout=PATIENCE_MS)
    assert headrace.engine.server_pid == orphan.pid
    close_app(headrace, qtbot)
    wait_until(lambda: not alive(orphan.pid))
    assert server_record.running_servers() == [before, after]


def test_of_two_servers_the_one_at_the_port_of_the_settings_is_used(
    open_app: Opener, found: Found, qtbot: QtBot
) -> None:
    _, known = found(0), found(0)
    headrace = open_app(start_engine_at_launch=True, port=known.port)
    ready(headrace, qtbot)
    assert headrace.engine.server_pid == known.pid


def test_a_server_that_somebody_started_at_another_port_is_none_of_the_apps(
    open_app: Opener, found: Found, qtbot: QtBot
) -> None:
    by_hand = found(0)
    headrace = use(open_app, qtbot)
    assert headrace.engine.server_pid != by_hand.pid and headrace.engine.view.ours
    close_app(headrace, qtbot)
    assert server_record.running_servers() == [by_hand]


def test_an_own_engine_can_be_started_beside_somebody_elses(
    open_app: Opener, found: Found, qtbot: QtBot
) -> None:
    by_hand = found(0)
    headrace = use(open_app, qtbot, by_hand.port)
    main = headrace.window
    assert main.dashboard.own.isVisible()
    main.dashboard.own.click()  # its port is taken: another one must be chosen
    assert headrace.engine.server_pid == by_hand.pid
    assert main.settings.isVisible()
    main.settings.port.setValue(DEFAULT_PORT)
    assert main.settings.apply.text() == "Apply and start own engine"
    main.settings.apply.click()
    qtbot.waitUntil(lambda: headrace.engine.view.ours, timeout=PATIENCE_MS)
    ready(headrace, qtbot)
    assert headrace.engine.server_pid != by_hand.pid
    assert main.dashboard.own.isHidden() and main.dashboard.toggle.isEnabled()
    close_app(headrace, qtbot)
    assert server_record.running_servers() == [by_hand]


def test_a_server_that_has_just_ended_is_no_cause_for_a_warning(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = ServerRecord(pid=1, started=1.0, control_token_file=str(home / "1.token"))
    assert gone.control_token() == ""
    assert not caplog.records


def test_an_own_server_is_kept_while_another_starts(
    open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
) -> None:
    headrace = use(open_app, qtbot)
    own = headrace.engine.server_pid
    (record,) = server_record.running_servers()
    command = [sys.executable, str(STAND_IN), "serve"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as by_hand:
        wait_until(lambda: len(server_record.running_servers()) == 2)
        qtbot.wait(500)
        assert headrace.engine.server_pid == own and headrace.engine.endpoint == record.url
        close_app(headrace, qtbot)
        wait_until(lambda: not alive(own))
        assert by_hand.poll() is None
        by_hand.kill()


def test_an_orphan_that_refuses_at_first_is_adopted(
    open_app: Opener,
    found: Found,
    stand_in: Callable[..., None],
    nobody: int,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.core.supervisor.ADOPT_PAUSE_S", 0.05)
    stand_in("adopt-late")
    record = found(nobody)
    headrace = use(open_app, qtbot)
    qtbot.waitUntil(lambda: headrace.engine.view.adopted, timeout=PATIENCE_MS)
    assert headrace.engine.server_pid == record.pid
    assert headrace.window.dashboard.toggle.isEnabled()
    assert [now.owner_pid for now in server_record.running_servers()] == [os.getpid()]
    close_app(headrace, qtbot)
    wait_until(lambda: not alive(record.pid))


def test_an_orphan_that_goes_on_to_refuse_is_never_ended(
    open_app: Opener,
    found: Found,
    stand_in: Callable[..., None],
    nobody: int,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.core.supervisor.ADOPT_PAUSE_S", 0.05)
    monkeypatch.setattr("app.core.supervisor.HUNG_S", 1.0)
    stand_in("no-adopt")
    record = found(nobody)
    headrace = use(open_app, qtbot)
    qtbot.waitUntil(lambda: not headrace.engine.view.adopting, timeout=PATIENCE_MS)
    assert not headrace.engine.view.ours
    assert "could not be taken over (not now)" in headrace.window.dashboard.banner.text
    close_app(headrace, qtbot)
    assert alive(record.pid)


def test_an_idle_orphan_of_another_version_is_replaced(
    open_app: Opener,
    found: Found,
    nobody: int,
    qtbot: QtBot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STAND_IN_VERSION", "0.0.1")
    record = found(nobody)
    monkeypatch.setenv("STAND_IN_VERSION", engine.__version__)
    headrace = open_app(start_engine_at_launch=True)
    qtbot.waitUntil(
        lambda: (
            headrace.engine.server_pid not in (0, record.pid)
            and headrace.engine.view.phase is Phase.READY
        ),
        timeout=PATIENCE_MS,
    )
    assert not headrace.engine.view.other_version
    assert not alive(record.pid)


def test_a_busy_orphan_of_another_version_is_kept(
    open_app: Opener,
    found: Found,
    stand_in: Callable[..., None],
    nobody: int,
    qtbot: QtBot,
) -> None:
    stand_in(stats='{"requests_running": 1}', version="0.0.1")
    record = found(nobody)
    headrace = use(open_app, qtbot)
    qtbot.waitUntil(lambda: headrace.engine.view.adopted, timeout=PATIENCE_MS)
    qtbot.wait(500)
    assert headrace.engine.server_pid == record.pid
    assert headrace.engine.view.phase is Phase.READY
    assert f"version 0.0.1, while Headrace is {engine.__version__}" in facts(headrace)


def test_a_server_that_wants_a_key(
    open_app: Opener, found: Found, stand_in: Callable[..., None], qtbot: QtBot
) -> None:
    stand_in(key="K3y-of-mine")
    headrace = use(open_app, qtbot, found(0).port)  # its figures come without the key
    session = headrace.window.chat.session

    def say() -> Message:
        session.ask("hi")
        qtbot.waitUntil(lambda: not session.busy, timeout=PATIENCE_MS)
        return session.conversation.messages[-1]

    assert say().error == "This engine wants its API key. Enter it in the settings."
    page = headrace.window.settings
    editor = page.api_key
    assert editor.echoMode() is QLineEdit.EchoMode.Password
    editor.setText("two words")
    assert page.problem("api_key") and not page.apply.isEnabled()
    editor.setText("K3y-of-m1ne")
    page.apply.click()
    assert "API key" in say().error
    editor.setText(" K3y-of-mine ")
    page.apply.click()
    assert settings.load().api_key == "K3y-of-mine"
    assert say().text == "Hello there."


def test_the_app_has_a_key_of_its_own(
    open_app: Opener, found: Found, stand_in: Callable[..., None], qtbot: QtBot
) -> None:
    """Which every server of this user takes, whichever keys the person makes."""
    api_keys.make_local_key()
    stand_in(key=api_keys.local_key())
    headrace = use(open_app, qtbot, found(0).port)
    session = headrace.window.chat.session
    session.ask("hi")
    qtbot.waitUntil(lambda: not session.busy, timeout=PATIENCE_MS)
    assert session.conversation.messages[-1].text == "Hello there."
