"""The look: colours, fonts and the grid. Nothing else in the app names a colour."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache

from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontDatabase,
    QFontInfo,
    QIcon,
    QPainter,
    QPalette,
    QPen,
)
from PySide6.QtWidgets import QApplication

from app.core.settings import ThemeName
from app.ui import icons
from app.ui.stylesheet import stylesheet

GRID = 8
"""Distances are multiples of this many device-independent pixels (or half of it)."""


@dataclass(frozen=True)
class Colours:
    """One scheme. Text on its ground has a contrast of at least 4.5 to 1 (a test computes it)."""

    dark: bool
    ground: str
    rail: str
    surface: str
    raised: str
    border: str
    text: str
    muted: str
    accent: str
    accent_text: str
    """Text on the accent colour."""
    accent_soft: str
    """A tint of the accent as a ground."""
    good: str
    warn: str
    bad: str
    bad_soft: str
    # owners of memory
    weights: str
    experts: str
    kv: str
    snapshots: str
    workspace: str
    other: str
    track: str
    """The unfilled part of bars and rings."""
    code_style: str
    """A pygments style."""


DARK = Colours(
    dark=True,
    ground="#0e1417",
    rail="#0a0f12",
    surface="#151d21",
    raised="#1c262b",
    border="#27343a",
    text="#e7eef0",
    muted="#8fa3ab",
    accent="#3cc4c7",
    accent_text="#04191b",
    accent_soft="#123238",
    good="#4fd18b",
    warn="#f0b54a",
    bad="#ff7b72",
    bad_soft="#3a1d1e",
    weights="#6c9bf5",
    experts="#3cc4c7",
    kv="#f0b54a",
    snapshots="#b98ff2",
    workspace="#7ccf7a",
    other="#7d919b",
    track="#243036",
    code_style="one-dark",
)

LIGHT = Colours(
    dark=False,
    ground="#f3f6f7",
    rail="#e9eef0",
    surface="#ffffff",
    raised="#f6f9fa",
    border="#d8e1e4",
    text="#11212a",
    muted="#566973",
    accent="#08707a",
    accent_text="#ffffff",
    accent_soft="#d0ebed",
    good="#157f4b",
    warn="#96620a",
    bad="#c0362c",
    bad_soft="#fbe7e5",
    weights="#3f74d8",
    experts="#12929c",
    kv="#d08a14",
    snapshots="#8657d0",
    workspace="#469c46",
    other="#8497a1",
    track="#e1e9ec",
    code_style="friendly",
)

_active = DARK


def active() -> Colours:
    """The scheme in use now."""
    return _active


def colour(name: str, alpha: int = 255) -> QColor:
    """A colour of the active scheme by its field's name."""
    value = QColor(getattr(_active, name))
    value.setAlpha(alpha)
    return value


def icon(name: str, colour: str = "text") -> QIcon:
    """An icon in a colour of the active scheme (by its field's name), muted while disabled."""
    return icons.icon(name, getattr(_active, colour), _active.muted)


def tray_icon(dot: str) -> QIcon:
    """The app's icon with a dot in a colour of the dark scheme, on panels of any colour."""
    return icons.dotted_icon(getattr(DARK, dot), DARK.rail)


def apply(app: QApplication, choice: ThemeName) -> None:
    """Take a scheme into use everywhere. Widgets hear of it as a StyleChange event."""
    global _active
    _active = _chosen(app, choice)
    app.setPalette(_palette(_active))
    app.setStyleSheet(
        stylesheet(
            asdict(_active)
            | {
                "mono": mono_family(),
                "down_icon": icons.tinted_file("down", _active.muted),
                "check_icon": icons.tinted_file("check", _active.accent_text),
            }
        )
    )


def install(app: QApplication, choice: ThemeName) -> None:
    """Set style and fonts once, at start."""
    app.setStyle("Fusion")
    app.aboutToQuit.connect(icons.forget)
    font = QFont(app.font())
    if "Inter" in QFontDatabase.families():
        font.setFamily("Inter")
    font.setPixelSize(14)
    font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    app.setFont(font)
    apply(app, choice)


@cache
def mono_family() -> str:
    """The system's fixed-width family, or a better one where it is installed."""
    families = set(QFontDatabase.families())
    for name in ("JetBrains Mono", "Cascadia Mono", "SF Mono", "Menlo", "Noto Sans Mono"):
        if name in families:
            return name
    return QFontInfo(QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont)).family()


def figures(font: QFont, pixels: int, weight: QFont.Weight = QFont.Weight.DemiBold) -> QFont:
    """A font for live numbers: digits of one width, so that they do not jump."""
    font = QFont(font)
    font.setPixelSize(pixels)
    font.setWeight(weight)
    font.setFeature(QFont.Tag("tnum"), 1)
    return font


def paint_focus(painter: QPainter, box: QRect) -> None:
    """The line around a widget that has the keyboard, for those that paint themselves."""
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(QPen(colour("accent"), 1.5))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRoundedRect(QRectF(box).adjusted(1, 1, -1, -1), 5, 5)


def _chosen(app: QApplication, choice: ThemeName) -> Colours:
    if choice == "system":
        dark = app.styleHints().colorScheme() == Qt.ColorScheme.Dark
        return DARK if dark else LIGHT
    return DARK if choice == "dark" else LIGHT


def _palette(colours: Colours) -> QPalette:
    """For what the style sheet does not reach: native dialogs, menus, selections, tooltips."""
    palette = QPalette()
    role = QPalette.ColorRole
    for where, name in {
        role.Window: colours.ground,
        role.WindowText: colours.text,
        role.Base: colours.surface,
        role.AlternateBase: colours.raised,
        role.Text: colours.text,
        role.Button: colours.raised,
        role.ButtonText: colours.text,
        role.ToolTipBase: colours.raised,
        role.ToolTipText: colours.text,
        role.PlaceholderText: colours.muted,
        role.Highlight: colours.accent,
        role.HighlightedText: colours.accent_text,
        role.Link: colours.accent,
        role.LinkVisited: colours.accent,
    }.items():
        palette.setColor(where, QColor(name))
    for where in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, where, QColor(colours.muted))
    return palette
