"""Every widget paints, in both schemes, and has words for those who cannot see it."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import QSize
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLineEdit,
    QScrollBar,
    QTextEdit,
    QWidget,
)
from pytestqt.qtbot import QtBot

from app.core.supervisor import Phase
from app.ui import icons, theme
from app.ui.application import Headrace
from app.ui.widgets.figure import Figure
from app.ui.widgets.gauge import Gauge
from app.ui.widgets.legend import Legend
from app.ui.widgets.memory_panel import MemoryPanel
from app.ui.widgets.sparkline import Sparkline
from app.ui.widgets.stacked_bar import Part, StackedBar
from app.ui.widgets.state_pill import WORDS, StatePill

PARTS = [Part("Weights", "weights", 2 << 30), Part("Experts", "experts", 1 << 30)]


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, qapp: QApplication) -> theme.Colours:
    theme.install(qapp, request.param)
    return theme.active()


def painted(widget: QWidget, size: QSize | None = None) -> QImage:
    widget.resize(size or QSize(240, 100))
    return widget.grab().toImage()


def has(image: QImage, colour: str) -> bool:
    wanted = QColor(colour).rgb()
    return any(
        image.pixel(x, y) == wanted for y in range(image.height()) for x in range(image.width())
    )


def test_sparkline(qtbot: QtBot, scheme: theme.Colours) -> None:
    line = Sparkline("Speed", lambda value: f"{value:.0f} tok/s")
    qtbot.addWidget(line)
    assert not has(painted(line), scheme.accent)
    assert line.accessibleDescription() == "no samples yet"
    line.show_values((1, 5, 3), 60)
    assert line.accessibleDescription() == "now 3 tok/s, highest 5 tok/s"
    assert has(painted(line), scheme.accent)
    line.show_values((0.0,) * 60, 60)
    painted(line)


def test_stacked_bar(qtbot: QtBot, scheme: theme.Colours) -> None:
    bar = StackedBar("VRAM by owner")
    qtbot.addWidget(bar)
    assert bar.accessibleDescription() == "nothing in use"
    bar.show_parts(PARTS, 4 << 30)
    assert bar.accessibleDescription() == "Weights 2.00 GiB, Experts 1.00 GiB, of 4.00 GiB"
    image = painted(bar, QSize(400, 18))
    row = [QColor(image.pixel(x, 9)).name() for x in (100, 250, 350)]
    assert row == [scheme.weights, scheme.experts, scheme.track]
    bar.show_parts(PARTS, 1 << 30)  # a total that is too small never paints beyond the edge
    assert "of 3.00 GiB" in bar.accessibleDescription()


def test_gauge(qtbot: QtBot, scheme: theme.Colours) -> None:
    gauge = Gauge("Expert slots in use", "slots")
    qtbot.addWidget(gauge)
    assert not has(painted(gauge, gauge.sizeHint()), scheme.experts)
    gauge.show_share(0.5, "5 / 10")
    assert gauge.accessibleDescription() == "50.0 % 5 / 10"
    assert has(painted(gauge, gauge.sizeHint()), scheme.experts)


def test_legend_and_panel(qtbot: QtBot, scheme: theme.Colours) -> None:
    legend = Legend("Colours")
    qtbot.addWidget(legend)
    legend.show_parts(PARTS)
    assert legend.accessibleDescription() == "Weights 2.00 GiB, Experts 1.00 GiB"
    assert has(painted(legend, QSize(500, 30)), scheme.weights)
    panel = MemoryPanel("VRAM")
    qtbot.addWidget(panel)
    panel.show_owners([], 0, "Not in use.")
    assert panel.bar.isHidden()


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_has_a_pill_and_an_icon(qtbot: QtBot, phase: Phase) -> None:
    pill = StatePill()
    qtbot.addWidget(pill)
    pill.show_phase(phase)
    words, colour = WORDS[phase]
    assert pill.accessibleDescription() == words
    assert pill.sizeHint().width() > 40
    painted(pill, pill.sizeHint())
    assert not theme.tray_icon(colour).isNull()


def test_figure(qtbot: QtBot, scheme: theme.Colours) -> None:
    figure = Figure("Tokens a second", "tok/s")
    qtbot.addWidget(figure)
    assert figure.accessibleDescription() == "–"
    figure.show_value("42.1")
    assert figure.accessibleDescription() == "42.1 tok/s"
    painted(figure, figure.sizeHint())


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    value = QColor(colour)
    channels = [value.redF(), value.greenF(), value.blueF()]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("colours", [theme.DARK, theme.LIGHT], ids=["dark", "light"])
def test_text_is_readable(colours: theme.Colours) -> None:
    for ground in (colours.ground, colours.rail, colours.surface, colours.raised):
        for text in (colours.text, colours.muted, colours.accent, colours.bad):
            assert contrast(text, ground) >= 4.5, (text, ground)
    assert contrast(colours.text, colours.accent_soft) >= 4.5
    assert contrast(colours.accent_text, colours.accent) >= 4.5
    assert contrast(colours.text, colours.bad_soft) >= 4.5
    for owner in ("weights", "experts", "kv", "snapshots", "workspace", "other"):
        assert contrast(getattr(colours, owner), colours.track) >= 2


INTERACTIVE = (
    QAbstractButton,
    QLineEdit,
    QTextEdit,
    QComboBox,
    QAbstractSpinBox,
    QAbstractSlider,
)


def test_every_control_has_a_name(open_app: Callable[..., Headrace]) -> None:
    window = open_app().window
    nameless = []
    for widget in window.findChildren(QWidget):
        inside = isinstance(widget.parent(), QAbstractSpinBox | QComboBox | QLineEdit)
        if not isinstance(widget, INTERACTIVE) or isinstance(widget, QScrollBar) or inside:
            continue
        text = widget.text() if isinstance(widget, QAbstractButton) else ""
        if not widget.accessibleName() and not text:
            nameless.append(widget)
    assert nameless == []


def test_icons_exist_and_are_tinted(qapp: QApplication) -> None:
    names = [path.stem for path in (icons.paths.resources() / "icons").glob("*.svg")]
    assert len(names) > 10
    for name in names:
        assert has(theme.icon(name, "accent").pixmap(60, 60).toImage(), theme.active().accent) or (
            name == "headrace"
        ), name
