"""The list of kept conversations: by date, searched, renamed in place, deleted with a way back."""

from __future__ import annotations

from datetime import date

from PySide6.QtCore import (
    QAbstractListModel,
    QEvent,
    QItemSelectionModel,
    QModelIndex,
    QPersistentModelIndex,
    QPoint,
    Qt,
    QTimer,
    Signal,
)
from PySide6.QtGui import QContextMenuEvent, QKeyEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QListView, QMenu, QWidget

from app.core.chats.dates import heading
from app.core.chats.records import Entry
from app.ui import theme
from app.ui.widgets.basics import button, column, label, row
from app.ui.widgets.conversation_delegate import ConversationDelegate

SEARCH_MS = 150
"""After the last key; a search reads every text there is."""
UNDO_MS = 8_000
_Index = QModelIndex | QPersistentModelIndex


class _Conversations(QAbstractListModel):
    """Headings and conversations in one list. Headings cannot be chosen."""

    renamed = Signal(str, str)

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str | Entry] = []

    def show_entries(self, entries: list[Entry], today: date) -> None:
        lines: list[str | Entry] = []
        above = ""
        for entry in entries:
            name = heading(entry.updated, today)
            if name != above:
                lines.append(name)
                above = name
            lines.append(entry)
        if lines != self._lines:
            self.beginResetModel()
            self._lines = lines
            self.endResetModel()

    def entry(self, index: _Index) -> Entry | None:
        line = self._lines[index.row()] if index.isValid() else None
        return line if isinstance(line, Entry) else None

    def index_of(self, id_: str) -> QModelIndex:
        for at, line in enumerate(self._lines):
            if isinstance(line, Entry) and line.id == id_:
                return self.index(at)
        return QModelIndex()

    def rowCount(self, parent: _Index | None = None) -> int:  # noqa: ARG002
        return len(self._lines)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        roles = Qt.ItemDataRole
        if role not in (roles.DisplayRole, roles.EditRole, roles.ToolTipRole):
            return None
        line = self._lines[index.row()]
        if role == roles.ToolTipRole and isinstance(line, str):
            return None
        return line.title if isinstance(line, Entry) else line

    def flags(self, index: _Index) -> Qt.ItemFlag:
        if self.entry(index) is None:
            return Qt.ItemFlag.NoItemFlags
        flags = Qt.ItemFlag
        return flags.ItemIsEnabled | flags.ItemIsSelectable | flags.ItemIsEditable

    def setData(self, index: _Index, value: object, role: int = Qt.ItemDataRole.EditRole) -> bool:
        entry, title = self.entry(index), " ".join(str(value).split())
        if entry is None or role != Qt.ItemDataRole.EditRole or not title:
            return False
        self._lines[index.row()] = Entry(entry.id, title, entry.updated)
        self.dataChanged.emit(index, index)
        self.renamed.emit(entry.id, title)
        return True


class _View(QListView):
    delete_asked = Signal(object)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        index = self.currentIndex()
        if event.key() == Qt.Key.Key_Delete and index.isValid():
            self.delete_asked.emit(index)
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and index.isValid():
            self.activated.emit(index)
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        index = self.indexAt(event.pos()) if event.reason() is not _KEYBOARD else QModelIndex()
        index = index if index.isValid() else self.currentIndex()
        if index.flags() & Qt.ItemFlag.ItemIsSelectable:
            self.setCurrentIndex(index)
            where = self.visualRect(index).bottomLeft() + QPoint(12, 0)
            self._menu(index).popup(self.viewport().mapToGlobal(where))

    def _menu(self, index: QModelIndex) -> QMenu:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("Rename", lambda: self.edit(index)).setShortcut("F2")
        menu.addAction("Delete", lambda: self.delete_asked.emit(index)).setShortcut("Del")
        return menu


_KEYBOARD = QContextMenuEvent.Reason.Keyboard


