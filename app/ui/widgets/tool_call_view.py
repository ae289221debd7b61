"""A tool that the model wants called: its name and arguments."""

from __future__ import annotations

import msgspec
from PySide6.QtWidgets import QFrame

from app.core.conversation import ToolCall
from app.core.markdown import Code
from app.ui.widgets.basics import column, label
from app.ui.widgets.code_block import CodeBlock

_NOT_RUN = "Not run: this chat has no tools of its own."


class ToolCallView(QFrame):
    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("toolCall")
        self._name = label("", wrap=True)
        self._arguments = CodeBlock()
        body = column(6)
        body.setContentsMargins(14, 10, 14, 10)
        body.addWidget(self._name)
        body.addWidget(self._arguments)
        body.addWidget(label(_NOT_RUN, "hint", wrap=True))
        self.setLayout(body)

    def show_call(self, call: ToolCall, *, whole: bool) -> None:
        """`whole`: nothing more of it comes; its arguments are set out then."""
        self._name.setText(f"Wants to call {call.name or 'a tool'}")
        self.setAccessibleName(self._name.text())
        text = _set_out(call.arguments) if whole else call.arguments
        self._arguments.setVisible(bool(text.strip()))
        if text != self._arguments.text:
            self._arguments.show_code(Code(text, "json"))

    def tint(self) -> None:
        self._arguments.tint()


def _set_out(arguments: str) -> str:
    try:
        return msgspec.json.format(arguments.encode(), indent=2).decode()
    except msgspec.DecodeError:
        return arguments
