"""The error of a download: a fault with a sentence for the person."""

from __future__ import annotations

from app.core.downloads.records import Fault, RemoteFile
from engine.errors import HeadraceError


class DownloadError(HeadraceError):
    """`code` is one of those that `records.Fault` lists."""

    def __init__(
        self, code: str, message: str, *, hint: str = "", choices: tuple[RemoteFile, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.choices = choices

    @property
    def fault(self) -> Fault:
        return Fault(code=self.code, message=self.message, hint=self.hint, choices=self.choices)
