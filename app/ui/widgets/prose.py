"""Text of an answer that is as high as its content."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import QSize, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QResizeEvent, QTextOption
from PySide6.QtWidgets import QFrame, QSizePolicy, QTextBrowser

from app.core.markdown import is_safe_link
from app.ui import theme


class ProseView(QTextBrowser):
    """Shows HTML that app/core/markdown.py made. Loads nothing; opens only web and mail links."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._shown: tuple[str, theme.Colours] | None = None
        self.setObjectName("prose")
        self.setAccessibleName(name)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(0)
        self.document().setIndentWidth(26)
        self.anchorClicked.connect(self._open)

    def show_html(self, body: str) -> None:
        if (body, theme.active()) == self._shown:
            return
        self._shown = body, theme.active()
        colours = theme.active()
        self.document().setDefaultStyleSheet(
            f"a {{ color: {colours.accent}; }}"
            f"h1 {{ font-size: 20px; }} h2 {{ font-size: 18px; }} h3 {{ font-size: 16px; }}"
            f"code, pre {{ font-family: '{theme.mono_family()}'; font-size: 13px; }}"
            f"p, li {{ line-height: 150%; }}"
            f"td, th {{ border: 1px solid {colours.border}; padding: 4px 10px; }}"
        )
        self.setHtml(body)
        self._fit()

    def loadResource(self, kind: int, name: QUrl | str) -> Any:  # noqa: ARG002
        return None

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def minimumSizeHint(self) -> QSize:
        return QSize(80, 20)

    def _fit(self) -> None:
        self.document().setTextWidth(self.viewport().width())
        height = int(self.document().size().height()) + 1
        if height != self.height():
            self.setFixedHeight(height)

    def _open(self, url: QUrl) -> None:
        if is_safe_link(url.toString()):
            QDesktopServices.openUrl(url)
