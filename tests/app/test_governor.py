"""The governor in the app: tray, settings, the engine's endpoint; the engine is a stand-in."""

import json
from collections.abc import Callable

import pytest
from pytestqt.qtbot import QtBot

from app.core import settings
from app.core.governor.arbiter import State
from app.core.governor.engine_figures import LEAST_SHARE, engine_of
from app.core.governor.policy import Mode
from app.core.governor.view import ActionKind, GovernorView, ViewAction
from app.core.settings import Settings
from app.ui.application import Headrace
from app.ui.governor_menu import GovernorMenu
from app.ui.governor_service import policy_of
from app.ui.pages.vram_settings import VramCard, entries
from app.ui.settings_store import SettingsStore
from engine.messages import Stats
from tests.app.conftest import PATIENCE_MS, Opener, ready

GIB = 1 << 30
FIGURES = {
    "device": "cuda",
    "runtime_pid": 1,
    "vram_dense_bytes": 2 * GIB,
    "vram_kv_bytes": GIB,
    "vram_expert_bytes": 10 * GIB,
    "expert_slots": 1000,
    "expert_total": 2000,
}


def open_with(open_app: Opener, qtbot: QtBot) -> Headrace:
    headrace = open_app(start_engine_at_launch=True)
    ready(headrace, qtbot)
    return headrace


def until(qtbot: QtBot, headrace: Headrace, condition: Callable[[GovernorView], bool]) -> None:
    qtbot.waitUntil(lambda: condition(headrace.governor.view), timeout=PATIENCE_MS)


class TestWithAnEngine:
    def test_all_vram_is_given_back_and_taken_again(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in("resizes", stats=json.dumps(FIGURES))
        headrace = open_with(open_app, qtbot)
        until(qtbot, headrace, lambda view: view.state is not State.IDLE)
        menu = headrace.tray.governor_menu
        menu.modes[Mode.GIVE_BACK].trigger()
        until(qtbot, headrace, lambda view: view.state is State.GIVEN_BACK)
        qtbot.waitUntil(lambda: headrace.engine.stats.vram_expert_bytes == 0, timeout=PATIENCE_MS)
        assert menu.title() == "VRAM: given back" and menu.modes[Mode.GIVE_BACK].isChecked()
        assert not headrace.governor.view.trouble
        menu.modes[Mode.AUTO].trigger()
        full = 13 * GIB
        until(qtbot, headrace, lambda view: view.budget_bytes == full)
        qtbot.waitUntil(
            lambda: headrace.engine.stats.vram_expert_bytes == 10 * GIB, timeout=PATIENCE_MS
        )

    def test_an_engine_that_cannot_resize_is_told_of(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in(stats=json.dumps(FIGURES))
        headrace = open_with(open_app, qtbot)
        until(qtbot, headrace, lambda view: view.state is not State.IDLE)
        headrace.tray.governor_menu.modes[Mode.GIVE_BACK].trigger()
        until(qtbot, headrace, lambda view: "cannot change its VRAM" in view.trouble)
        assert headrace.tray.governor_menu.trouble.text() == headrace.governor.view.trouble

    def test_an_engine_without_vram_is_left_alone(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        stand_in(stats=json.dumps({**FIGURES, "device": "sim"}))
        headrace = open_with(open_app, qtbot)
        headrace.tray.governor_menu.modes[Mode.GIVE_BACK].trigger()
        qtbot.wait(600)
        assert headrace.governor.view.state is State.IDLE
        assert headrace.governor.view.cause == "No model is loaded into VRAM."


def test_never_is_kept_in_the_settings(open_app: Opener) -> None:
    headrace = open_app(vram_never=("old.exe",))
    action = ViewAction(ActionKind.NEVER, "Never for this app", "Warhammer 40,000: Space Marine")
    headrace.governor.act(action)
    assert settings.load().vram_never == ("old.exe", "Warhammer 40,000: Space Marine")
    assert headrace.window.settings.vram.never.text() == "old.exe; Warhammer 40,000: Space Marine"


class TestMenu:
    @pytest.fixture
    def menu(self, open_app: Opener) -> GovernorMenu:
        return open_app().tray.governor_menu

    def test_what_can_be_done_is_offered(self, menu: GovernorMenu, qtbot: QtBot) -> None:
        undo = ViewAction(ActionKind.UNDO, "Undo")
        never = ViewAction(ActionKind.NEVER, "Never for this app", "eldenring.exe")
        view = GovernorView(
            state=State.GAME,
            cause="ELDEN RING runs: the engine keeps its least, 3.20 GiB.",
            actions=(undo, never),
        )
        menu.show_view(view)
        offered = menu.offered
        assert [entry.text() for entry in offered] == ["Undo", "Never for this app"]
        assert menu.cause.text() == view.cause and not menu.trouble.isVisible()
        with qtbot.waitSignal(menu.chosen) as chosen:
            offered[1].trigger()
        assert chosen.args == [never]
        menu.show_view(view)
        assert menu.offered is offered
        menu.show_view(GovernorView())
        assert menu.offered == [] and menu.title() == "VRAM: automatic"

    def test_one_mode_is_checked(self, menu: GovernorMenu, qtbot: QtBot) -> None:
        menu.show_view(GovernorView(mode=Mode.PAUSED, title="VRAM: paused for 1 h"))
        assert [mode for mode, entry in menu.modes.items() if entry.isChecked()] == [Mode.PAUSED]
        with qtbot.waitSignal(menu.chosen) as chosen:
            menu.modes[Mode.AUTO].trigger()
        assert chosen.args[0].kind is ActionKind.AUTO


class TestSettings:
    def test_the_card_changes_them_at_once(self, qtbot: QtBot) -> None:
        card = VramCard(SettingsStore())
        qtbot.addWidget(card)
        card.always.setText(" blender ; /opt/tool/render;; blender")
        card.always.editingFinished.emit()
        card.never.setText("Balatro")
        card.never.editingFinished.emit()
        card.headroom.setValue(2048)
        stored = settings.load()
        assert stored.vram_always == ("blender", "/opt/tool/render")
        assert (stored.vram_never, stored.vram_headroom_mib) == (("Balatro",), 2048)
        policy = policy_of(stored)
        assert (policy.always, policy.headroom_bytes) == (stored.vram_always, 2 * GIB)

    def test_entries(self) -> None:
        assert entries("") == entries(" ; ") == ()
        assert entries("a;b, c") == ("a", "b, c")

    def test_what_is_wrong_is_named(self) -> None:
        assert set(settings.problems(Settings(vram_headroom_mib=-1))) == {"vram_headroom_mib"}
        assert not settings.needs_restart(Settings(), Settings(vram_always=("x",)))


def test_the_engine_s_figures() -> None:
    stats = Stats(state="ready", **FIGURES)  # type: ignore[arg-type]
    engine = engine_of(stats, 0.5, "7")
    assert engine is not None and (engine.held_bytes, engine.age_s) == (13 * GIB, 0.5)
    assert engine.floor_bytes == 3 * GIB + 10 * GIB * round(LEAST_SHARE * 2000) // 1000
    other = engine_of(Stats(state="ready", **{**FIGURES, "runtime_pid": 2}), 0.5, "7")  # type: ignore[arg-type]
    assert other is not None and other.identity != engine.identity
    assert engine_of(Stats(state="loading", **FIGURES), 0, "7") is None  # type: ignore[arg-type]
    bare = engine_of(Stats(state="ready", device="cuda"), 0, "7")
    assert bare is not None and (bare.held_bytes, bare.floor_bytes) == (0, 0)
