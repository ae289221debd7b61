"""Keys: made, listed and revoked by a command, and followed by servers that run."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx2 as httpx
import openai
import pytest

from engine import api_keys
from engine.server.keys import KeyRing
from tests.server.running import Server, running


def keys(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", "keys", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "HEADRACE_HOME": str(home)},
        check=False,
    )


def created(home: Path, name: str) -> str:
    done = keys(home, "create", name)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def status(server: Server, key: str = "", path: str = "/v1/models") -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return server.http.get(path, headers=headers).status_code


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def serving(tiny_model: Path, home: Path) -> Iterator[Server]:
    """A server without a key. Its model need not load."""
    with running(tiny_model, home, "--device", "cpu", ready=False) as started:
        yield started


def test_a_running_server_follows_the_keys(serving: Server, home: Path) -> None:
    assert status(serving) == 200
    first, second = created(home, "laptop"), created(home, "phone")
    assert status(serving) == status(serving, first[:-1]) == status(serving, first + "x") == 401
    assert status(serving, first) == status(serving, second) == 200
    assert serving.http.get("/health").status_code in (200, 503)
    assert keys(home, "revoke", "laptop").returncode == 0
    assert status(serving, first) == 401 and status(serving, second) == 200
    done = keys(home, "revoke", "phone")
    assert "want no key now" in done.stdout
    assert status(serving) == 200
    log = serving.logged()
    assert "an API key is wanted from now on" in log and "is no longer wanted" in log
    assert first not in log and second not in log


def test_both_protocols_clients_send_it(serving: Server, home: Path) -> None:
    key = created(home, "sdk")
    with httpx.Client(trust_env=False) as http:
        for given in (key, "hr-wrong"):
            shared = {"api_key": given, "http_client": http, "max_retries": 0}
            theirs = openai.OpenAI(base_url=f"{serving.url}/v1", **shared)
            others = anthropic.Anthropic(base_url=serving.url, **shared)
            if given == key:
                assert theirs.models.list().data[0].id == serving.model
                assert others.models.list().data[0].id == serving.model
                continue
            with pytest.raises(openai.AuthenticationError):
                theirs.models.list()
            with pytest.raises(anthropic.AuthenticationError):
                others.models.list()


def test_the_key_of_the_command_line_works_beside_them(tiny_model: Path, home: Path) -> None:
    options = ("--device", "cpu", "--api-key", "s3same")
    with running(tiny_model, home, *options, ready=False) as server:
        key = created(home, "other")
        assert status(server, "s3same") == status(server, key) == 200
        keys(home, "revoke", "other")
        assert status(server, "s3same") == 200 and status(server, key) == status(server) == 401


def test_this_user_s_programs_have_access_whatever_keys_there_are(
    serving: Server, home: Path
) -> None:
    local = (home / "local-key").read_text()
    created(home, "laptop")
    assert status(serving, local) == 200
    (home / "local-key").write_text("")
    assert status(serving, local) == status(serving) == 401  # an emptied file opens nothing


def test_the_control_token_is_no_key(serving: Server, home: Path) -> None:
    key = created(home, "laptop")
    token = serving.file("token").read_text()
    assert status(serving, token) == 401
    assert status(serving, token, "/v1/engine/stats") == 200
    assert status(serving, key, "/v1/engine/stats") == 200
    for secret in (key, (home / "local-key").read_text()):
        shutdown = serving.http.post(
            "/v1/engine/shutdown", headers={"Authorization": f"Bearer {secret}"}
        )
        assert shutdown.status_code == 401


def test_keys_that_cannot_be_read_open_nothing(serving: Server, home: Path) -> None:
    key = created(home, "laptop")
    file = home / "api-keys.json"
    readable = file.read_text()
    for content, *arguments in (
        ("", "list"),
        ("{", "create", "x"),
        ('{"keys": [{"name": 1}]}', "revoke", "laptop"),
        ("[]", "create", "x"),
    ):
        file.write_text(readable)
        assert status(serving, key) == 200 and status(serving) == 401
        file.write_text(content)
        assert status(serving) == status(serving, key) == 401
        done = keys(home, *arguments)
        assert done.returncode == 1 and "cannot be read" in done.stderr
        assert file.read_text() == content
    assert "cannot be read" in serving.logged()


@pytest.mark.skipif(os.name == "nt", reason="no limit of open files to lower")
def test_keys_that_could_not_be_read_for_a_while(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the files tells that they can be read again."""
    import resource

    monkeypatch.setenv("HEADRACE_HOME", str(home))
    key = api_keys.create("laptop")
    api_keys.make_local_key()
    local = api_keys.local_key()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        ring = KeyRing()
        assert ring.required and not ring.fits(key) and not ring.fits(local)
        ring.refresh()
        assert not ring.fits(key)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ring.refresh()
    assert ring.fits(key) and ring.fits(local)