class ConversationList(QFrame):
    searched = Signal(str)
    opened = Signal(str)
    renamed = Signal(str, str)
    deleted = Signal(str)
    restored = Signal(str)
    erased = Signal(str)
    """The time to take a deletion back is over."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("conversations")
        self._current = ""
        self._gone = ""
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search conversations")
        self.search.setAccessibleName("Search conversations")
        self.search.setToolTip("Search titles and texts (Ctrl+F)")
        self.search.setClearButtonEnabled(True)
        self._glass = self.search.addAction(
            theme.icon("search", "muted"), QLineEdit.ActionPosition.LeadingPosition
        )
        self._soon = QTimer(self)
        self._soon.setSingleShot(True)
        self._soon.setInterval(SEARCH_MS)
        self._soon.timeout.connect(lambda: self.searched.emit(self.search.text()))
        self.search.textChanged.connect(lambda _: self._soon.start())
        self.model = _Conversations()
        self.model.renamed.connect(self.renamed)
        self.view = self._make_view()
        self._nothing = label("", "muted", wrap=True)
        self._nothing.setAlignment(Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop)
        self.kept = label("", "hint", wrap=True)
        self.kept.hide()
        body = column(10)
        body.setContentsMargins(12, 12, 12, 12)
        body.addWidget(self.search)
        body.addWidget(self._nothing, 1)
        body.addWidget(self.view, 1)
        body.addWidget(self._make_undo())
        body.addWidget(self.kept)
        self.setLayout(body)
        self.show_entries([])

    def show_entries(self, entries: list[Entry]) -> None:
        self.model.show_entries(entries, date.today())  # noqa: DTZ011  (the person's own day)
        self.view.setVisible(bool(entries))
        self._nothing.setVisible(not entries)
        found = self.search.text().strip()
        self._nothing.setText("Nothing found." if found else "Conversations you have appear here.")
        self.show_current(self._current)

    def show_current(self, id_: str) -> None:
        """Mark the conversation that is open."""
        self._current = id_
        index = self.model.index_of(id_)
        selection = self.view.selectionModel()
        if index.isValid():
            selection.setCurrentIndex(index, QItemSelectionModel.SelectionFlag.ClearAndSelect)
        else:
            selection.clear()

    def show_kept(self, sentence: str) -> None:
        """Why conversations are not being kept; empty where they are."""
        self.kept.setText(sentence)
        self.kept.setVisible(bool(sentence))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.StyleChange and hasattr(self, "_glass"):
            self._glass.setIcon(theme.icon("search", "muted"))

    def _make_view(self) -> _View:
        view = _View()
        view.setObjectName("conversationView")
        view.setAccessibleName("Conversations")
        view.setModel(self.model)
        view.setItemDelegate(ConversationDelegate(view))
        view.setUniformItemSizes(True)
        view.setFrameShape(QFrame.Shape.NoFrame)
        view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        view.setEditTriggers(QListView.EditTrigger.EditKeyPressed)
        view.setMouseTracking(True)
        view.clicked.connect(self._open)
        view.activated.connect(self._open)
        view.delete_asked.connect(self._delete)
        return view

    def _make_undo(self) -> QWidget:
        self._told = label("Conversation deleted", "hint")
        self.undo = button("Undo")
        self.undo.clicked.connect(self._restore)
        self._over = QTimer(self)
        self._over.setSingleShot(True)
        self._over.setInterval(UNDO_MS)
        self._over.timeout.connect(self._forget)
        line = row()
        line.setContentsMargins(10, 6, 6, 6)
        line.addWidget(self._told, 1)
        line.addWidget(self.undo)
        self._bar = QFrame()
        self._bar.setObjectName("undoBar")
        self._bar.setLayout(line)
        self._bar.hide()
        return self._bar

    def _open(self, index: QModelIndex) -> None:
        if (entry := self.model.entry(index)) is not None:
            self.opened.emit(entry.id)

    def _delete(self, index: QModelIndex) -> None:
        entry = self.model.entry(index)
        if entry is None:
            return
        self._forget()
        self._gone = entry.id
        self._told.setToolTip(entry.title)
        self._bar.show()
        self._over.start()
        self.deleted.emit(entry.id)

    def _restore(self) -> None:
        gone, self._gone = self._gone, ""
        self._forget()
        if gone:
            self.restored.emit(gone)

    def _forget(self) -> None:
        self._over.stop()
        self._bar.hide()
        if self._gone:
            self.erased.emit(self._gone)
            self._gone = ""
