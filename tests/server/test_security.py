"""Who may talk to the server: keys, host names, web pages, and the control token."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.core import server_record
from engine import processes
from engine.server import exposure
from engine.server.app import printable
from tests.server.running import Server, headrace, running

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key and two origins and a host allowed. Its model need not load."""
    origins = ("--cors-origin", "https://ok.example/", "--cors-origin", "http://LOCALHOST:3000")
    options = ("--api-key", "s3same", *origins, "--allow-host", "box")
    with running(
        tiny_model, tmp_path_factory.mktemp("home"), "--device", "cpu", *options, ready=False
    ) as started:
        yield started


def test_a_key_on_the_command_line_is_not_written_down(guarded: Server) -> None:
    text = guarded.file("json").read_text(encoding="utf-8")
    assert "s3same" not in json.loads(text)["argv"] and "\\u" not in text
    record = server_record.read(guarded.file("json"))
    assert record is not None and "***" in record.argv
    assert server_record.is_running(record)


def test_a_key_in_a_file(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("s3same\n", encoding="utf-8")
    home = tmp_path / "home"
    options = ("--device", "cpu", "--api-key-file", str(file))
    with running(tiny_model, home, *options, ready=False) as server:
        assert "s3same" not in " ".join(psutil.Process(server.process.pid).cmdline())
        assert server.http.get("/v1/models").status_code == 401
        key = {b"x-api-key": b"s3same"}
        assert server.http.get("/v1/models", headers=key).status_code == 200


@pytest.mark.parametrize("key", ["sésame", "two words", "鍵", "a\tb", "\x7f"])
def test_a_key_that_clients_cannot_send_is_refused(key: str) -> None:
    process = headrace("serve", "--model", "demo", "--api-key", key)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and "a key has letters without accents" in err


@pytest.mark.parametrize("content", [b"", b" \n", b"two keys", b"\xff", "sésame".encode(), None])
def test_a_file_without_a_key_is_refused(content: bytes | None, tmp_path: Path) -> None:
    """Not served without one."""
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    process = headrace("serve", "--model", "demo", "--api-key-file", str(tmp_path / "key"))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and err.startswith(f"error: --api-key-file {tmp_path / 'key'}")


@pytest.mark.parametrize(
    ("path", "shown"),
    [("/v1/x", "/v1/x"), ("/a\n12:00 ERROR b\x1b[31m", "/a\\n12:00 ERROR b\\x1b[31m")],
)
def test_a_path_cannot_write_its_own_log_line(path: str, shown: str) -> None:
    assert printable(path) == shown
    assert len(printable("/" + "\n" * 9999)) < 500


def test_keys_in_command_lines_are_hidden() -> None:
    command = ["p", "--api-key", "K", "--api-key=K", "--api-key-file", "f", "--port", "1"]
    shown = ["p", "--api-key", "***", "--api-key=***", "--api-key-file", "f", "--port", "1"]
    assert processes.without_secrets(command) == shown
    assert processes.without_secrets(shown) == shown


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.net",
        "null",
        "tauri://localhost",
        "http://localhost.evil.net",
        "file://",
        # Any program of this PC can serve a page, with anything in it.
        "http://localhost:3000",
        "http://127.0.0.1:8080",
        "https://[::1]:9",
    ],
)
def test_pages_are_refused(server: Server, origin: str) -> None:
    """Also where no key is wanted."""
    assert server.http.get("/v1/models").status_code == 200
    pages_are_refused(server, origin)


def pages_are_refused(server: Server, origin: str) -> None:
    for method, path in (("POST", CHAT), ("OPTIONS", CHAT), ("GET", "/v1/engine/stats")):
        answer = server.http.request(method, path, headers={"Origin": origin})
        assert answer.status_code == 403, (method, path)
        assert "access-control-allow-origin" not in answer.headers
        assert "--cors-origin" in answer.json()["error"]["message"]


@pytest.mark.parametrize("origin", ["https://ok.example", "http://localhost:3000"])
def test_pages_that_are_listed_are_served(guarded: Server, origin: str) -> None:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
        "Access-Control-Request-Private-Network": "true",
    }
    preflight = guarded.http.options(CHAT, headers=asked)  # browsers send no key with it
    assert preflight.status_code == 204 and preflight.content == b""
    assert preflight.headers["access-control-allow-origin"] == origin
    offered = preflight.headers["access-control-allow-methods"].split(", ")
    assert {"GET", "POST", "DELETE"} <= set(offered)
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    assert preflight.headers["access-control-allow-private-network"] == "true"
    assert "Origin" in preflight.headers["vary"]
    key = {"Origin": origin, "x-api-key": "s3same"}
    answer = guarded.http.get("/v1/models", headers=key)
    assert answer.headers["access-control-allow-origin"] == origin
    assert answer.headers["vary"] == "Origin"


@pytest.mark.parametrize(
    "origin",
    [
        "http://ok.example",
        "https://ok.example:8443",
        "https://a.ok.example",
        "https://ok.example/",
        "http://localhost",
        "http://localhost:3001",
        "https://localhost:3000",
        "null",
    ],
)
def test_origins_are_compared_exactly(guarded: Server, origin: str) -> None:
    pages_are_refused(guarded, origin)


