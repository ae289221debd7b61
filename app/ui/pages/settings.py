"""The settings page. How the app behaves changes at once; the engine's part waits for Apply."""

from __future__ import annotations

from pathlib import Path

import msgspec
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QFileDialog,
    QFrame,
    QLabel,
    QLineEdit,
    QScrollArea,
    QSlider,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.core.settings import (
    ENGINE_FIELDS,
    LABELS,
    Settings,
    model_path,
    needs_restart,
    problems,
)
from app.core.supervisor import RUNNING, EngineView, Phase
from app.ui.pages.vram_settings import VramCard
from app.ui.settings_store import SettingsStore
from app.ui.widgets.basics import Card, button, column, label, restyle, row
from app.ui.widgets.setting_row import SettingRow

_DEVICES = (
    ("auto", "Automatic: the GPU where there is one"),
    ("cpu", "CPU: experts stay in host memory"),
    ("sim", "Simulated GPU: CPU with expert cache"),
    ("cuda", "NVIDIA GPU"),
)
_NOT_OURS = (
    "The engine that runs now was started outside the app and keeps its own settings. "
    "These are for the app's own engine: with a port that is free, Apply starts it."
)
_CLOSE = (
    ("ask", "Ask"),
    ("hide", "Keep running in the tray"),
    ("quit", "Quit and stop the engine"),
)
_APP_LABELS = {
    "start_engine_at_launch": "At launch",
    "on_close": "Closing the window",
    "theme": "Theme",
    "keep_conversations": "Conversations",
}
_THEMES = (("system", "Like the system"), ("light", "Light"), ("dark", "Dark"))


