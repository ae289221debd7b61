"""The dashboard in use: it tells, answers pointer and keys, never stalls, and does not grow."""

import csv
import gc
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import QPoint, QSize, Qt
from PySide6.QtGui import QAccessible, QColor, QImage
from PySide6.QtWidgets import QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.core.governor.arbiter import State
from app.core.governor.evidence import Program
from app.core.governor.policy import Mode
from app.core.governor.view import ActionKind, GovernorView, ViewAction
from app.core.residency_view import ResidencyView
from app.core.stats_history import FIGURES
from app.core.supervisor import EngineView, Phase
from app.ui import theme, window
from app.ui.pages.dashboard import DashboardPage
from app.ui.widgets.figure import Figure
from app.ui.widgets.sparkline import Sparkline
from engine.messages import Stats
from tests.app.conftest import PATIENCE_MS, Opener
from tests.app.stall_watch import FRAME_S, StallWatch, longest_stall

MIB = 1 << 20
UNDO = ViewAction(ActionKind.UNDO, "Undo")
NEVER = ViewAction(ActionKind.NEVER, "Never for this app", "eldenring.exe")
GAME = GovernorView(
    state=State.GAME,
    cause="ELDEN RING runs: the engine keeps its least, 3.20 GiB.",
    actions=(UNDO, NEVER),
)


def stats_at(second: int) -> Stats:
    """An engine at work: every figure moves."""
    wave = 1 + math.sin(second / 7)
    return Stats(
        state="ready",
        model="moe",
        device="cuda",
        runtime_pid=7,
        requests_running=second % 3,
        requests_finished=second // 5,
        decode_tokens_per_s=40 * wave,
        prefill_tokens_per_s=900 * wave,
        ttft_s=0.2 + 0.01 * (second % 9),
        ttft_worst_s=1.5,
        vram_total_bytes=24 << 30,
        vram_dense_bytes=2 << 30,
        vram_expert_bytes=9 << 30,
        vram_kv_bytes=(1 << 30) + second * MIB % (1 << 30),
        vram_other_bytes=812 * MIB,
        ram_total_bytes=64 << 30,
        ram_available_bytes=20 << 30,
        ram_expert_store_bytes=30 << 30,
        ram_runtime_bytes=33 << 30,
        expert_slots=4000,
        expert_slots_used=min(4000, 100 + second),
        expert_total=12_000,
        expert_hits=1000 * second,
        expert_misses=300 * second + 1,
        expert_fills=300 * second,
        expert_hit_rate=0.5 + 0.2 * math.sin(second / 11),
        link_bytes_per_s=12e9 * wave,
        gather_us_per_step=800 * wave + 1,
        gather_bytes_per_s=24e9,
        host_bytes_per_s=30e9 * wave,
        cpu_share=0.1 * wave,
    )


def residency(layers: int, experts: int, seed: int = 0) -> ResidencyView:
    draw = random.Random(seed)
    rows = tuple(
        tuple(sorted(draw.sample(range(experts), draw.randint(0, experts)))) for _ in range(layers)
    )
    return ResidencyView(experts, tuple(range(layers)), rows)


class Clock:
    """A second later whenever it is asked."""

    def __init__(self) -> None:
        self.now = 1e9 - 1

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def page(qapp: QApplication, qtbot: QtBot) -> DashboardPage:
    """The page alone, as beside an engine that is ready."""
    theme.install(qapp, "dark")
    dashboard = DashboardPage(Clock())
    qtbot.addWidget(dashboard)
    dashboard.resize(960, 800)
    dashboard.show()
    dashboard.show_view(EngineView(phase=Phase.READY), 0)
    return dashboard


def feed(page: DashboardPage, seconds: range) -> None:
    for second in seconds:
        page.show_stats(stats_at(second))


def test_figures_are_what_the_engine_tells(page: DashboardPage) -> None:
    page.show_stats(stats_at(0))
    said = {one.accessibleName(): one.accessibleDescription() for one in page.findChildren(Figure)}
    assert said["Tokens a second"] == "40.0 tok/s"
    assert said["Time to first token"] == "200 ms" and said["Longest so far"] == "1.50 s"
    assert said["Hit rate now"] == "50.0 %" and said["Computed by the CPU"] == "10.0 %"
    assert said["Fetching, a step"] == "801 µs"
    assert said["Link now"] == "12.0 GB/s" and said["Host memory now"] == "30.0 GB/s"
    link = page.channel.link.bar.accessibleDescription()
    assert link == "50.0 % of 24.0 GB/s, the highest measured"
    assert "30.0 GB/s" in page.channel.host.bar.accessibleDescription()


def test_every_widget_that_paints_itself_has_words(page: DashboardPage) -> None:
    feed(page, range(90))
    page.residency.show_residency(residency(4, 8))
    own = [
        one
        for one in page.findChildren(QWidget)
        if type(one).__module__.startswith("app.ui.widgets") and "paintEvent" in vars(type(one))
    ]
    assert len(own) > 15
    for widget in own:
        told = QAccessible.queryAccessibleInterface(widget)
        assert told.text(QAccessible.Text.Name), widget
        assert told.text(QAccessible.Text.Description), widget


