"""The window's pages; with a stand-in where a server must misbehave."""

from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QPointF, QSize, Qt
from PySide6.QtGui import QGuiApplication, QWheelEvent
from PySide6.QtWidgets import QApplication, QPushButton, QScrollArea, QStackedWidget
from pytestqt.qtbot import QtBot

from app.core import launch, settings
from app.core.settings import Settings
from app.core.supervisor import EngineView, Phase
from app.ui import theme, window
from app.ui.application import Headrace
from app.ui.widgets.rail import NavButton
from engine.messages import Stats
from tests.app.conftest import PATIENCE_MS, Opener, close_app, ready


class TestEngine:
    def test_start_show_stop(self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot):
        stand_in(stats='{"decode_tokens_per_s": 41.5, "device": "sim", "expert_slots": 4}')
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        header = headrace.window.header
        assert header.pill.text == "Ready"
        assert header.model.text() == "stand-in"
        header.chip.click()
        assert QGuiApplication.clipboard().text() == f"{headrace.engine.endpoint}/v1"
        headrace.window.dashboard.toggle.click()
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.STOPPED, timeout=PATIENCE_MS)
        assert header.chip.isHidden()
        assert headrace.window.dashboard.toggle.text() == "Start engine"

    def test_quick_crashes_are_told_and_given_up(
        self,
        open_app: Opener,
        stand_in: Callable[..., None],
        qtbot: QtBot,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("app.core.supervisor.MAX_DELAY_S", 0.05)
        stand_in("fail-start")
        headrace = open_app(start_engine_at_launch=True)
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.GAVE_UP, timeout=PATIENCE_MS)
        banner = headrace.window.dashboard.banner
        assert "code 3" in banner.text and "model folder is empty" in banner.text
        stand_in()
        headrace.window.dashboard.start_asked.emit()
        ready(headrace, qtbot)

    def test_a_model_that_fails(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in("failed-model")
        headrace = open_app(start_engine_at_launch=True)
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.FAILED, timeout=PATIENCE_MS)
        assert headrace.window.dashboard.banner.text == "shard 2 is missing"

    def test_a_deaf_server_is_killed(
        self,
        open_app: Opener,
        stand_in: Callable[..., None],
        qtbot: QtBot,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("app.core.supervisor.STOP_S", 0.5)
        stand_in("deaf")
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        headrace.engine.stop()
        qtbot.waitUntil(lambda: headrace.engine.view.phase is Phase.STOPPED, timeout=PATIENCE_MS)

    def test_apply_restarts_with_the_new_settings(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        before = headrace.engine.server_pid
        page = headrace.window.settings
        assert page.apply.isHidden() or not page.apply.isEnabled()
        page.cache_rate.setValue(37)
        assert page.apply.isEnabled() and page.apply.text() == "Apply and restart engine"
        page.apply.click()
        qtbot.waitUntil(
            lambda: (
                headrace.engine.server_pid not in (0, before)
                and headrace.engine.view.phase is Phase.READY
            ),
            timeout=PATIENCE_MS,
        )
        assert settings.load().moe_cache_rate == 0.37

    def test_after_apply_the_keyboard_stays_at_what_was_changed(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app()
        main = headrace.window
        main.open_page(window.SETTINGS)
        main.activateWindow()
        for press in (main.settings.apply, main.settings.revert):
            main.settings.context.setValue(main.settings.context.value() + 1024)
            press.setFocus()
            press.click()
            assert main.focusWidget() is main.settings.context

    def test_the_log_follows(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app(start_engine_at_launch=True)
        ready(headrace, qtbot)
        logs = headrace.window.logs
        logs.refresh()
        assert "Headrace listens on http" in logs.view.toPlainText()
        with launch.server_log().open("a") as more:
            more.write("a line about experts\n")
        logs.filter.setText("EXPERTS")
        logs.refresh()
        assert logs.view.toPlainText() == "a line about experts"


class TestNotice:
    def test_damaged_settings_are_told_until_dismissed(
        self, home: Path, qapp: QApplication, qtbot: QtBot
    ) -> None:
        (home / "settings.json").write_text('{"start_engine_at_launch": false, "api_key": "s')
        headrace = Headrace(qapp)
        headrace.window.show()
        notice = headrace.window.notice
        (kept,) = home.glob("settings.json.corrupt-*")
        assert notice.isVisible() and str(kept) in notice.text
        assert "No API key is set" in notice.text
        dismiss = [one for one in notice.findChildren(QPushButton) if one.text() == "Dismiss"]
        dismiss[0].click()
        assert not notice.isVisible()
        close_app(headrace, qtbot)


class TestSettingsPage:
    def test_wrong_values_are_named_and_not_applied(self, open_app: Opener) -> None:
        page = open_app().window.settings
        page.model.setText("/nowhere/at/all")
        assert page.problem("model") == "Nothing exists at /nowhere/at/all."
        assert not page.apply.isEnabled()
        page.revert.click()
        assert page.model.text() == "demo"

    def test_scrolling_changes_nothing(self, open_app: Opener) -> None:
        main = open_app().window
        main.open_page(window.SETTINGS)
        page = main.settings
        for editor in (page.device, page.cache_rate, page.context):
            before = page.draft
            point = QPointF(editor.rect().center())
            wheel = QWheelEvent(
                point,
                editor.mapToGlobal(point),
                QPoint(),
                QPoint(0, -240),
                Qt.MouseButton.NoButton,
                Qt.KeyboardModifier.NoModifier,
                Qt.ScrollPhase.NoScrollPhase,
                False,
            )
            QApplication.sendEvent(editor, wheel)
            assert page.draft == before
            assert not wheel.isAccepted()

    def test_theme_changes_at_once(self, open_app: Opener) -> None:
        page = open_app(theme="dark").window.settings
        assert theme.active() is theme.DARK
        page.theme.setCurrentIndex(page.theme.findData("light"))
        assert theme.active() is theme.LIGHT
        assert settings.load().theme == "light"

    def test_pages_by_keyboard(self, open_app: Opener, qtbot: QtBot) -> None:
        main = open_app().window
        with qtbot.waitActive(main):
            main.activateWindow()
        for number, (_, name) in enumerate(window.PAGES, start=1):
            qtbot.keyClick(main, str(number), Qt.KeyboardModifier.ControlModifier)
            assert main.header.title.text() == name


def test_the_dashboard_speaks_of_what_is_so(open_app: Opener) -> None:
    dashboard = open_app().window.dashboard
    for restarts, words in (
        (1, "restarted once"),
        (2, "restarted twice"),
        (3, "restarted 3 times"),
    ):
        dashboard.show_stats(Stats(runtime_restarts=restarts))
        assert f"{words} after a crash" in dashboard.facts
    for phase, words in (
        (Phase.LOADING, "The model is loading."),
        (Phase.STARTING, "The model is loading."),
        (Phase.STOPPED, "No model is loaded."),
        (Phase.FAILED, "No model is loaded."),
    ):
        dashboard.show_view(EngineView(phase=phase), 0)
        dashboard.show_stats(Stats(state="stopped"))
        assert (dashboard.memory.vram.note, dashboard.memory.ram.note) == (words, words)


def test_a_reason_of_the_settings_leads_there(open_app: Opener) -> None:
    main = open_app().window
    (button,) = [b for b in main.dashboard.findChildren(QPushButton) if b.text() == "Open settings"]
    for hint in ("See the log.", "Take another “Port” in Settings."):
        main.dashboard.show_view(EngineView(phase=Phase.GAVE_UP, reason="Taken.", hint=hint), 0)
        assert button.isVisible() == ("Settings" in hint)
    button.click()
    assert main.header.title.text() == "Settings"


@pytest.mark.parametrize(
    ("phase", "words", "starts"),
    [
        (Phase.GAVE_UP, "Apply and start engine", True),
        (Phase.BACKING_OFF, "Apply and start engine", True),
        (Phase.STOPPED, "Apply", False),
    ],
)
def test_apply_starts_an_engine_that_could_not_run(
    open_app: Opener,
    stand_in: Callable[..., None],
    qtbot: QtBot,
    phase: Phase,
    words: str,
    starts: bool,
) -> None:
    headrace = open_app()
    headrace.engine.supervisor.view = EngineView(phase=phase, reason="r")
    headrace.engine._publish()
    page = headrace.window.settings
    page.cache_rate.setValue(37)
    assert page.apply.text() == words
    page.apply.click()
    if starts:
        ready(headrace, qtbot)
    assert headrace.engine.supervisor.running == starts


def test_stats_of_every_kind_are_shown(open_app: Opener) -> None:
    main = open_app().window
    for stats in (Stats(), Stats(device="cpu", expert_total=8), Stats(expert_slots=4)):
        main.dashboard.show_stats(stats)
        main.rail.show_stats(stats)
    main.grab()
    main.resize(main.minimumSize())
    main.grab()
    assert main.childAt(QPoint(5, 5)) is not None


def test_the_smallest_window_cuts_nothing_off(open_app: Opener, qtbot: QtBot) -> None:
    main = open_app().window
    main.resize(main.minimumSize())
    stats = Stats(
        state="ready",
        device="sim",
        ttft_s=1.82,
        ttft_worst_s=1.82,
        expert_slots=12345,
        expert_slots_used=12345,
        expert_total=23456,
        expert_hits=888_888,
        expert_misses=888_888,
        expert_fills=888_888,
        link_bytes_per_s=128.8e6,
    )
    view = EngineView(phase=Phase.READY, ours=False, reason="words " * 30, other_version="0.0.1")
    main.dashboard.show_view(view, 0)
    main.dashboard.show_stats(stats)
    for index in range(len(window.PAGES)):
        main.open_page(index)
        qtbot.wait(20)
        page = main.findChildren(QStackedWidget)[0].currentWidget()
        for area in [page, *page.findChildren(QScrollArea)]:
            if isinstance(area, QScrollArea):
                needed = area.widget().minimumSizeHint().width()
                assert needed <= area.viewport().width(), area.accessibleName()


def test_a_small_screen_has_room_for_all_of_the_window(open_app: Opener, qtbot: QtBot) -> None:
    """800 by 600, with a panel and the window's frame; the rail's pages keep their names."""
    main = open_app().window
    assert main.minimumWidth() <= 790 and main.minimumHeight() <= 540
    for width in (main.minimumWidth(), 1200, main.minimumWidth()):
        main.resize(width, 700)
        qtbot.wait(20)
        assert (main.rail.width() < 80) == (width < 920)
    names = {nav.accessibleName() for nav in main.rail.findChildren(NavButton)}
    assert names == {name for _, name in window.PAGES}


@pytest.mark.parametrize("screen", [(1366, 768), (1280, 800), (3840, 2160)])
def test_the_first_window_lies_on_the_screen(screen: tuple[int, int]) -> None:
    size = window.first_size(QSize(*screen))
    assert size.width() < screen[0] and size.height() <= screen[1] - 40
    assert (size.width(), size.height()) == (1200, min(880, screen[1] - 64))


def test_the_place_on_the_screen_is_kept(open_app: Opener) -> None:
    headrace = open_app()
    headrace.window.resize(940, 680)
    headrace.window.end()
    saved: Settings = settings.load()
    assert saved.window_geometry
    assert open_app(window_geometry=saved.window_geometry).window.height() == 680
