"""Conversations on disk: what is written stays, and damage to one is not damage to others."""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.core.attachments import Attachment
from app.core.chats import schema
from app.core.chats.dates import heading
from app.core.chats.errors import BrokenConversation, NewerStore, StoreError
from app.core.chats.records import Snapshot
from app.core.chats.store import ConversationStore
from app.core.conversation import ChatSettings, Conversation, MessageState, ToolCall

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    made = ConversationStore(path)
    made.open()
    yield made
    made.close()


def talk(question: str, answer: str = "Yes.") -> Conversation:
    chat = Conversation()
    chat.ask(question)
    chat.append(answer, reasoning="Hm.")
    chat.finish("1 token")
    return chat


def keep(store: ConversationStore, *chats: Conversation) -> None:
    store.save([Snapshot.of(chat, chat.all.values()) for chat in chats])


def titles(store: ConversationStore, wanted: str = "") -> list[str]:
    return [entry.title for entry in store.entries(wanted)]


def reopened(path: Path) -> ConversationStore:
    made = ConversationStore(path)
    made.open()
    return made


def test_everything_of_a_conversation_comes_back(store: ConversationStore, path: Path) -> None:
    chat = talk("first")
    chat.settings = ChatSettings(system="Be brief.", temperature=0.5, effort="low")
    chat.ask("look", [Attachment("a.txt", "text ü")])
    assert chat.answer is not None
    chat.append_call(0, "find", '{"a":')
    chat.append_call(0, "", "1}")
    chat.fail("broke")
    chat.retry()
    chat.append("better")
    chat.finish(cut=True)
    keep(store, chat)
    store.close()
    with closing(reopened(path)) as again:
        back = again.load(chat.id)
    assert back.all == chat.all and back.messages == chat.messages
    assert (back.title, back.settings) == ("first", chat.settings)
    assert back.versions(back.messages[-1])[0].calls == [ToolCall("find", '{"a":1}')]


def test_the_list_is_searched_renamed_and_deleted_with_a_way_back(
    store: ConversationStore, path: Path
) -> None:
    one, two = talk("About rivers"), talk("About mills", "ÜBER alles")
    two.updated = one.updated + 1
    keep(store, one, two)
    assert titles(store) == ["About mills", "About rivers"]
    assert titles(store, "über") == ["About mills"] and titles(store, "100 %_") == []
    store.rename(one.id, "Streams")
    assert titles(store, "streams") == ["Streams"]
    store.delete(one.id)
    assert titles(store) == ["About mills"]
    store.restore(one.id)
    assert titles(store)[-1] == "Streams"
    store.delete(one.id)
    store.close()
    with closing(reopened(path)) as again:
        again.restore(one.id)  # too late
        assert titles(again) == ["About mills"]
    assert b"rivers" not in path.read_bytes()


def test_only_the_user_reads_the_file(store: ConversationStore, path: Path) -> None:
    if os.name == "posix":
        assert path.stat().st_mode & 0o077 == 0