@pytest.mark.skipif(os.name == "nt", reason="files have no time of change there")
def test_a_change_is_seen_though_the_time_of_writing_is_as_before(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    api_keys.make_local_key()
    ring, file, first = KeyRing(), api_keys.local_key_file(), api_keys.local_key()
    before, second = file.stat(), first[::-1]
    file.write_text(second)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    ring.refresh()
    assert ring.fits(second) and not ring.fits(first)


def test_what_is_stored_is_no_key(home: Path) -> None:
    key = created(home, "laptop")
    assert re.fullmatch(r"hr-[A-Za-z0-9_-]{43}", key)
    for path in home.rglob("*"):
        assert not path.is_file() or key not in path.read_text()
    (entry,) = json.loads((home / "api-keys.json").read_text())["keys"]
    assert abs(entry["created"] - time.time()) < 60
    assert key not in keys(home, "list").stdout
    if os.name != "nt":
        for name in ("api-keys.json", "api-keys.lock"):
            assert stat.S_IMODE((home / name).stat().st_mode) == 0o600


def test_the_list_tells_when_a_key_was_used(serving: Server, home: Path) -> None:
    assert "no keys" in keys(home, "list").stdout
    key = created(home, "laptop")
    assert re.search(r"^laptop +\d{4}-\d\d-\d\d \d\d:\d\d +never$", keys(home, "list").stdout, re.M)
    assert status(serving, key) == 200
    assert re.search(r"^laptop( +\d{4}-\d\d-\d\d \d\d:\d\d){2}$", keys(home, "list").stdout, re.M)
    # A new key of an old name was never used.
    keys(home, "revoke", "laptop")
    created(home, "laptop")
    assert "never" in keys(home, "list").stdout


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("", 2, "nothing is given"),
        (" ", 2, "nothing is given"),
        *((name, 1, "is no name for a key") for name in ("a b", "ä", "x" * 65, "a/b", "a\n")),
    ],
)
def test_what_is_no_name_is_refused(home: Path, name: str, code: int, said: str) -> None:
    done = keys(home, "create", name)
    assert done.returncode == code and said in done.stderr and done.stdout == ""
    assert not (home / "api-keys.json").exists()


def test_a_name_that_is_an_option_makes_no_key(home: Path) -> None:
    done = keys(home, "create", "-h")
    assert done.returncode == 0 and done.stdout.startswith("usage:")
    assert not (home / "api-keys.json").exists()


def test_names_are_there_once(home: Path) -> None:
    created(home, "laptop")
    for name in ("laptop", "Laptop"):
        done = keys(home, "create", name)
        assert done.returncode == 1 and "already" in done.stderr and not done.stdout
        assert "`headrace keys revoke laptop`" in done.stderr
    done = keys(home, "revoke", "phone")
    assert done.returncode == 1 and "laptop" in done.stderr


def test_keys_made_at_once_are_all_kept(home: Path) -> None:
    made = [
        subprocess.Popen(
            [sys.executable, "-c", f"from engine import api_keys; api_keys.create('k{number}')"],
            env={**os.environ, "HEADRACE_HOME": str(home)},
        )
        for number in range(6)
    ]
    assert [each.wait(60) for each in made] == [0] * 6
    names = {each["name"] for each in json.loads((home / "api-keys.json").read_text())["keys"]}
    assert names == {f"k{number}" for number in range(6)}


def test_a_damaged_local_key_is_made_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    assert api_keys.local_key() == ""
    api_keys.make_local_key()
    key = api_keys.local_key()
    api_keys.make_local_key()
    assert api_keys.local_key() == key
    api_keys.local_key_file().write_bytes(b"\xff")
    assert api_keys.local_key() == ""
    api_keys.make_local_key()
    assert api_keys.local_key() not in ("", key)
