"""Versions of turns, what is sent of them, and files that go along."""

from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from app.core.attachments import (
    MOST_BYTES,
    Attachment,
    AttachmentError,
    as_turn,
    read_attachment,
)
from app.core.conversation import ChatSettings, Conversation, title_of


def said(chat: Conversation) -> list[str]:
    return [message.text for message in chat.messages]


def turn(chat: Conversation, question: str, answer: str) -> None:
    chat.ask(question)
    chat.append(answer)
    chat.finish()


def test_an_answer_that_is_written_again_stands_beside_the_first() -> None:
    chat = Conversation()
    turn(chat, "q", "one")
    chat.retry()
    chat.append("two")
    chat.finish()
    turn(chat, "more", "three")
    first, second = chat.versions(chat.messages[1])
    assert (first.text, second.text) == ("one", "two")
    chat.choose(first)
    assert said(chat) == ["q", "one"]
    chat.choose(second)
    assert said(chat) == ["q", "two", "more", "three"]


def test_a_turn_that_is_edited_keeps_what_followed_the_first() -> None:
    chat = Conversation()
    turn(chat, "q", "a")
    turn(chat, "q2", "a2")
    chat.edit(chat.messages[0], "other")
    chat.append("b")
    chat.finish()
    assert said(chat) == ["other", "b"] and chat.title == "q"
    assert [m["content"] for m in chat.for_request()] == ["other", "b"]
    chat.choose(chat.versions(chat.messages[0])[0])
    assert said(chat) == ["q", "a", "q2", "a2"]


def test_nothing_is_kept_of_an_answer_that_never_began() -> None:
    chat = Conversation()
    chat.ask("q")
    chat.fail("no engine")
    chat.retry()
    assert len(chat.versions(chat.messages[-1])) == 1


def test_an_answer_goes_on_where_it_ended() -> None:
    chat = Conversation()
    turn(chat, "q", "whole")
    with pytest.raises(ValueError, match="no answer to go on with"):
        chat.go_on()
    chat.ask("q2")
    chat.append("half")
    chat.stop()
    chat.go_on()
    assert chat.for_request()[-1] == {"role": "assistant", "content": "half"}
    chat.append(" done")
    chat.finish()
    assert said(chat)[-1] == "half done" and not chat.messages[-1].continuable


def test_the_system_prompt_goes_first() -> None:
    chat = Conversation()
    chat.settings = ChatSettings(system=" Be brief. ")
    chat.ask("q")
    assert chat.for_request()[0] == {"role": "system", "content": "Be brief."}


def test_titles() -> None:
    chat = Conversation()
    chat.ask("  a\n b  " + "word " * 40)
    assert chat.title.startswith("a b word") and chat.title.endswith("word…")
    assert len(chat.title) <= 61
    chat = Conversation()
    chat.ask("", [Attachment("a.txt", "x"), Attachment("b.txt", "y")])
    assert title_of(chat.messages[0]) == "a.txt, b.txt"


@pytest.mark.parametrize("text", ["plain\n", "a ``` b", "```py\nx\n```\n", "````\n`", ""])
def test_a_file_is_one_fence_whatever_is_in_it(text: str) -> None:
    sent = as_turn("Sum it up.", [Attachment("my\nfile.txt", text)])
    assert sent.startswith("File: my file.txt\n`") and sent.endswith("\n\nSum it up.")
    tokens = MarkdownIt("commonmark").parse(sent)
    (fence,) = [token for token in tokens if token.type == "fence"]
    assert fence.content.removesuffix("\n") == text.removesuffix("\n")


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ("ü\r\nb\r".encode(), "ü\nb\n"),
        ("ü".encode("utf-8-sig"), "ü"),
        ("ü".encode("utf-16"), "ü"),
        (b"", ""),
        (b"x" * MOST_BYTES, "x" * MOST_BYTES),
    ],
)
def test_text_files_are_read(tmp_path: Path, raw: bytes, wanted: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(raw)
    assert read_attachment(path) == Attachment("a.txt", wanted)


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\xff\x00\x01", "not a text file"),
        (b"a\x00b", "not a text file"),
        (b"x" * (MOST_BYTES + 1), "1.00 MiB is the most"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(raw)
    with pytest.raises(AttachmentError, match=why):
        read_attachment(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(AttachmentError, match="is no file"):
            read_attachment(path)
