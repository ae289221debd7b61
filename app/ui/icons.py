"""The app's icons: SVG files of one colour, tinted and drawn at the size and density wanted."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

from PySide6.QtCore import QByteArray, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from engine import paths

_DRAWN_IN = "#000000"
_SIZES = (16, 20, 24, 32, 48, 64, 128, 256)


@lru_cache(maxsize=256)
def icon(name: str, colour: str, disabled: str) -> QIcon:
    """An icon in two colours (`#rrggbb`): of use, and while its widget is disabled."""
    result = QIcon()
    for mode, tint in ((QIcon.Mode.Normal, colour), (QIcon.Mode.Disabled, disabled)):
        for pixels in (20, 40, 60):
            result.addPixmap(_drawn(_tinted(name, tint), pixels), mode)
    return result


@lru_cache(maxsize=1)
def app_icon() -> QIcon:
    result = QIcon()
    for pixels in _SIZES:
        result.addPixmap(_drawn(_source("headrace"), pixels))
    return result


def dotted_icon(dot: str, rim_colour: str) -> QIcon:
    """The app's icon with a dot at its corner; both colours as `#rrggbb`."""
    result = QIcon()
    for pixels in (16, 22, 24, 32, 44, 48, 64):
        pixmap = _drawn(_source("headrace"), pixels)
        painter = QPainter(pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        side = pixels * 0.42
        rim = pixels * 0.06
        box = QRectF(pixels - side, pixels - side, side, side)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(rim_colour))
        painter.drawEllipse(box)
        painter.setBrush(QColor(dot))
        painter.drawEllipse(box.adjusted(rim, rim, -rim, -rim))
        painter.end()
        result.addPixmap(pixmap)
    return result


def forget() -> None:
    """Let go of what was drawn, while there still is an application that it belongs to."""
    icon.cache_clear()
    app_icon.cache_clear()


@lru_cache(maxsize=64)
def tinted_file(name: str, colour: str) -> str:
    """Path of a tinted copy, for style sheets, which only take files."""
    folder = Path(_scratch_folder().name)
    path = folder / f"{name}-{colour.removeprefix('#')}.svg"
    path.write_bytes(_tinted(name, colour))
    return path.as_posix()


@lru_cache(maxsize=1)
def _scratch_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="headrace-icons-")


@lru_cache(maxsize=64)
def _source(name: str) -> bytes:
    return (paths.resources() / "icons" / f"{name}.svg").read_bytes()


def _tinted(name: str, colour: str) -> bytes:
    return _source(name).replace(_DRAWN_IN.encode(), colour.encode())


def _drawn(svg: bytes, pixels: int) -> QPixmap:
    pixmap = QPixmap(QSize(pixels, pixels))
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    QSvgRenderer(QByteArray(svg)).render(painter)
    painter.end()
    return pixmap
