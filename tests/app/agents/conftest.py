"""Every test has a home folder of its own, for the agents' files and for Headrace's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

_PLACES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "PI_CODING_AGENT_DIR")


@pytest.fixture(autouse=True)
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "person"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    for name in _PLACES:
        monkeypatch.delenv(name, raising=False)
    return folder


class _Models(BaseHTTPRequestHandler):
    """The list of models as the server tells it; any key but `wrong` is welcome."""

    def do_GET(self) -> None:
        status = 200 if self.path == "/v1/models" else 404
        status = 401 if self.headers.get("Authorization") == "Bearer wrong" else status
        entry = {"id": "tiny", "object": "model", "context_length": 4096}
        body = json.dumps({"object": "list", "data": [entry]} if status == 200 else {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, form: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def tiny_server() -> Iterator[str]:
    """The address of a server with the model `tiny`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