@pytest.mark.parametrize("keyed", [False, True])
def test_all_pages_may_be_let_in(tiny_model: Path, tmp_path: Path, keyed: bool) -> None:
    options = ["--cors-origin", "*", *(["--api-key", "s3same"] if keyed else [])]
    with running(tiny_model, tmp_path, "--device", "cpu", *options, ready=False) as server:
        answer = server.http.get("/v1/models", headers={"Origin": "https://any.example"})
        assert answer.status_code == (401 if keyed else 200)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert ("every web page that you open" in server.logged()) is not keyed


@pytest.mark.parametrize("origin", ["example.org", "https://a/b", "https://", "a b", "https://*.a"])
def test_what_no_browser_sends_is_no_origin(origin: str) -> None:
    process = headrace("serve", "--model", "demo", "--cors-origin", origin)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and "is no origin such as" in err


@pytest.mark.parametrize(
    ("host", "keyed", "said", "not_said"),
    [
        ("127.0.0.1", False, "", "open to the network"),
        ("0.0.0.0", False, "whoever reaches it can use your model", "Whoever has a key"),
        ("0.0.0.0", True, "not encrypted: keys, prompts and answers", "No API key"),
    ],
)
def test_what_an_open_server_means_is_said(
    tiny_model: Path, tmp_path: Path, host: str, keyed: bool, said: str, not_said: str
) -> None:
    options = ["--host", host, *(["--api-key", "s3same"] if keyed else [])]
    with running(tiny_model, tmp_path, "--device", "cpu", *options, ready=False) as server:
        server.http.get(f"http://127.0.0.1:{server.port}/health")
        log = server.logged()
    assert said in log and not_said not in log and ("open to the network" in log) is bool(said)


def test_keys_that_come_and_go_change_what_is_said() -> None:
    def told(*addresses: str, origins: tuple[str, ...] = (), keys: bool = False) -> str:
        return " ".join(exposure.warnings(addresses, origins, keys=keys))

    assert told("127.0.0.1", "::1", origins=("https://a.example",)) == ""
    assert "headrace keys create" in told("192.168.1.7")
    assert "headrace keys create" not in told("192.168.1.7", keys=True) != ""
    assert told("127.0.0.1", origins=("*",)) and not told("127.0.0.1", origins=("*",), keys=True)


def test_options_without_a_page_is_answered(server: Server) -> None:
    answer = server.http.options(CHAT)
    assert answer.status_code == 204 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "host", ["evil.example.net", "127.0.0.1.evil.net", "localhost.evil.net:80"]
)
def test_foreign_host_names_are_refused(server: Server, host: str) -> None:
    answer = server.http.get("/health", headers={"Host": host})
    assert answer.status_code == 403 and host in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:99", "192.168.1.7"]
)
def test_own_host_names_are_served(server: Server, host: str) -> None:
    assert server.http.get("/health", headers={"Host": host}).status_code == 200


def test_localhost_is_this_server_by_either_family(server: Server) -> None:
    for name in ("localhost", "[::1]"):
        try:
            answer = server.http.get(f"http://{name}:{server.port}/health")
        except OSError:  # this machine has no IPv6
            continue
        assert answer.status_code == 200


def test_the_key_is_wanted_everywhere_but_at_health(guarded: Server) -> None:
    assert guarded.http.get("/health").status_code in (200, 503)
    for path in ("/v1/models", "/v1/engine/stats", "/v1/nothing"):
        answer = guarded.http.get(path)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
    anthropic = guarded.http.post("/v1/messages").json()
    assert anthropic["error"]["type"] == "authentication_error"
    for wrong in ("Bearer sesame", "Bearer", "sesame", "Basic sesame"):
        headers = {b"Authorization": wrong.encode()}
        assert guarded.http.get("/v1/models", headers=headers).status_code == 401
    for right in ({b"Authorization": b"Bearer s3same"}, {b"x-api-key": b"s3same"}):
        assert guarded.http.get("/v1/models", headers=right).status_code == 200


def test_the_control_token_opens_the_engine_but_not_the_rest(guarded: Server) -> None:
    assert guarded.http.get("/v1/engine/stats", headers=guarded.token).status_code == 200
    assert guarded.http.get("/v1/models", headers=guarded.token).status_code == 401


def test_what_was_allowed_is_allowed(guarded: Server) -> None:
    key = {b"x-api-key": b"s3same"}
    page = guarded.http.get("/v1/models", headers={**key, b"Origin": b"https://ok.example"})
    assert page.headers["access-control-allow-origin"] == "https://ok.example"
    assert guarded.http.get("/v1/models", headers={**key, b"Host": b"box:1"}).status_code == 200
    # A page may read why it was refused a key.
    refused = guarded.http.get("/v1/models", headers={"Origin": "https://ok.example"})
    assert refused.status_code == 401 and "access-control-allow-origin" in refused.headers


def test_changes_want_the_control_token(server: Server) -> None:
    for path, body in (("owner", {"pid": os.getpid()}), ("shutdown", {})):
        for headers in ({}, {"Authorization": "Bearer x"}, {"x-api-key": "x"}):
            answer = server.http.post(f"/v1/engine/{path}", json=body, headers=headers)
            assert answer.status_code == 401, (path, headers)
    assert server.health()["status"] == "ready"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes; the folder is the user's")
def test_the_files_are_only_the_users(server: Server) -> None:
    for kind in ("json", "token"):
        assert stat.S_IMODE(server.file(kind).stat().st_mode) == 0o600
