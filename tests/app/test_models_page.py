"""The models page and the dialog that adds a model: real files, real workers, a hub on loopback."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QCheckBox, QComboBox, QLineEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.core import settings
from app.core.catalog import catalog
from app.core.downloads import layout, token
from app.core.downloads.records import Request, State
from app.core.supervisor import EngineView, Phase
from app.ui import model_service, window
from app.ui.add_model_dialog import CHECK, CHOOSE, WATCH, AddModelDialog
from app.ui.application import Headrace
from app.ui.confirm_dialog import ConfirmDialog
from app.ui.engine_service import EngineService
from app.ui.widgets.model_row import ModelRow
from engine import paths
from engine.memory.pc import Gpu, Pc, Rate, with_figures
from tests.app.conftest import PATIENCE_MS, Opener, ready
from tests.app.downloads.fake_hub import FakeHub, Fault

GPU = Gpu("A GPU", 12 * 10**9, 11 * 10**9, Rate(500e9, "by its clock"), 100e12)
PC = with_figures(Pc(0, 0, 8, Rate(20e9, "assumed"), GPU), ram=64e9, link=24e9)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's models, nor their hub, nor their proxy."""
    names = ("HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "ALL_PROXY")
    for name in (*names, "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """With the demo model as `org/model`."""
    wanted = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    folder = paths.demo_model()
    files = {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.name in wanted or "safetensors" in path.name
    }
    with FakeHub(files).running() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def look(headrace: Headrace, qtbot: QtBot) -> window.MainWindow:
    """Open the page and wait for what it finds."""
    headrace.window.open_page(window.MODELS)
    models = headrace.models
    qtbot.waitUntil(lambda: models.look is not None and models.look.complete, timeout=PATIENCE_MS)
    return headrace.window


def row_of(rows: list[ModelRow], name: str) -> ModelRow:
    (found,) = [row for row in rows if row.name == name]
    return found


def press(row: QWidget, words: str) -> None:
    (found,) = [b for b in row.findChildren(QPushButton) if b.text() == words]
    found.click()


def asked(headrace: Headrace, qtbot: QtBot, repo: str = "org/model") -> AddModelDialog:
    """The dialog, after the hub was asked for this repository."""
    dialog = look(headrace, qtbot).add_model()
    dialog.choose.repo.setText(repo)
    qtbot.keyClick(dialog.choose.repo, Qt.Key.Key_Return)
    assert dialog.page == CHECK
    return dialog


def answered(dialog: AddModelDialog, qtbot: QtBot) -> None:
    qtbot.waitUntil(lambda: dialog.check.has_answer, timeout=PATIENCE_MS)


def state_of(headrace: Headrace) -> State | None:
    jobs = headrace.downloads.jobs
    return jobs[0].state if jobs else None


class TestPage:
    def test_every_model_says_whether_it_fits_before_anything_is_fetched(
        self, open_app: Opener, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_service, "this_pc", lambda: PC)
        page = look(open_app(), qtbot).models
        demo = row_of(page.library_rows, "Demo")
        assert demo.badge.text.startswith("Fits, all in VRAM: about")
        assert "In use" in [child.text() for child in demo.findChildren(type(demo._text))]
        rows = {row.name: row.badge.text for row in page.catalog_rows}
        assert set(rows) == {entry.name for entry in catalog().models}
        words = r"Fits: needs 30\.\d GB of memory, about [\d.]+ tok/s here"
        assert re.fullmatch(words, rows["Qwen3 30B A3B Instruct"])
        assert rows["Qwen3 Coder 480B A35B"].startswith("Needs ")
        assert "Host memory: 20.0 GB/s (not measured yet: assumed)" in page.machine

    def test_the_list_is_filtered_by_words_and_by_what_fits(
        self, open_app: Opener, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(model_service, "this_pc", lambda: PC)
        page = look(open_app(), qtbot).models

        def shown() -> set[str]:
            return {row.name for row in page.catalog_rows if not row.isHidden()}

        page.filter.setText("coder")
        assert shown() == {"Qwen3 Coder 30B A3B", "Qwen3 Coder 480B A35B"}
        page.only_fitting.setChecked(True)
        assert shown() == {"Qwen3 Coder 30B A3B"}
        page.filter.setText("nothing is called this")
        assert shown() == set() and not page._nothing.isHidden()

    def test_disk_and_gpu_are_looked_at_in_another_thread(
        self, open_app: Opener, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        real = model_service._look_around

        def look_around(*arguments: object) -> object:
            seen.append(threading.get_ident())
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(model_service, "_look_around", look_around)
        look(open_app(), qtbot)
        assert seen and threading.get_ident() not in seen

    def test_using_a_model_starts_the_engine_with_it(
        self, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot, tmp_path: Path
    ) -> None:
        folder = tmp_path / "mine"
        shutil.copytree(paths.demo_model(), folder / "small")
        headrace = open_app(model_folders=(str(folder),))
        page = look(headrace, qtbot).models
        press(row_of(page.library_rows, "small"), "Use")
        ready(headrace, qtbot)
        assert settings.load().model == str(folder / "small")
        assert headrace.window.settings.model.text() == str(folder / "small")
        first = headrace.engine.server_pid
        qtbot.waitUntil(lambda: bool(demo_buttons(page, "Use")), timeout=PATIENCE_MS)
        demo_buttons(page, "Use")[0].click()
        qtbot.waitUntil(
            lambda: (
                headrace.engine.server_pid not in (0, first)
                and headrace.engine.view.phase is Phase.READY
            ),
            timeout=PATIENCE_MS,
        )
        assert settings.load().model == "demo"

    def test_deleting_asks_first_and_says_what_becomes_free(
        self, open_app: Opener, qtbot: QtBot, tmp_path: Path
    ) -> None:
        folder = tmp_path / "mine"
        shutil.copytree(paths.demo_model(), folder / "small")
        headrace = open_app(model_folders=(str(folder),))
        page = look(headrace, qtbot).models
        press(row_of(page.library_rows, "small"), "Delete")
        qtbot.waitUntil(lambda: bool(page.findChildren(ConfirmDialog)), timeout=PATIENCE_MS)
        (dialog,) = page.findChildren(ConfirmDialog)
        assert "MB become free" in dialog.words.text()
        assert (folder / "small" / "config.json").exists()
        dialog.confirm.click()
        qtbot.waitUntil(
            lambda: "small" not in [row.name for row in page.library_rows], timeout=PATIENCE_MS
        )
        assert not (folder / "small" / "config.json").exists()

    def test_a_folder_is_left_and_nothing_is_deleted(
        self, open_app: Opener, qtbot: QtBot, tmp_path: Path
    ) -> None:
        folder = tmp_path / "mine"
        shutil.copytree(paths.demo_model(), folder / "small")
        headrace = open_app(model_folders=(str(folder),))
        page = look(headrace, qtbot).models
        press(page._library, "Remove")
        qtbot.waitUntil(
            lambda: "small" not in [row.name for row in page.library_rows], timeout=PATIENCE_MS
        )
        assert settings.load().model_folders == ()
        assert (folder / "small" / "config.json").exists()

    def test_measuring_that_fails_says_why(
        self, open_app: Opener, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        headrace = open_app()
        page = look(headrace, qtbot).models
        monkeypatch.setenv("HEADRACE_DEBUG_ISA", "bogus")
        page.measure.click()
        assert not page.measure.isEnabled() and page.measure.text() == "Measuring…"
        qtbot.waitUntil(page.measure.isEnabled, timeout=PATIENCE_MS)
        assert page.banner.text.startswith("This PC could not be measured: ")
        assert len(page.banner.text) > 50, "the bench's own sentence"

    @pytest.mark.full
    def test_measuring_replaces_what_was_assumed(self, open_app: Opener, qtbot: QtBot) -> None:
        headrace = open_app()
        page = look(headrace, qtbot).models
        assert "Host memory: 20.0 GB/s (not measured yet" in page.machine
        page.measure.click()
        qtbot.waitUntil(lambda: "(measured on" in page.machine, timeout=5 * PATIENCE_MS)

    def test_the_tab_key_goes_from_the_top_to_the_bottom(
        self, open_app: Opener, qtbot: QtBot, tmp_path: Path
    ) -> None:
        shutil.copytree(paths.demo_model(), tmp_path / "mine" / "small")
        headrace = open_app(model_folders=(str(tmp_path / "mine"),))
        page = look(headrace, qtbot).models
        headrace.models.refresh()  # rows are made anew
        with qtbot.waitSignal(headrace.models.looked, timeout=PATIENCE_MS):
            pass
        stops: list[QWidget] = [page.measure]
        while (at := stops[-1].nextInFocusChain()) is not page.measure:
            stops.append(at)
        controls = [stop for stop in stops if stop.focusPolicy() & Qt.FocusPolicy.TabFocus]
        assert controls[1:3] == [page.filter, page.only_fitting]
        catalogued = [stop for stop in controls if page._catalog.isAncestorOf(stop)]
        assert controls[3 : 3 + len(catalogued)] == catalogued
        library = [stop for stop in controls if page._library.isAncestorOf(stop)]
        assert controls[-len(library) :] == library, "before the measuring, as on the page"
        assert len(library) >= 3
        for group in (catalogued, library):
            heights = [stop.mapTo(page.widget(), stop.rect().topLeft()).y() for stop in group]
            assert heights == sorted(heights)

    def test_a_model_for_which_the_port_is_not_free_is_told(
        self, open_app: Opener, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        headrace = open_app()
        page = look(headrace, qtbot).models
        headrace.engine.supervisor.view = EngineView(phase=Phase.READY, ours=False)
        monkeypatch.setattr(EngineService, "port_held_outside", property(lambda _: True))
        headrace.window.use_model("demo")
        assert "outside the app" in page.banner.text
        headrace.engine.supervisor.view = EngineView()

    def test_every_control_has_a_name_of_its_own(self, open_app: Opener, qtbot: QtBot) -> None:
        main = look(open_app(), qtbot)
        for parent in (main.models, main.add_model()):
            names: list[str] = []
            for control in parent.findChildren(QWidget):
                if isinstance(control, QPushButton | QLineEdit | QComboBox | QCheckBox):
                    names.append(control.accessibleName() or getattr(control, "text", str)())
            assert all(names)
            repeated = {name for name in names if names.count(name) > 1}
            assert repeated <= {"Try again", "Dismiss"}


def demo_buttons(page: QWidget, words: str) -> list[QPushButton]:
    buttons = page.findChildren(QPushButton)
    return [button for button in buttons if button.accessibleName() == f"{words}: Demo"]


class TestAdding:
    def test_a_repository_by_name_from_the_question_to_the_engine(
        self, hub: FakeHub, open_app: Opener, stand_in: Callable[..., None], qtbot: QtBot
    ) -> None:
        headrace = open_app()
        dialog = asked(headrace, qtbot)
        answered(dialog, qtbot)
        assert dialog.check.badge.text.startswith("Fits")
        assert f"org/model at {hub.commit[:8]}" in dialog.check.state
        assert "MB in" in dialog.check.state and "are free there" in dialog.check.state
        assert dialog.next.text() == "Download"
        dialog.next.click()
        assert dialog.page == WATCH
        ready(headrace, qtbot)
        model = Path(settings.load().model)
        assert model.is_relative_to(layout.hub_cache()) and (model / "config.json").exists()
        page = headrace.window.models
        qtbot.waitUntil(
            lambda: "org/model" in [row.name for row in page.library_rows], timeout=PATIENCE_MS
        )
        assert page.download_rows == []

    def test_what_the_engine_runs_is_left_where_that_is_wished(
        self, hub: FakeHub, open_app: Opener, qtbot: QtBot
    ) -> None:
        headrace = open_app()
        dialog = asked(headrace, qtbot)
        answered(dialog, qtbot)
        dialog.check.use_it.setChecked(False)
        dialog.next.click()
        qtbot.waitUntil(lambda: state_of(headrace) is State.READY, timeout=PATIENCE_MS)
        assert settings.load().model == "demo" and not headrace.engine.supervisor.running

    def test_pause_resume_and_cancel(self, hub: FakeHub, open_app: Opener, qtbot: QtBot) -> None:
        name = next(name for name in hub.files if name.startswith("model-00001"))
        hub.faults[name] = Fault(piece_s=0.05)
        headrace = open_app()
        dialog = asked(headrace, qtbot)
        answered(dialog, qtbot)
        dialog.next.click()
        qtbot.waitUntil(lambda: dialog.row is not None, timeout=PATIENCE_MS)
        dialog.reject()
        page = headrace.window.models
        qtbot.waitUntil(lambda: " of 2" in page.download_rows[0].words, timeout=PATIENCE_MS)
        (row,) = page.download_rows
        row.pause.click()
        qtbot.waitUntil(lambda: row.state == "Paused", timeout=PATIENCE_MS)
        assert row.pause.isHidden() and not row.resume.isHidden()
        hub.faults.clear()
        row.resume.click()
        qtbot.waitUntil(lambda: row.state == "Downloading", timeout=PATIENCE_MS)
        row.cancel.click()
        (question,) = page.findChildren(ConfirmDialog)
        assert "Pause keeps them" in question.words.text()
        question.confirm.click()
        qtbot.waitUntil(lambda: headrace.downloads.jobs == (), timeout=PATIENCE_MS)
        assert page.download_rows == []

    def test_a_token_is_asked_for_and_kept(
        self, hub: FakeHub, open_app: Opener, qtbot: QtBot
    ) -> None:
        hub.token = "hf_secret"
        dialog = asked(open_app(), qtbot)
        qtbot.waitUntil(lambda: dialog.check.banner.isVisible(), timeout=PATIENCE_MS)
        assert dialog.check.token.isVisible() and not dialog.next.isVisible()
        dialog.check.token.setText("hf_secret")
        dialog.check.save.click()
        assert dialog.check.token.text() == ""
        answered(dialog, qtbot)
        assert token.read_token() == "hf_secret"
        dialog.reject()

    def test_one_of_several_files_is_chosen(
        self, hub: FakeHub, open_app: Opener, qtbot: QtBot
    ) -> None:
        files = {f"tiny-{kind}.gguf": kind.encode() * 4000 for kind in ("Q4_0", "Q8_0")}
        hub.files, hub.promised, hub.lfs = files, dict(files), set(files)
        dialog = asked(open_app(), qtbot)
        qtbot.waitUntil(lambda: dialog.check.files.count() == 2, timeout=PATIENCE_MS)
        dialog.check.files.setCurrentIndex(1)
        dialog.check.take.click()
        answered(dialog, qtbot)
        assert "16.0 kB in 1 file" in dialog.check.state
        assert "not known before it is downloaded" in dialog.check.badge.text
        assert dialog.next.isEnabled(), "without an estimate it can be downloaded too"
        dialog.reject()

    def test_a_model_that_is_too_large_can_be_downloaded_anyway(
        self, hub: FakeHub, open_app: Opener, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiny = with_figures(PC, vram=0, ram=50e6)
        monkeypatch.setattr(model_service, "this_pc", lambda: tiny)
        dialog = asked(open_app(), qtbot)
        answered(dialog, qtbot)
        assert dialog.check.badge.text.startswith("Needs ")
        assert dialog.next.text() == "Download anyway" and dialog.next.isEnabled()
        dialog.reject()

    @pytest.mark.parametrize(
        ("repo", "words"), [("org/nothing", "org/nothing"), ("org/model", "supported")]
    )
    def test_what_cannot_be_had_is_said_in_words(
        self, hub: FakeHub, open_app: Opener, qtbot: QtBot, repo: str, words: str
    ) -> None:
        hub.files["config.json"] = hub.promised["config.json"] = b'{"model_type": "mamba"}'
        dialog = asked(open_app(), qtbot, repo)
        check = dialog.check
        qtbot.waitUntil(lambda: check.has_answer or check.banner.isVisible(), timeout=PATIENCE_MS)
        assert words in f"{check.banner.text} {check.badge.text}"
        dialog.back.click()
        assert dialog.page == CHOOSE
        dialog.reject()

    def test_a_model_of_the_catalog_comes_with_its_files(
        self, open_app: Opener, qtbot: QtBot
    ) -> None:
        main = look(open_app(), qtbot)
        entry = next(entry for entry in catalog().models if entry.files)
        press(row_of(main.models.catalog_rows, entry.name), "Download…")
        (dialog,) = main.findChildren(AddModelDialog)
        assert dialog.page == CHECK and dialog.check.title.text() == entry.name
        assert dialog._request == Request(repo=entry.repo, files=entry.files)
        dialog.back.click()
        dialog.choose.repo.setText(f"https://hub.example/{entry.repo}/tree/main")
        assert dialog.choose.request == Request(repo=entry.repo, files=entry.files)
        dialog.choose.repo.setText("no repository")
        assert dialog.choose.request is None and not dialog.next.isEnabled()
        dialog.choose.list.setCurrentRow(0)
        assert dialog.choose.request is not None and dialog.next.isEnabled()
        dialog.reject()

    def test_a_folder_is_listed_in_place(
        self, open_app: Opener, qtbot: QtBot, tmp_path: Path
    ) -> None:
        folder = tmp_path / "mine"
        shutil.copytree(paths.demo_model(), folder / "small")
        main = look(open_app(), qtbot)
        main.add_model().add_folder(str(folder))
        qtbot.waitUntil(
            lambda: "small" in [row.name for row in main.models.library_rows], timeout=PATIENCE_MS
        )
        assert settings.load().model_folders == (str(folder),)

    def test_it_opens_from_tray_and_chat(self, open_app: Opener, qtbot: QtBot) -> None:
        headrace = open_app()
        look(headrace, qtbot)
        main = headrace.window
        headrace.tray.add_action.trigger()
        press(main.chat, "Choose a model…")
        dialogs = main.findChildren(AddModelDialog)
        assert len(dialogs) == 2
        for dialog in dialogs:
            dialog.reject()
        assert main.header.title.text() == "Models"

    def test_a_download_goes_on_after_the_app_was_closed(
        self, hub: FakeHub, open_app: Opener, qtbot: QtBot
    ) -> None:
        name = next(name for name in hub.files if name.startswith("model-00001"))
        hub.faults[name] = Fault(piece_s=0.05)
        first = open_app()
        dialog = asked(first, qtbot)
        answered(dialog, qtbot)
        dialog.check.use_it.setChecked(False)
        dialog.next.click()
        qtbot.waitUntil(lambda: state_of(first) is State.RUNNING, timeout=PATIENCE_MS)
        first.downloads.close()
        hub.faults.clear()
        second = open_app()
        qtbot.waitUntil(lambda: state_of(second) is State.READY, timeout=PATIENCE_MS)