class SettingsPage(QWidget):
    apply_asked = Signal()
    """The engine's settings were saved; a running engine must restart for them."""

    def __init__(self, store: SettingsStore) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAccessibleName("Settings")
        self._store = store
        self._view, self._endpoint = EngineView(), ""
        self._rows: dict[str, SettingRow] = {}
        self._make_fields()
        self._make_layout()
        self._show(store.now)
        self._connect()
        store.changed.connect(self._settings_changed)
        self._edited()

    def show_engine(self, view: EngineView, endpoint: str) -> None:
        """What runs now, and at what base address; empty where none is known."""
        self._view, self._endpoint = view, endpoint
        self._not_ours.setVisible(view.phase in RUNNING and not view.ours)
        self._edited()

    def show_settings(self) -> None:
        """After the engine's settings were changed elsewhere."""
        self._show(self._store.now)
        self._edited()

    @property
    def draft(self) -> Settings:
        """What the fields say now."""
        return msgspec.structs.replace(
            self._store.now,
            model=self.model.text().strip(),
            device=self.device.currentData(),
            moe_cache_rate=self.cache_rate.value() / 100,
            context_tokens=self.context.value(),
            port=self.port.value(),
            api_key=self.api_key.text().strip(),
        )

    @property
    def pending(self) -> str:
        """What the bar of unapplied changes says."""
        return self._pending.text()

    def problem(self, field: str) -> str:
        return self._rows[field].problem

    # --- making ---

    def _make_fields(self) -> None:
        self.model = QLineEdit()
        self.model.setPlaceholderText("demo, a model folder, or a .gguf file")
        self.device = _choice(_DEVICES)
        self.cache_rate = QSlider(Qt.Orientation.Horizontal)
        self.cache_rate.setRange(1, 100)
        self.cache_rate.setPageStep(10)
        self._rate_words = QLabel()
        self._rate_words.setMinimumWidth(52)
        self._rate_words.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.context = QSpinBox()
        self.context.setRange(0, 10_000_000)
        self.context.setSingleStep(1024)
        self.context.setGroupSeparatorShown(True)
        self.context.setSuffix(" tokens")
        self.context.setSpecialValueText("The model's own limit")
        self.port = QSpinBox()
        self.port.setRange(0, 65535)
        self.port.setSpecialValueText("Any free port")
        for spin in (self.context, self.port):
            spin.lineEdit().setTextMargins(8, 0, 8, 0)  # a style sheet's padding does not reach it
        self.api_key = QLineEdit()
        self.api_key.setEchoMode(QLineEdit.EchoMode.Password)
        self.api_key.setPlaceholderText("None")
        self.at_launch = QCheckBox("Start the engine when Headrace opens")
        self.on_close = _choice(_CLOSE)
        self.theme = _choice(_THEMES)
        self.keep = QCheckBox("Keep them on this machine")

    def _make_layout(self) -> None:
        content = QWidget()
        content.setObjectName("scrolled")
        content_box = QVBoxLayout(content)
        content_box.setContentsMargins(24, 20, 24, 24)
        content_box.setSpacing(16)
        content_box.addWidget(self._make_engine_card())
        self.vram = VramCard(self._store)
        content_box.addWidget(self.vram)
        content_box.addWidget(self._make_app_card())
        content_box.addStretch()
        content.setMaximumWidth(860)
        scroller = QScrollArea()
        scroller.setWidgetResizable(True)
        scroller.setFrameShape(QFrame.Shape.NoFrame)
        scroller.setAlignment(Qt.AlignmentFlag.AlignHCenter)
        scroller.setWidget(content)
        body = column(0)
        body.addWidget(scroller, 1)
        body.addWidget(self._make_apply_bar())
        self.setLayout(body)

    def _make_engine_card(self) -> Card:
        card = Card("ENGINE")
        self._not_ours = label(_NOT_OURS, "muted", wrap=True)
        card.body.addWidget(self._not_ours)
        folder, file = button("Folder…"), button("File…")
        folder.setAccessibleName("Choose a model folder")
        file.setAccessibleName("Choose a GGUF file")
        folder.clicked.connect(self._choose_folder)
        file.clicked.connect(self._choose_file)
        self._add(card, "model", "A model folder, a GGUF file, or “demo”.", self.model)
        self._rows["model"].add(folder, file)
        self._add(card, "device", "Where the model computes.", self.device)
        self._add(
            card,
            "moe_cache_rate",
            "Share of the experts with a slot in VRAM. Less leaves room for long contexts.",
            self.cache_rate,
        )
        self._rows["moe_cache_rate"].add(self._rate_words)
        self._add(
            card,
            "context_tokens",
            "Longest prompt plus answer. Longer contexts take memory from the cache.",
            self.context,
        )
        self._add(card, "port", "Where agents and IDEs find the engine.", self.port)
        hint = "What the engine wants of its clients. Empty: whoever reaches it may use it."
        self._add(card, "api_key", hint, self.api_key)
        return card

    def _make_app_card(self) -> Card:
        card = Card("APP")
        self._add(card, "start_engine_at_launch", "", self.at_launch)
        self._add(
            card,
            "on_close",
            "Without a tray, “keep running” minimises the window instead.",
            self.on_close,
        )
        self._add(card, "theme", "", self.theme)
        hint = "Else what is begun from now on is gone when it is closed. Older ones stay listed."
        self._add(card, "keep_conversations", hint, self.keep)
        return card

    def _make_apply_bar(self) -> QWidget:
        self.apply = button("Apply", primary=True)
        self.revert = button("Revert")
        self._pending = label("", "muted")
        bar = QWidget()
        bar.setObjectName("applyBar")
        line = row(12)
        line.setContentsMargins(24, 12, 24, 12)
        line.addWidget(self._pending, 1)
        line.addWidget(self.revert)
        line.addWidget(self.apply)
        bar.setLayout(line)
        self._bar = bar
        return bar

    def _add(self, card: Card, field: str, hint: str, editor: QWidget) -> None:
        name = LABELS.get(field) or _APP_LABELS[field]
        self._rows[field] = SettingRow(name, hint, editor)
        card.body.addWidget(self._rows[field])

    def _connect(self) -> None:
        self.model.textChanged.connect(self._edited)
        self.device.currentIndexChanged.connect(self._edited)
        self.cache_rate.valueChanged.connect(self._edited)
        self.context.valueChanged.connect(self._edited)
        self.port.valueChanged.connect(self._edited)
        self.api_key.textChanged.connect(self._edited)
        self.apply.clicked.connect(self._apply)
        self.revert.clicked.connect(self._revert)
        store = self._store
        self.at_launch.toggled.connect(lambda on: store.update(start_engine_at_launch=on))
        self.keep.toggled.connect(lambda on: store.update(keep_conversations=on))
        self.on_close.currentIndexChanged.connect(
            lambda _: store.update(on_close=self.on_close.currentData())
        )
        self.theme.currentIndexChanged.connect(
            lambda _: store.update(theme=self.theme.currentData())
        )

    # --- editing ---

    def _show(self, settings: Settings) -> None:
        self.model.setText(settings.model)
        self.device.setCurrentIndex(self.device.findData(settings.device))
        self.cache_rate.setValue(round(100 * settings.moe_cache_rate))
        self.context.setValue(settings.context_tokens)
        self.port.setValue(settings.port)
        self.api_key.setText(settings.api_key)
        self._show_app_part(settings)

    def _show_app_part(self, settings: Settings) -> None:
        self.at_launch.setChecked(settings.start_engine_at_launch)
        self.on_close.setCurrentIndex(self.on_close.findData(settings.on_close))
        self.theme.setCurrentIndex(self.theme.findData(settings.theme))
        self.keep.setChecked(settings.keep_conversations)

    def _settings_changed(self, _: Settings, now: Settings) -> None:
        self._show_app_part(now)  # the close dialog may have changed it
        self._edited()

    def _edited(self) -> None:
        draft = self.draft
        self._rate_words.setText(f"{self.cache_rate.value()} %")
        found = problems(draft)
        for field in ENGINE_FIELDS:
            self._rows[field].show_problem(found.get(field, ""))
        restyle(self.model, wrong="model" in found)
        restyle(self.api_key, wrong="api_key" in found)
        changed = needs_restart(self._store.now, draft)
        self.apply.setEnabled(changed and not found)
        elsewhere = self._endpoint and not self._endpoint.endswith(f":{draft.port}")
        now = f"The engine that runs now is at {self._endpoint}/v1."
        self._rows["port"].show_note(now if elsewhere else "")
        self.apply.setText(_apply_words(self._view, elsewhere=bool(elsewhere)))
        self.revert.setEnabled(changed)
        self._pending.setText("The engine's settings have changed.")
        self._bar.setVisible(changed)

    def _apply(self) -> None:
        draft = self.draft
        self._focus_changed()
        self._store.update(**{name: getattr(draft, name) for name in ENGINE_FIELDS})
        self.apply_asked.emit()

    def _revert(self) -> None:
        self._focus_changed()
        self._show(self._store.now)

    def _focus_changed(self) -> None:
        """The bar with the button that was pressed goes away: stay at what was changed."""
        now, draft = self._store.now, self.draft
        changed = [name for name in ENGINE_FIELDS if getattr(now, name) != getattr(draft, name)]
        if changed:
            self._rows[changed[0]].editor.setFocus()

    def _choose_folder(self) -> None:
        if chosen := QFileDialog.getExistingDirectory(self, "Model folder", self._start_folder()):
            self.model.setText(chosen)

    def _choose_file(self) -> None:
        chosen, _ = QFileDialog.getOpenFileName(
            self, "GGUF file", self._start_folder(), "GGUF models (*.gguf);;All files (*)"
        )
        if chosen:
            self.model.setText(chosen)

    def _start_folder(self) -> str:
        path = model_path(self.model.text())
        return str(path.parent if path is not None and path.exists() else Path.home())


def _apply_words(view: EngineView, *, elsewhere: bool) -> str:
    """`elsewhere`: what runs now has another port."""
    if view.phase in RUNNING and view.outside:
        return "Apply and start own engine" if elsewhere else "Apply"
    if view.phase in RUNNING:
        return "Apply and restart engine" if view.ours else "Apply"
    return "Apply" if view.phase is Phase.STOPPED else "Apply and start engine"


def _choice(entries: tuple[tuple[str, str], ...]) -> QComboBox:
    made = QComboBox()
    # Else the longest of its words makes it wider than the fields above and below.
    made.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    made.setMinimumContentsLength(12)
    for value, words in entries:
        made.addItem(words, value)
    return made