def test_a_kill_in_the_midst_of_an_answer_keeps_what_came(path: Path) -> None:
    """Case c89: the process is killed as the system kills it."""
    program = f"""
import os, signal
from pathlib import Path
from app.core.chats.records import Snapshot
from app.core.chats.store import ConversationStore
from app.core.conversation import Conversation
store = ConversationStore(Path({str(path)!r}))
store.open()
chat = Conversation()
answer = chat.ask("Why?")
store.save([Snapshot.of(chat, chat.messages)])
for word in ("Because", " it", " is"):
    chat.append(word)
    store.save([Snapshot.of(chat, [answer])])
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    with closing(reopened(path)) as store:
        (entry,) = store.entries()
        question, answer = store.load(entry.id).messages
    assert question.text == "Why?"
    assert (answer.text, answer.state) == ("Because it is", MessageState.STOPPED)
    assert "Cut off" in answer.note and answer.continuable


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE message SET rest = '{' WHERE conversation = ?",
        "UPDATE message SET text = x'ff' WHERE conversation = ?",
        "UPDATE message SET rest = '[]' WHERE conversation = ?",
        "UPDATE message SET parent = 9 WHERE conversation = ?",
        "UPDATE conversation SET settings = '[]' WHERE id = ?",
        "UPDATE conversation SET title = x'ff' WHERE id = ?",
    ],
)
def test_one_broken_conversation_is_set_aside(
    store: ConversationStore, path: Path, damage: str
) -> None:
    good, bad = talk("good"), talk("bad")
    keep(store, good, bad)
    with closing(sqlite3.connect(path)) as outside, outside:
        outside.execute(damage, (bad.id,))
    with pytest.raises(BrokenConversation):
        store.load(bad.id)
    assert titles(store) == ["good"] and store.broken() == 1
    assert store.load(good.id).messages == good.messages
    with closing(sqlite3.connect(path)) as outside:
        kept = outside.execute("SELECT count(*) FROM message WHERE conversation = ?", (bad.id,))
        assert kept.fetchone() == (2,)


@pytest.mark.parametrize("content", [b"[]", b"not a database at all" * 400])
def test_a_file_that_is_no_database_is_set_aside(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = ConversationStore(path)
    assert "could be read" in store.open()
    keep(store, talk("new"))
    assert titles(store) == ["new"]
    store.close()
    (aside,) = path.parent.glob("chats.db.damaged-*[0-9]")
    assert aside.read_bytes() == content


def test_an_empty_file_is_an_empty_database(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    store = ConversationStore(path)
    assert store.open() == "" and store.entries() == []
    store.close()


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_file_that_was_cut_gives_back_what_it_has(
    store: ConversationStore, path: Path, share: float
) -> None:
    keep(store, *(talk(f"number {at}", "word " * 2_000) for at in range(20)))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share) // 4096 * 4096])
    cut = path.read_bytes()
    again = ConversationStore(path)
    said = again.open()
    found = titles(again)
    assert 0 < len(found) < 20 and f"{len(found)} conversations could be read" in said
    for entry in again.entries():
        assert again.load(entry.id).messages[1].text == "word " * 2_000
    again.close()
    (aside,) = path.parent.glob("chats.db.damaged-*[0-9]")
    assert aside.read_bytes() == cut


def test_what_a_newer_version_wrote_is_left_untouched(store: ConversationStore, path: Path) -> None:
    keep(store, talk("kept"))
    store.close()
    with closing(sqlite3.connect(path)) as newer, newer:
        newer.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    before = path.read_bytes()
    again = ConversationStore(path)
    with pytest.raises(NewerStore, match="newer Headrace"):
        again.open()
    assert path.read_bytes() == before and not again.is_open
    assert list(path.parent.glob("*damaged*")) == []


def test_a_full_disk_is_told_and_damages_nothing(path: Path) -> None:
    store = ConversationStore(path, most_pages=12)
    store.open()
    keep(store, talk("small"))
    with pytest.raises(StoreError, match="the disk is full"):
        keep(store, talk("large", "x" * 100_000))
    assert titles(store) == ["small"]
    store.close()
    with closing(reopened(path)) as again:
        assert titles(again) == ["small"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="not being kept"):
        ConversationStore(tmp_path / "file" / "chats.db").open()
    (tmp_path / "chats.db").mkdir()
    with pytest.raises(StoreError, match="not being kept"):
        ConversationStore(tmp_path / "chats.db").open()


def test_a_migration_is_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        schema.migrate(connection)
        steps = (*schema._MIGRATIONS, "ALTER TABLE message ADD extra TEXT; SELECT * FROM nothing;")
        monkeypatch.setattr(schema, "_MIGRATIONS", steps)
        monkeypatch.setattr(schema, "VERSION", 2)
        with pytest.raises(sqlite3.OperationalError):
            schema.migrate(connection)
        assert schema.version_of(connection) == 1
        columns = [row[1] for row in connection.execute("PRAGMA table_info(message)")]
        assert "extra" not in columns


@pytest.mark.parametrize(
    ("day", "wanted"),
    [
        ("2026-03-10", "Today"),
        ("2026-03-11", "Today"),
        ("2026-03-09", "Yesterday"),
        ("2026-03-04", "Last 7 days"),
        ("2026-02-20", "Last 30 days"),
        ("2026-01-20", "January"),
        ("2025-01-20", "January 2025"),
    ],
)
def test_headings(day: str, wanted: str) -> None:
    noon = datetime.fromisoformat(f"{day}T12:00").astimezone()
    assert heading(noon.timestamp(), datetime(2026, 3, 10, tzinfo=UTC).date()) == wanted
