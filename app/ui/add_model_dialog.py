"""Adding a model: which one, what it comes to here, and its download.

Three pages: choosing (the catalog, a repository's name, a folder or file), looking at what the hub
and this PC say of it, and watching it arrive, which goes on without the dialog too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QDialog, QFileDialog, QStackedWidget, QVBoxLayout, QWidget

from app.core.downloads.records import Fault, Job, Request, State
from app.ui.add_model_pages import CheckPage, ChoosePage
from app.ui.download_service import DownloadService
from app.ui.model_service import Found, ModelService
from app.ui.settings_store import SettingsStore
from app.ui.widgets.basics import button, column, label, row
from app.ui.widgets.download_row import DownloadRow

CHOOSE, CHECK, WATCH = range(3)


class AddModelDialog(QDialog):
    use_asked = Signal(str)
    """The path of a model that the engine is to run."""
    download_asked = Signal(object, bool)
    """A Request, and whether the engine is to run it once it is here."""

    def __init__(
        self,
        parent: QWidget,
        models: ModelService,
        downloads: DownloadService,
        store: SettingsStore,
        request: Request | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Add a model")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self._models, self._downloads, self._store = models, downloads, store
        self._request = request
        self._job = ""
        self.choose = ChoosePage(models.look)
        self.check = CheckPage()
        self._make_layout()
        self._connect()
        if models.look is None:
            models.refresh()
        if request is None:
            self._open(CHOOSE)
        else:
            self._look_up(request)

    @property
    def page(self) -> int:
        return self._pages.currentIndex()

    @property
    def row(self) -> DownloadRow | None:
        """The download that is watched."""
        return self._watch.findChild(DownloadRow)

    # --- making ---

    def _make_layout(self) -> None:
        self._pages = QStackedWidget()
        self._watch = QWidget()
        watch = column(12)
        watch.addWidget(label("Downloading", "section"))
        hint = "You can close this window: the download goes on, and the page Models shows it."
        watch.addWidget(label(hint, "muted", wrap=True))
        watch.addStretch()
        self._watch.setLayout(watch)
        for page in (self.choose, self.check, self._watch):
            self._pages.addWidget(page)
        self.back = button("Back")
        self.close_button = button("Cancel")
        self.next = button("Next", primary=True)
        self.next.setDefault(True)
        buttons = row(8)
        buttons.addWidget(self.back)
        buttons.addStretch()
        buttons.addWidget(self.close_button)
        buttons.addWidget(self.next)
        body = column(16)
        body.setContentsMargins(24, 22, 24, 18)
        body.addWidget(self._pages, 1)
        body.addLayout(buttons)
        self.setLayout(body)
        self.resize(640, 560)

    def _connect(self) -> None:
        self.back.clicked.connect(lambda: self._open(CHOOSE))
        self.close_button.clicked.connect(self.reject)
        self.next.clicked.connect(self._go_on)
        self.choose.changed.connect(self._show_buttons)
        self.choose.chosen.connect(self._go_on)
        self.choose.folder_asked.connect(self._add_folder)
        self.choose.file_asked.connect(self._use_file)
        self.check.changed.connect(self._show_buttons)
        self.check.again_asked.connect(self._look_up)
        self.check.token_given.connect(self._save_token)
        self.check.folder_asked.connect(self._choose_root)
        self._models.looked.connect(self.choose.show_look)
        self._models.found.connect(self._found)
        self._models.refused.connect(self._refused)
        self._models.waiting.connect(self._waiting)
        self._models.failed.connect(self.check.show_failure)
        self._downloads.changed.connect(self._show_job)
        self._downloads.ready.connect(self._ready)

    # --- going from page to page ---

    def _open(self, page: int) -> None:
        self._pages.setCurrentIndex(page)
        self._show_buttons()
        if page == CHOOSE:
            self.choose.repo.setFocus()

    def _show_buttons(self) -> None:
        page = self.page
        self.back.setVisible(page == CHECK)
        self.close_button.setText("Close" if page == WATCH else "Cancel")
        self.next.setVisible(page == CHOOSE or (page == CHECK and self.check.has_answer))
        if page == CHOOSE:
            self.next.setText("Next")
            self.next.setEnabled(self.choose.request is not None)
        elif page == CHECK:
            self.next.setText(self.check.action)
            self.next.setEnabled(self.check.may_download)

    def _go_on(self) -> None:
        if self.page == CHOOSE and (request := self.choose.request) is not None:
            self._look_up(request)
        elif self.page == CHECK and self.check.may_download:
            self._download()

    def _look_up(self, request: Request) -> None:
        self._request = request
        self.check.show_asking(request)
        self._open(CHECK)
        self._models.look_up(request)

    def _found(self, found: Found) -> None:
        if found.request == self._request:
            self.check.show_found(found)
            (self.next if self.check.may_download else self.check.folder).setFocus()

    def _refused(self, request: Request, fault: Fault) -> None:
        if request == self._request:
            self.check.show_fault(fault)

    def _waiting(self, request: Request, reason: str) -> None:
        if request == self._request:
            self.check.show_waiting(reason)

    def _download(self) -> None:
        request = self._request
        if request is None:
            return
        if request.root and request.root not in self._store.now.model_folders:
            self._store.update(model_folders=(*self._store.now.model_folders, request.root))
        self._job = request.id
        self._open(WATCH)
        self.close_button.setFocus()
        self.download_asked.emit(request, self.check.use_it.isChecked())
        self._show_job()

    # --- the download ---

    def _show_job(self) -> None:
        job = next((job for job in self._downloads.jobs if job.id == self._job), None)
        if self.page != WATCH or job is None:
            return
        if self.row is None:
            made = DownloadRow(job)
            made.pause_asked.connect(self._downloads.pause)
            made.resume_asked.connect(self._downloads.resume)
            made.choose_asked.connect(self._look_up)
            made.cancel.hide()
            box = self._watch.layout()
            assert isinstance(box, QVBoxLayout)
            box.insertWidget(box.count() - 1, made)
        else:
            self.row.show_job(job)

    def _ready(self, job: Job) -> None:
        if job.id == self._job and job.state is State.READY:
            self.accept()

    # --- what needs no download ---

    def _add_folder(self) -> None:
        start = str(Path.home())
        if chosen := QFileDialog.getExistingDirectory(self, "Folder with models", start):
            self.add_folder(chosen)

    def add_folder(self, folder: str) -> None:
        """List the models of a folder where they are; nothing is copied."""
        known = self._store.now.model_folders
        if folder not in known:
            self._store.update(model_folders=(*known, folder))
        self.accept()

    def _use_file(self) -> None:
        chosen, _ = QFileDialog.getOpenFileName(
            self, "GGUF file", str(Path.home()), "GGUF models (*.gguf);;All files (*)"
        )
        if chosen:
            self.use_asked.emit(chosen)
            self.accept()

    def _choose_root(self) -> None:
        if self._request is None:
            return
        start = self._request.root or str(Path.home())
        if chosen := QFileDialog.getExistingDirectory(self, "Download to", start):
            self._look_up(msgspec.structs.replace(self._request, root=chosen))

    def _save_token(self, text: str) -> None:
        request = self._request
        if request is not None:
            self._models.save_token(text, lambda: self._look_up(request))