class TestGovernor:
    def test_it_is_told_while_something_is_held_back(
        self, page: DashboardPage, qtbot: QtBot
    ) -> None:
        card = page.governor
        assert card.isHidden()
        card.show_view(GAME)
        assert not card.isHidden() and GAME.cause in card.accessibleDescription()
        assert [one.text() for one in card.buttons] == ["Undo", "Never for this app"]
        with qtbot.waitSignal(card.chosen) as chosen:
            card.buttons[1].click()
        assert chosen.args == [NEVER]
        kept = card.buttons
        card.show_view(GAME)
        assert card.buttons is kept
        card.show_view(GovernorView(state=State.FULL))
        assert card.isHidden()

    def test_a_mode_of_the_person_s_own_can_be_left(self, page: DashboardPage) -> None:
        page.governor.show_view(GovernorView(state=State.PAUSED, mode=Mode.PAUSED))
        assert [one.text() for one in page.governor.buttons] == ["Automatic"]

    def test_other_programs_are_named(self, page: DashboardPage) -> None:
        page.show_stats(stats_at(1))
        panel = page.memory.vram
        assert panel.others == ""
        page.memory.show_programs(
            (
                Program(pid=1, name="browser", vram_bytes=300 * MIB),
                Program(pid=2, name="browser", vram_bytes=212 * MIB),
                Program(pid=3, name="render.exe", game="The Game", vram_bytes=2048 * MIB),
                Program(pid=4, name="recorder", on_gpu=True),
                Program(pid=5, name="editor", on_gpu=False),
            )
        )
        assert panel.others == "Other programs: The Game 2.00 GiB, browser 512 MiB, recorder"


