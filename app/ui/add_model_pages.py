"""The pages of the dialog that adds a model."""

from __future__ import annotations

import re

import msgspec
from PySide6.QtCore import QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QLineEdit,
    QProgressBar,
    QWidget,
)

from app.core import fit_words, model_words, units
from app.core.catalog import catalog
from app.core.downloads import layout
from app.core.downloads.records import Fault, Request
from app.ui.model_service import Found, Judged, Look
from app.ui.widgets.banner import Banner
from app.ui.widgets.basics import button, column, label, row
from app.ui.widgets.figure_table import FigureTable
from app.ui.widgets.fit_badge import FitBadge
from app.ui.widgets.model_list import Choice, ModelList

_REPOSITORY = re.compile(r"(?:https?://[^/]+/)?([\w.-]+/[\w.-]+?)/?(?:/tree/.*)?")


class ChoosePage(QWidget):
    changed = Signal()
    chosen = Signal()
    """The person has chosen for good: Enter, or a double click."""
    folder_asked = Signal()
    file_asked = Signal()

    def __init__(self, look: Look | None) -> None:
        super().__init__()
        self.list = ModelList()
        self.list.setAccessibleName("Models of the catalog")
        self.repo = QLineEdit()
        self.repo.setPlaceholderText("organisation/name, as on the hub")
        self.repo.setClearButtonEnabled(True)
        self.repo.setAccessibleName("Repository on the hub")
        self.repo.textChanged.connect(self._typed)
        self.repo.returnPressed.connect(self.chosen)
        self.list.currentItemChanged.connect(self._picked)
        self.list.itemActivated.connect(lambda _: self.chosen.emit())
        folder, file = button("Folder with models…"), button("GGUF file…")
        folder.clicked.connect(self.folder_asked)
        file.clicked.connect(self.file_asked)
        here = row(8)
        here.addWidget(label("Already on this PC:", "muted"))
        here.addWidget(folder)
        here.addWidget(file)
        here.addStretch()
        body = column(10)
        body.addWidget(label("Which model?", "section"))
        body.addWidget(self.list, 1)
        body.addWidget(label("Or any repository of a supported family:", "muted"))
        body.addWidget(self.repo)
        body.addLayout(here)
        self.setLayout(body)
        self.show_look(look)

    @property
    def request(self) -> Request | None:
        """What is chosen; None while that is nothing."""
        if text := self.repo.text().strip():
            found = _REPOSITORY.fullmatch(text)
            return _request(found[1]) if found is not None else None
        return _request(self.list.key) if self.list.key else None

    def show_look(self, look: Look | None) -> None:
        choices = []
        for entry in catalog().models:
            judged = look.entries.get(entry.repo, Judged()) if look is not None else Judged()
            words, kind = entry.description, "muted"
            if judged.fit is not None:
                badge = fit_words.badge(judged.fit)
                words, kind = badge.text, badge.kind
            size = units.storage(entry.bytes.total)
            choices.append(Choice(entry.repo, entry.name, size, words, kind))
        self.list.show_choices(choices)

    def _typed(self) -> None:
        if self.repo.text():
            self.list.setCurrentRow(-1)
        self.changed.emit()

    def _picked(self) -> None:
        if self.list.key:
            self.repo.blockSignals(True)
            self.repo.clear()
            self.repo.blockSignals(False)
        self.changed.emit()


def _request(repo: str) -> Request:
    """Of the catalog's models, the files that the catalog names."""
    entry = catalog().find(repo)
    return Request(repo=repo) if entry is None else Request(repo=entry.repo, files=entry.files)


