"""Setting up and undoing: every byte comes back."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.agents import catalog, config_file, jsonc, set_up
from app.core.agents.agent import Agent, AgentError, ConfigEdit, Endpoint
from tests.properties import examples

PLAIN = Endpoint("http://127.0.0.1:11711", "demo", context_tokens=4096)
KEYED = Endpoint("http://127.0.0.1:11711", "demo", key='se"cret')
BY_NAME = {agent.name: agent for agent in catalog.AGENTS}
every_agent = pytest.mark.parametrize("agent", catalog.AGENTS, ids=list(BY_NAME))
posix = pytest.mark.skipif(os.name == "nt", reason="modes and links are POSIX's")

JSON = '{\n  // mine\n  "theme": "dark", "env": {"A": "b"},\r\n  "provider": {"x": {}}\n}'
TOML = '# mine\r\nmodel = "gpt"\n\n[tools]\nweb = true # yes'


def set_up_agent(agent: Agent, endpoint: Endpoint = PLAIN) -> None:
    planned = set_up.changes(agent.name, agent.edits(endpoint), endpoint)
    set_up.apply(agent.name, planned, endpoint)


def files_below(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def write_mine(agent: Agent) -> list[Path]:
    written = [edit.path for edit in agent.edits(PLAIN)]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((TOML if path.suffix == ".toml" else JSON).encode())
    return written


@every_agent
@pytest.mark.parametrize("endpoint", [PLAIN, KEYED], ids=["plain", "keyed"])
def test_what_was_there_comes_back(agent: Agent, endpoint: Endpoint, person: Path) -> None:
    write_mine(agent)
    before = files_below(person)
    set_up_agent(agent, endpoint)
    assert files_below(person) != before and set_up.state(agent.name) == "yes"
    set_up.undo(agent.name)
    assert files_below(person) == before and set_up.state(agent.name) == "no"
    with pytest.raises(AgentError, match="not set up"):
        set_up.undo(agent.name)


@every_agent
def test_where_nothing_was_nothing_is_left(agent: Agent, person: Path) -> None:
    set_up_agent(agent)
    assert files_below(person)
    set_up.undo(agent.name)
    assert files_below(person) == {}


@every_agent
def test_a_new_server_is_written_over_the_old_one(agent: Agent, person: Path) -> None:
    write_mine(agent)
    before = files_below(person)
    set_up_agent(agent, KEYED)
    other = Endpoint("http://127.0.0.1:9", "other")
    set_up_agent(agent, other)
    text = "".join(edit.path.read_text() for edit in agent.edits(other))
    assert "other" in text and "11711" not in text and "cret" not in text
    set_up.undo(agent.name)
    assert files_below(person) == before


@every_agent
def test_a_changed_file_is_not_overwritten(agent: Agent, person: Path, home: Path) -> None:
    (mine, *_) = write_mine(agent)
    before = files_below(person)
    set_up_agent(agent)
    changed = mine.read_bytes() + b"\n"
    mine.write_bytes(changed)
    assert set_up.state(agent.name) == "changed"
    for step in (lambda: set_up.undo(agent.name), lambda: set_up_agent(agent)):
        with pytest.raises(AgentError, match="changed since") as refused:
            step()
        assert str(mine) in refused.value.message and "--force" in refused.value.hint
    assert mine.read_bytes() == changed
    set_up.undo(agent.name, force=True)
    assert files_below(person) == before
    assert changed in files_below(home / "agents").values()


@every_agent
def test_a_file_put_back_by_hand_needs_no_force(agent: Agent, person: Path) -> None:
    set_up_agent(agent)
    for edit in agent.edits(PLAIN):
        edit.path.unlink()
    assert set_up.state(agent.name) == "yes"
    set_up.undo(agent.name)
    assert files_below(person) == {}


@posix
@every_agent
def test_nobody_else_reads_a_key(agent: Agent, person: Path, home: Path) -> None:
    mine = write_mine(agent)
    for path in mine:
        path.chmod(0o644)
    set_up_agent(agent, KEYED)
    for folder in (person, home):
        for path in folder.rglob("*"):
            if path.is_file() and "cret" in path.read_text():
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert any("cret" in path.read_text() for path in mine)
    planned = set_up.changes(agent.name, agent.edits(KEYED), KEYED)
    assert "cret" not in "".join(change.diff(KEYED) for change in planned)
    set_up.undo(agent.name)
    assert {stat.S_IMODE(path.stat().st_mode) for path in mine} == {0o644}
    set_up_agent(agent, PLAIN)
    assert {stat.S_IMODE(path.stat().st_mode) for path in mine} == {0o644}


@posix
@every_agent
@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_stays_a_link(agent: Agent, dangling: bool, person: Path) -> None:
    elsewhere = person / "dotfiles"
    elsewhere.mkdir()
    for path in write_mine(agent):
        body = path.read_bytes()
        path.unlink()
        path.symlink_to(elsewhere / path.name)
        if not dangling:
            (elsewhere / path.name).write_bytes(body)
    before = files_below(person)
    set_up_agent(agent)
    for edit in agent.edits(PLAIN):
        text = edit.path.read_text()
        assert edit.path.is_symlink() and ("headrace" in text or "11711" in text)
    set_up.undo(agent.name)
    assert files_below(person) == before
    assert all(edit.path.is_symlink() for edit in agent.edits(PLAIN))


def test_a_file_that_changes_meanwhile_is_left_alone(person: Path) -> None:
    agent = BY_NAME["codex"]
    (mine,) = write_mine(agent)
    planned = set_up.changes(agent.name, agent.edits(PLAIN), PLAIN)
    mine.write_bytes(b"x = 1\n")
    with pytest.raises(AgentError, match="meantime"):
        set_up.apply(agent.name, planned, PLAIN)
    assert mine.read_bytes() == b"x = 1\n" and set_up.state(agent.name) == "no"


def test_one_file_is_not_written_without_the_other(
    person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = BY_NAME["pi"]
    write_mine(agent)
    before = files_below(person)
    write = config_file.write

    def full_disk(path: Path, body: bytes, mode: int) -> None:
        if path.name == "settings.json" and b"headrace" in body:
            raise OSError("no space left")
        write(path, body, mode)

    monkeypatch.setattr(config_file, "write", full_disk)
    with pytest.raises(OSError, match="no space"):
        set_up_agent(agent)
    assert files_below(person) == before and set_up.state(agent.name) == "no"


def test_a_crash_after_the_record_can_be_undone(
    person: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = BY_NAME["codex"]
    write_mine(agent)
    before = files_below(person)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(config_file, "write", crash)
        with pytest.raises(KeyboardInterrupt):
            set_up_agent(agent)
    set_up.undo(agent.name)
    assert files_below(person) == before and set_up.state(agent.name) == "no"


@pytest.mark.parametrize("body", [b"\xff\xfe{}", b'{"a": ', b"[]"])
def test_a_file_that_cannot_be_edited_is_named_and_left(body: bytes, person: Path) -> None:
    agent = BY_NAME["claude"]
    path = agent.edits(PLAIN)[0].path
    path.parent.mkdir()
    path.write_bytes(body)
    with pytest.raises(AgentError, match="settings.json cannot be changed"):
        set_up_agent(agent)
    assert path.read_bytes() == body and set_up.state(agent.name) == "no"


def test_files_beside_a_made_folder_s_own_stay(person: Path) -> None:
    agent = BY_NAME["opencode"]
    set_up_agent(agent)
    other = person / ".config" / "opencode" / "auth.json"
    other.write_text("{}")
    set_up.undo(agent.name)
    assert list(files_below(person)) == [
        ".config",
        str(Path(".config/opencode")),
        str(Path(".config/opencode/auth.json")),
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
@given(
    st.dictionaries(st.text(), values, max_size=4),
    st.sampled_from([None, 2, "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.text(st.sampled_from(" \n\r\t"), max_size=3),
    st.sampled_from(["", "\ufeff", "// note\n", "/* note */ "]),
)
def test_any_file_comes_back(
    value: dict[str, object], layout: int | str | None, newline: str, end: str, head: str
) -> None:
    body = head + json.dumps(value, indent=layout).replace("\n", newline) + end
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "settings.json"
        path.write_bytes(body.encode())
        edit = ConfigEdit(path, lambda text: jsonc.put(text, ("headrace", "url"), PLAIN.url))
        if not isinstance(value.get("headrace", {}), dict):
            return
        planned = set_up.changes("any", [edit], PLAIN)
        set_up.apply("any", planned, PLAIN)
        written = jsonc.parse(path.read_bytes().decode())
        assert written.pop("headrace")["url"] == PLAIN.url
        assert written == {name: each for name, each in value.items() if name != "headrace"}
        set_up.undo("any")
        assert path.read_bytes() == body.encode()