class TestHistory:
    def test_the_pointer_reads_a_curve(self, page: DashboardPage, qtbot: QtBot) -> None:
        feed(page, range(60))
        curve = page.channel.curve
        curve.point_at(0.0)
        assert curve.pointed_at.startswith("50.0 %") and curve.pointed_at.endswith("59 s ago")
        qtbot.mouseMove(curve, QPoint(curve.width() - 2, 20))
        curve.point_at(1.0)
        assert curve.pointed_at.endswith("now")
        curve.setFocus()
        qtbot.keyClick(curve, Qt.Key.Key_Left)
        assert curve.pointed_at.endswith("1 s ago")
        qtbot.keyClick(curve, Qt.Key.Key_PageUp)
        assert curve.pointed_at.endswith("11 s ago")

    def test_a_figure_shows_its_own(self, page: DashboardPage, qtbot: QtBot) -> None:
        feed(page, range(30))
        figure = page.channel.link.figure
        page.window().activateWindow()
        figure.setFocus()
        popup = page.hover.popup
        assert popup is not None and popup.isVisible()
        qtbot.keyClick(figure, Qt.Key.Key_Left)
        assert page.hover.words.endswith("GB/s  ·  now")
        qtbot.keyClick(figure, Qt.Key.Key_Left)
        assert page.hover.words.endswith("1 s ago")
        page.show_stats(stats_at(30))
        qtbot.keyClick(figure, Qt.Key.Key_Escape)
        assert page.hover.popup is None

    def test_it_is_saved(self, page: DashboardPage, qtbot: QtBot, tmp_path: Path) -> None:
        feed(page, range(5))
        qtbot.wait(20)  # its layout settles
        export = page.export
        for name, save in (
            ("h.csv", export.save_history),
            ("p.png", export.save_picture),
        ):
            shown = page.widget()
            assert shown is not None
            size = shown.size() * shown.devicePixelRatioF()
            with qtbot.waitSignal(export.saved, timeout=PATIENCE_MS) as saved:
                save(tmp_path / name)
            assert saved.args == [str(tmp_path / name)]
        with (tmp_path / "h.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) >= 5 and set(rows[0]) == {"time", *FIGURES}
        assert rows[3]["time"] == "2001-09-09T01:46:43+00:00"
        assert float(rows[3]["expert_misses"]) == 901 and float(rows[3]["ttft_s"]) == 0.23
        picture = QImage(str(tmp_path / "p.png"))
        assert picture.size() == size

    def test_what_cannot_be_written_is_told(
        self, page: DashboardPage, qtbot: QtBot, tmp_path: Path
    ) -> None:
        for save in (page.export.save_history, page.export.save_picture):
            with qtbot.waitSignal(page.export.failed, timeout=PATIENCE_MS) as failed:
                save(tmp_path / "no" / "such")
            assert "was not written: No such file" in failed.args[0]


class TestResidency:
    def test_layers_are_told(self, page: DashboardPage, qtbot: QtBot) -> None:
        card = page.residency
        assert card.isHidden()
        card.show_residency(ResidencyView(4, (1, 3), ((0, 2), (1,))))
        assert not card.isHidden()
        assert card.map.accessibleDescription() == "3 of 8 experts in 2 layers have a slot."
        card.map.setFocus()
        qtbot.keyClick(card.map, Qt.Key.Key_End)
        assert card.words == "Layer 3: 1 of 4 experts have a slot (25.0 %)."
        card.map.choose(0, 2)
        assert card.words.endswith("(50.0 %). Expert 2 has a slot.")

    @pytest.mark.parametrize(("layers", "experts"), [(1, 1), (3, 7), (94, 512), (61, 384)])
    def test_any_number_fits(
        self, page: DashboardPage, qtbot: QtBot, layers: int, experts: int
    ) -> None:
        view = residency(layers, experts)
        page.residency.show_residency(view)
        shown = page.residency.map
        for width in (200, 700, 2000):
            shown.resize(QSize(width, shown.height()))
            assert 1 <= shown.bins <= experts
            image = shown.grab().toImage()
            assert not image.isNull() and image.height() >= layers

    def test_colours_are_shares(self, qtbot: QtBot, page: DashboardPage) -> None:
        view = ResidencyView(8, (0,), ((0, 1, 2, 3, 4, 6),))
        assert [list(view.bin_experts(at, 3)) for at in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
        page.residency.show_residency(view)
        shown, scheme = page.residency.map, theme.active()
        shown.resize(8 * 20 + 36, 20)
        row = [shown.grab().toImage().pixelColor(34 + 20 * at + 10, 10).name() for at in (4, 5)]
        assert row == [scheme.experts, scheme.track]
        shown.resize(4 * 2 + 36, 20)
        row = [shown.grab().toImage().pixelColor(34 + 2 * at, 10).red() for at in range(4)]
        low, high = sorted(QColor(name).red() for name in (scheme.experts, scheme.track))
        assert row[0] == row[1] == QColor(scheme.experts).red()
        assert low < row[2] < high and low < row[3] < high


VIEWS = [residency(94, 512, seed) for seed in range(3)]


def use(main: window.MainWindow, qtbot: QtBot, watch: StallWatch) -> None:
    """All that a person does with the page, with a moment's rest between."""
    page = main.dashboard

    def then(what: str, do: Callable[[], object]) -> None:
        watch.doing(what)
        do()
        qtbot.wait(8)

    for second in range(400, 430):
        then("figures", lambda second=second: main._show_stats(stats_at(second)))
    for view in VIEWS:
        then("residency", lambda view=view: page.residency.show_residency(view))
    for row in (0, 40, 93):
        then("a layer", lambda row=row: page.residency.map.choose(row, row))
    then("governor", lambda: page.governor.show_view(GAME))
    then("no governor", lambda: page.governor.show_view(GovernorView()))
    for figure in page.findChildren(Figure):
        then("pointer on a figure", lambda figure=figure: qtbot.mouseMove(figure))
    for _ in range(30):
        then("Tab", lambda: qtbot.keyClick(main.focusWidget() or page, Qt.Key.Key_Tab))
    for curve in [one for one in page.findChildren(Sparkline) if one.window() is main]:
        for share in (0.1, 0.5, 0.9):
            then("pointer on a curve", lambda curve=curve, share=share: curve.point_at(share))
    bar = page.verticalScrollBar()
    for share in range(12):
        then("scrolling", lambda share=share: bar.setValue(bar.maximum() * share // 11))
    for width in (*range(1100, 780, -40), *range(820, 1140, 40)):
        then("resizing", lambda width=width: main.resize(width, 800))
    then("chat", lambda: main.open_page(window.CHAT))
    then("back", lambda: main.open_page(window.DASHBOARD))


def test_nothing_stalls(open_app: Opener, qtbot: QtBot) -> None:
    main = open_app().window
    main.dashboard._clock = Clock()
    main.dashboard.show_view(EngineView(phase=Phase.READY), 0)
    feed(main.dashboard, range(400))
    main.resize(1120, 800)
    qtbot.wait(50)
    longest, during = longest_stall(lambda watch: use(main, qtbot, watch))
    assert longest < FRAME_S, f"{1000 * longest:.1f} ms while: {during}"


def in_use(process: psutil.Process) -> tuple[int, int, int]:
    """Bytes that are this process's alone, open handles, threads."""
    handles = process.num_handles() if os.name == "nt" else process.num_fds()
    return process.memory_full_info().uss, handles, process.num_threads()


EIGHT_HOURS = 28_800


@pytest.mark.parametrize(
    "events", [1_500, pytest.param(EIGHT_HOURS, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
)
def test_a_long_run_holds_no_more(page: DashboardPage, qtbot: QtBot, events: int) -> None:
    """At one event a second, of which the page paints some and shows all."""
    feed(page, range(1))

    def run(seconds: range) -> None:
        for second in seconds:
            page.show_stats(stats_at(second))
            if second % 50 == 0:
                qtbot.wait(1)
            if second % 500 == 0:
                page.residency.show_residency(residency(48, 128, second))
                page.hover._open(page.channel.hit_rate)
                page.hover.close()

    run(range(1, 501))
    process = psutil.Process()
    gc.collect()
    held, handles, threads = in_use(process)
    run(range(501, events))
    gc.collect()
    now = in_use(process)
    assert now[0] - held < 5e6
    assert now[1] <= handles and now[2] <= threads