class CheckPage(QWidget):
    changed = Signal()
    again_asked = Signal(object)
    """The Request to ask the hub of once more."""
    token_given = Signal(str)
    folder_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._request = Request(repo="")
        self._found: Found | None = None
        self.title = label("", "section", wrap=True)
        self._state = label("", "muted", wrap=True)
        self._busy = QProgressBar()
        self._busy.setRange(0, 0)
        self._busy.setTextVisible(False)
        self._busy.setFixedHeight(6)
        self._busy.setAccessibleName("Asking the hub")
        self.banner = Banner()
        self.again = self.banner.add_button("Try again")
        self.again.clicked.connect(lambda: self.again_asked.emit(self._request))
        self.site = self.banner.add_button("Open its page")
        self.site.clicked.connect(self._open_site)
        self.badge = FitBadge()
        self._figures = FigureTable(())
        self._notes = label("", "hint", wrap=True)
        self.files = QComboBox()
        self.files.setAccessibleName("Which file")
        self.files.setSizeAdjustPolicy(
            QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        )
        self.take = button("Take this file", primary=True)
        self.take.clicked.connect(self._take_file)
        self.token = QLineEdit()
        self.token.setEchoMode(QLineEdit.EchoMode.Password)
        self.token.setPlaceholderText("hf_…")
        self.token.setAccessibleName("The hub's access token")
        self.save = button("Save and try again", primary=True)
        self.save.clicked.connect(self._give_token)
        self.token.returnPressed.connect(self._give_token)
        self.folder = button("Change…")
        self.folder.setAccessibleName("Download to another folder")
        self.folder.clicked.connect(self.folder_asked)
        self._place = label("", "hint", wrap=True)
        self.use_it = QCheckBox("Switch the engine to it when it is here")
        self.use_it.setChecked(True)
        self._make_layout()

    @property
    def state(self) -> str:
        return self._state.text()

    @property
    def has_answer(self) -> bool:
        return self._found is not None

    @property
    def may_download(self) -> bool:
        """Whatever the estimate says; only a disk without room is no use to try."""
        return self._found is not None and not model_words.disk_short(self._found.planned)

    @property
    def action(self) -> str:
        fit = self._found.judged.fit if self._found is not None else None
        large = fit is not None and fit.verdict == "too_large"
        return "Download anyway" if large else "Download"

    def show_asking(self, request: Request) -> None:
        self._request, self._found = request, None
        entry = catalog().find(request.repo)
        self.title.setText(entry.name if entry is not None else request.repo)
        where = f"{request.repo}, " if entry is not None else ""
        self._state.setText(f"{where}asking the hub what there is…")
        self._show_parts(busy=True)

    def show_waiting(self, reason: str) -> None:
        self._state.setText(f"{reason} Trying again…")

    def show_found(self, found: Found) -> None:
        self._found = found
        planned = found.planned
        commit = planned.plan.commit[:8]
        self._state.setText(f"{found.request.repo} at {commit}: {model_words.plan_words(planned)}.")
        self._show_parts(figures=True)
        short = model_words.disk_short(planned)
        if short:
            self.banner.show_problem(
                f"The disk lacks {units.storage(short)}.",
                "Free some of it, or download to a folder on another disk.",
            )
        self._show_judged(found.judged)
        root = layout.root_of(found.request)
        self._place.setText(f"Goes to {root}")
        self.changed.emit()

    def show_fault(self, fault: Fault) -> None:
        self._state.setText("" if self.title.text() == self._request.repo else self._request.repo)
        self._show_parts()
        if fault.code == "choose_files":
            self._state.setText("It holds several models. Choose one file.")
            self.files.clear()
            for choice in fault.choices:
                self.files.addItem(f"{choice.name}  ·  {units.storage(choice.size)}", choice.name)
            self._state.setVisible(True)
            self._choice.setVisible(True)
            self.files.setFocus()
        else:
            self.banner.show_problem(fault.message, fault.hint)
            self.site.setVisible(fault.code in ("gated", "not_found", "unauthorised"))
            self._token.setVisible(fault.code in ("gated", "unauthorised"))
            (self.token if self._token.isVisibleTo(self) else self.again).setFocus()
        self.changed.emit()

    def show_failure(self, sentence: str) -> None:
        self.banner.show_problem(sentence)

    def _show_judged(self, judged: Judged) -> None:
        lines = fit_words.details(judged.fit) if judged.fit is not None else ()
        figures = FigureTable(lines)
        self._result_box.replaceWidget(self._figures, figures)
        self._figures.hide()
        self._figures.deleteLater()
        self._figures = figures
        if judged.fit is None:
            self.badge.show_words(judged.problem)
            self._notes.setText("It can be downloaded all the same.")
            return
        self.badge.show_badge(fit_words.badge(judged.fit))
        self._notes.setText(" ".join(["An estimate.", *judged.fit.notes]))

    def _show_parts(self, *, busy: bool = False, figures: bool = False) -> None:
        self._state.setVisible(bool(self._state.text()))
        self._busy.setVisible(busy)
        self.banner.hide()
        self.site.hide()
        self._choice.hide()
        self._token.hide()
        self._result.setVisible(figures)
        self.changed.emit()

    def _make_layout(self) -> None:
        self._choice = QWidget()
        choice = row(8)
        choice.addWidget(self.files, 1)
        choice.addWidget(self.take)
        self._choice.setLayout(choice)
        self._token = QWidget()
        token = column(6)
        told = (
            "A token of your account on the hub, from its settings. It is kept in a file that only "
            "you can read, and sent to the hub alone."
        )
        token.addWidget(label(told, "muted", wrap=True))
        line = row(8)
        line.addWidget(self.token, 1)
        line.addWidget(self.save)
        token.addLayout(line)
        self._token.setLayout(token)
        self._result = QWidget()
        result = self._result_box = column(12)
        result.addWidget(self.badge)
        result.addWidget(self._figures)
        result.addWidget(self._notes)
        place = row(8)
        place.addWidget(self._place, 1)
        place.addWidget(self.folder)
        result.addLayout(place)
        result.addWidget(self.use_it)
        self._result.setLayout(result)
        body = column(12)
        body.addWidget(self.title)
        body.addWidget(self._state)
        body.addWidget(self._busy)
        body.addWidget(self.banner)
        body.addWidget(self._choice)
        body.addWidget(self._token)
        body.addWidget(self._result)
        body.addStretch()
        self.setLayout(body)

    def _take_file(self) -> None:
        if name := self.files.currentData():
            self.again_asked.emit(msgspec.structs.replace(self._request, files=(name,)))

    def _give_token(self) -> None:
        if text := self.token.text().strip():
            self.token.clear()
            self.token_given.emit(text)

    def _open_site(self) -> None:
        from app.core.downloads.hub import DEFAULT_ENDPOINT  # and an HTTP client, at a click only

        QDesktopServices.openUrl(QUrl(f"{DEFAULT_ENDPOINT}/{self._request.repo}"))
