"""The models page: what is on this PC, what is on its way, and what there is to download."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import (
    QApplication,
    QCheckBox,
    QFrame,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.core import fit_words, model_words, units
from app.core.catalog import Entry, catalog
from app.core.downloads.library import Deletion, Folder, Model, Standing
from app.core.downloads.records import Job, Request, State
from app.core.settings import DEMO, Settings, model_path
from app.ui.confirm_dialog import ConfirmDialog
from app.ui.download_service import DownloadService
from app.ui.model_service import Judged, Look, ModelService
from app.ui.settings_store import SettingsStore
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import Card, button, column, label, row
from app.ui.widgets.download_row import DownloadRow
from app.ui.widgets.model_row import ModelRow, rule
from engine import paths

_DEMO = "A tiny model that comes with Headrace. It answers at once, and knows very little."


class ModelsPage(QScrollArea):
    add_asked = Signal(object)
    """A Request to look at before it is fetched; None: to choose one first."""
    use_asked = Signal(str)
    """What the engine is to run: a path, or the bundled model's name."""

    def __init__(
        self, models: ModelService, downloads: DownloadService, store: SettingsStore
    ) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAccessibleName("Models")
        self._models, self._downloads, self._store = models, downloads, store
        self._jobs: dict[str, DownloadRow] = {}
        self.add_button = button("Add a model…")
        self.add_button.clicked.connect(lambda: self.add_asked.emit(None))
        self.banner = Banner()
        self.banner.add_button("Dismiss").clicked.connect(self.banner.hide)
        self._make_layout()
        models.looked.connect(self._show_look)
        models.failed.connect(self.banner.show_problem)
        models.measuring.connect(self._show_measuring)
        models.deleted.connect(self._show_deleted)
        downloads.changed.connect(self._show_jobs)
        store.changed.connect(self._settings_changed)
        self._show_jobs()

    @property
    def library_rows(self) -> list[ModelRow]:
        return self._library.findChildren(ModelRow)

    @property
    def catalog_rows(self) -> list[ModelRow]:
        return self._catalog.findChildren(ModelRow)

    @property
    def download_rows(self) -> list[DownloadRow]:
        return list(self._jobs.values())

    @property
    def machine(self) -> str:
        """What is said of this PC."""
        return f"{self._machine.text()} {self._rates.text()}"

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._models.refresh()

    # --- making ---

    def _make_layout(self) -> None:
        content = QWidget()
        content.setObjectName("scrolled")
        body = QVBoxLayout(content)
        body.setContentsMargins(24, 20, 24, 24)
        body.setSpacing(16)
        body.addWidget(self.banner)
        self._on_the_way = Card("DOWNLOADS")
        body.addWidget(self._on_the_way)
        library = Card("ON THIS PC")
        self._library = QWidget()
        self._library.setLayout(column(0))
        self._library_note = label("Looking for models…", "muted")
        library.body.addWidget(self._library_note)
        library.body.addWidget(self._library)
        body.addWidget(library)
        body.addWidget(self._make_machine())
        body.addWidget(self._make_catalog())
        body.addStretch()
        self.setWidget(content)

    def _make_catalog(self) -> Card:
        card = Card("TO DOWNLOAD")
        self.filter = QLineEdit()
        self.filter.setPlaceholderText("Filter by name or use")
        self.filter.setAccessibleName("Filter the models to download")
        self.filter.setClearButtonEnabled(True)
        self.filter.setMaximumWidth(320)
        self.filter.textChanged.connect(self._filter)
        self.only_fitting = QCheckBox("Only what fits this PC")
        self.only_fitting.toggled.connect(self._filter)
        line = row(16)
        line.addWidget(self.filter, 1)
        line.addWidget(self.only_fitting)
        line.addStretch()
        card.body.addLayout(line)
        self._catalog = QWidget()
        self._catalog.setLayout(column(0))
        card.body.addWidget(self._catalog)
        self._nothing = label("No model of the catalog is like that.", "muted")
        self._nothing.hide()
        card.body.addWidget(self._nothing)
        hint = "Any other model of a supported family can be added by its repository's name."
        card.body.addWidget(label(hint, "hint", wrap=True))
        return card

    def _make_machine(self) -> Card:
        card = Card("THIS PC")
        self._machine = label("", wrap=True)
        self._rates = label("", "muted", wrap=True)
        self.measure = button("Measure this PC")
        self.measure.clicked.connect(self._models.measure)
        hint = (
            "All figures are estimates, from this PC's memory and from the two rates that decide: "
            "of host memory, and of the link to the GPU. Measuring them takes about a minute."
        )
        words = column(4)
        words.addWidget(self._machine)
        words.addWidget(self._rates)
        words.addWidget(label(hint, "hint", wrap=True))
        line = row(16)
        line.addLayout(words, 1)
        line.addWidget(self.measure, 0, Qt.AlignmentFlag.AlignTop)
        card.body.addLayout(line)
        return card

    # --- what is shown ---

    def _show_look(self, look: Look) -> None:
        focused = _focused_name(self)
        self._machine.setText(fit_words.machine(look.pc))
        self._rates.setText(fit_words.rates(look.pc))
        self._show_library(look)
        self._show_catalog(look)
        self._order()
        if focused:
            _focus(self, focused)

    def _show_library(self, look: Look) -> None:
        self._library_note.setVisible(not look.complete)
        _clear(self._library)
        box = self._library.layout()
        assert box is not None
        demo = str(paths.demo_model())
        bundled = ModelRow("Demo", ["comes with Headrace"], _DEMO)
        self._judge(bundled, look.models.get(demo, Judged()))
        self._add_use(bundled, DEMO)
        box.addWidget(bundled)
        for folder in look.folders:
            box.addWidget(rule())
            box.addWidget(self._folder_line(folder, known=look.complete))
            for model in folder.models:
                box.addWidget(self._model_row(model, look.models.get(model.path, Judged())))

    def _folder_line(self, folder: Folder, *, known: bool) -> QWidget:
        made = QWidget()
        line = row(12)
        line.setContentsMargins(0, 12, 0, 4)
        words = column(2)
        place = label(folder.path, "modelName", wrap=True)
        place.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        words.addWidget(place)
        if known:
            words.addWidget(label(model_words.folder_words(folder), "hint", wrap=True))
        if known and not folder.models and folder.available:
            words.addWidget(label("No models are here yet.", "muted"))
        line.addLayout(words, 1)
        if folder.path in self._store.now.model_folders:
            leave = button("Remove")
            leave.setToolTip("Looks there no more. Nothing is deleted.")
            leave.setAccessibleName(f"Remove from the list: {folder.path}")
            leave.clicked.connect(lambda: self._leave(folder.path))
            line.addWidget(leave)
        made.setLayout(line)
        return made

    def _model_row(self, model: Model, judged: Judged) -> ModelRow:
        tags = [units.storage(model.size), model_words.standing(model)]
        if judged.facts is not None:
            tags.insert(0, model_words.format_name(judged.facts.format))
        made = ModelRow(model.name, tags, model.note)
        if model.standing in (Standing.READY, Standing.FOREIGN):
            self._judge(made, judged)
            if not judged.problem:
                self._add_use(made, model.path)
        else:
            made.badge.show_words("")
        if model.request is not None and model.request.id in self._jobs:
            made.add_state("See downloads")
            return made
        if model.standing is Standing.PARTIAL and model.request is not None:
            request = model.request
            go_on = made.add_button("Go on")
            go_on.clicked.connect(lambda: self._downloads.add(request))
        if model.standing is not Standing.UNAVAILABLE:
            made.add_button("Delete").clicked.connect(lambda: self._ask_to_delete(model))
        return made

    def _show_catalog(self, look: Look) -> None:
        _clear(self._catalog)
        here = {
            model.name
            for folder in look.folders
            for model in folder.models
            if model.standing in (Standing.READY, Standing.FOREIGN)
        }
        box = self._catalog.layout()
        assert box is not None
        for entry in catalog().models:
            made = ModelRow(entry.name, model_words.entry_tags(entry), entry.description)
            made.setProperty("repo", entry.repo)
            judged = look.entries.get(entry.repo, Judged())
            self._judge(made, judged)
            if any(name == entry.repo or name.startswith(f"{entry.repo}/") for name in here):
                made.add_state("On this PC")
            else:
                large = judged.fit is not None and judged.fit.verdict == "too_large"
                get = made.add_button("Download anyway…" if large else "Download…")
                get.clicked.connect(lambda _=False, entry=entry: self._ask_for(entry))
            box.addWidget(made)
        self._filter()

    def _filter(self) -> None:
        wanted, shown = self.filter.text().strip().casefold(), 0
        look = self._models.look
        for made in self.catalog_rows:
            repo = str(made.property("repo"))
            judged = look.entries.get(repo, Judged()) if look is not None else Judged()
            text = f"{made.name} {repo} {made.text}".casefold()
            fits = judged.fit is None or judged.fit.verdict != "too_large"
            visible = wanted in text and (fits or not self.only_fitting.isChecked())
            made.setVisible(visible)
            shown += visible
        self._nothing.setVisible(bool(self.catalog_rows) and not shown)

    def _order(self) -> None:
        """Rows that are made anew come last for the Tab key, until they are put in their place."""
        chain = _buttons(self._on_the_way) + _buttons(self._library)
        chain += [self.measure, self.filter, self.only_fitting, *_buttons(self._catalog)]
        for before, after in pairwise(chain):
            QWidget.setTabOrder(before, after)

    def _judge(self, made: ModelRow, judged: Judged) -> None:
        if judged.fit is None:
            made.badge.show_words(judged.problem)
            return
        made.badge.show_badge(fit_words.badge(judged.fit))
        details = [f"{name}: {words}" for name, words in fit_words.details(judged.fit)]
        made.badge.setToolTip("\n".join([*details, "", *judged.fit.notes, "An estimate."]))

    def _add_use(self, made: ModelRow, model: str) -> None:
        if _same(self._store.now.model, model):
            made.add_state("In use")
            return
        use = made.add_button("Use", primary=True)
        use.clicked.connect(lambda: self.use_asked.emit(model))

    def _show_jobs(self) -> None:
        jobs = [job for job in self._downloads.jobs if job.state is not State.READY]
        before = set(self._jobs)
        for gone in before - {job.id for job in jobs}:
            self._jobs.pop(gone).deleteLater()
        for job in jobs:
            if job.id in self._jobs:
                self._jobs[job.id].show_job(job)
            else:
                self._jobs[job.id] = self._make_job(job)
                self._on_the_way.body.addWidget(self._jobs[job.id])
        self._on_the_way.setVisible(bool(jobs))
        if before != set(self._jobs):
            self._order()
            if self.isVisible():  # what is on disk is another, and what can be done with it
                self._models.refresh()

    def _make_job(self, job: Job) -> DownloadRow:
        made = DownloadRow(job)
        made.pause_asked.connect(self._downloads.pause)
        made.resume_asked.connect(self._downloads.resume)
        made.cancel_asked.connect(self._ask_to_cancel)
        made.choose_asked.connect(self.add_asked)
        return made

    def _show_measuring(self, on: bool) -> None:
        self.measure.setEnabled(not on)
        self.measure.setText("Measuring…" if on else "Measure this PC")

    def _show_deleted(self, model: Model, _: Deletion) -> None:
        self.add_button.setFocus()
        if _same(self._store.now.model, model.path):
            self.banner.show_problem(
                f"The engine's model, {model.name}, was deleted.", "Use another one."
            )

    # --- what is done ---

    def _settings_changed(self, before: Settings, now: Settings) -> None:
        fields = ("model", "device", "moe_cache_rate", "context_tokens", "model_folders")
        if any(getattr(before, name) != getattr(now, name) for name in fields):
            self._models.refresh()

    def _ask_for(self, entry: Entry) -> None:
        self.add_asked.emit(Request(repo=entry.repo, files=entry.files))

    def _ask_to_delete(self, model: Model) -> None:
        def ask(deletion: Deletion) -> None:
            words = model_words.deletion_words(model.name, deletion)
            if _same(self._store.now.model, model.path):
                words = f"It is the model that the engine is set to. {words}"
            title = f"Delete {model.name}?"
            ConfirmDialog(self, title, words, "Delete", lambda: self._models.delete(model)).open()

        self._models.plan_deletion(model, ask)

    def _ask_to_cancel(self, job_id: str) -> None:
        job = next((job for job in self._downloads.jobs if job.id == job_id), None)
        if job is None:
            return
        if not job.done:
            self._downloads.cancel(job_id)
            return
        words = f"The {units.storage(job.done)} that were fetched are deleted. Pause keeps them."
        title = f"Cancel the download of {job.request.repo}?"
        then = self._downloads.cancel
        ConfirmDialog(self, title, words, "Cancel download", lambda: then(job_id)).open()

    def _leave(self, folder: str) -> None:
        kept = tuple(name for name in self._store.now.model_folders if name != folder)
        self._store.update(model_folders=kept)


def _same(now: str, model: str) -> bool:
    """Whether the engine's setting means this model."""
    if DEMO in (now, model):
        return now == model
    path = model_path(now)
    return path is not None and path == Path(model)


def _buttons(parent: QWidget) -> list[QWidget]:
    """In the order in which they were made, which is that of the rows."""
    return list(parent.findChildren(QPushButton))


def _clear(parent: QWidget) -> None:
    for child in parent.findChildren(QWidget, options=Qt.FindChildOption.FindDirectChildrenOnly):
        child.hide()
        child.setParent(None)
        child.deleteLater()


def _focused_name(parent: QWidget) -> str:
    focused = QApplication.focusWidget()
    if focused is None or not parent.isAncestorOf(focused):
        return ""
    return focused.accessibleName()


def _focus(parent: QWidget, name: str) -> None:
    """The lists were made anew: the keyboard stays where it was."""
    for made in parent.findChildren(QPushButton):
        if made.accessibleName() == name:
            made.setFocus()
            return
