"""A hub on loopback: real HTTP, with the faults that the real one, its mirrors and proxies have."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


@functools.lru_cache
def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@functools.lru_cache
def git_sha1(content: bytes) -> str:
    """As `git hash-object` has it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Fault:
    """What happens to requests for a file, or for the repository's description (name "")."""

    times: int = 1_000_000
    """So many requests; then all is well."""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Sent instead of the file, with whatever length it has."""
    cut: int | None = None
    """The connection ends after so many bytes of the body."""
    stall: int | None = None
    """Nothing comes after so many bytes of the body; the connection stays."""
    ranges: bool = True
    piece_s: float = 0.0
    """Pause after every 16 KiB."""
    on_cdn: bool = True
    """Where the file is redirected, the other host has the fault, not the hub."""
    length: bool = True
    shift: int = 0
    """A range that begins so many bytes elsewhere, though it says what was asked for."""


class FakeHub:
    """Repository `org/model`. Files of `lfs` have SHA-256 and are redirected to another host."""

    def __init__(self, files: dict[str, bytes], lfs: set[str] | None = None) -> None:
        self.files = files
        self.lfs = {name for name in files if name.endswith((".safetensors", ".gguf"))}
        if lfs is not None:
            self.lfs = lfs
        self.repo = "org/model"
        self.commit = COMMIT
        self.promised = dict(files)
        """What the metadata tells of."""
        self.faults: dict[str, Fault] = {}
        self.token = ""
        """If set, files are given only to who sends it."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Host, path with query, headers."""
        self.sent = 0
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.port = 0
        self.scheme = "http"

    @property
    def endpoint(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @contextmanager
    def running(self, tls: ssl.SSLContext | None = None) -> Iterator[FakeHub]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle(self) -> None:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    super().handle()

            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if tls is not None:
            self.scheme = "https"
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            server.shutdown()
            server.server_close()
            thread.join()

    def served(self, name: str) -> list[dict[str, str]]:
        """Headers of the requests for a file's bytes."""
        digest = self.digest(name)
        ends = (f"/cdn/{digest}", f"/resolve/{self.commit}/{name}")
        if name in self.lfs:
            ends = ends[:1]
        return [h for _, path, h in self.requests if urlsplit(path).path.endswith(ends)]

    # --- answers ---

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        host = handler.headers["Host"].split(":")[0]
        with self.lock:
            self.requests.append((host, handler.path, dict(handler.headers)))
        prefix = f"/{self.repo}/resolve/{self.commit}/"
        if path.startswith(f"/api/models/{self.repo}/revision/"):
            self._describe(handler)
        elif path.startswith(prefix):
            self._resolve(handler, path.removeprefix(prefix))
        elif path.startswith("/cdn/") and host == "localhost":
            names = [name for name in self.files if self.digest(name) == path[5:]]
            self._send_file(handler, names[0], self.fault(names[0], cdn=True))
        else:
            self._say(handler, 404, {"X-Error-Code": "RepoNotFound"})

    def digest(self, name: str) -> str:
        promised = self.promised[name]
        return sha256(promised) if name in self.lfs else git_sha1(promised)

    def fault(self, name: str, *, cdn: bool) -> Fault:
        fault = self.faults.get(name, Fault())
        if (name in self.lfs and fault.on_cdn != cdn) or fault.times <= 0:
            return Fault()
        fault.times -= 1
        return fault

    def _describe(self, handler: BaseHTTPRequestHandler) -> None:
        fault = self.fault("", cdn=False)
        if fault.status or fault.body is not None:
            self._say(handler, fault.status or 200, fault.headers, fault.body or b"")
            return
        siblings = []
        for name, content in self.promised.items():
            entry: dict[str, object] = {
                "rfilename": name,
                "size": len(content),
                "blobId": git_sha1(content),
            }
            if name in self.lfs:
                entry["lfs"] = {
                    "sha256": sha256(content),
                    "size": len(content),
                    "pointerSize": 133,
                }
            siblings.append(entry)
        body = json.dumps({"id": self.repo, "sha": self.commit, "siblings": siblings}).encode()
        self._say(handler, 200, {"Content-Type": "application/json"}, body)

    def _resolve(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            sent = handler.headers.get("Authorization")
            self._say(handler, 403 if sent else 401, {"X-Error-Code": "GatedRepo"})
            return
        if name not in self.files:
            self._say(handler, 404, {"X-Error-Code": "EntryNotFound"})
            return
        fault = self.fault(name, cdn=False)
        if name not in self.lfs:
            self._send_file(handler, name, fault)
            return
        if fault.status:
            self._say(handler, fault.status, fault.headers)
            return
        headers = {
            "Location": f"http://localhost:{self.port}/cdn/{self.digest(name)}?Signature=secret",
            "X-Repo-Commit": self.commit,
            "X-Linked-Etag": f'"{self.digest(name)}"',
            "X-Linked-Size": str(len(self.promised[name])),
        }
        self._say(handler, 302, headers | fault.headers)

    def _send_file(self, handler: BaseHTTPRequestHandler, name: str, fault: Fault) -> None:
        if fault.status:
            self._say(handler, fault.status, fault.headers)
            return
        content = self.files[name] if fault.body is None else fault.body
        asked = handler.headers.get("Range", "").removeprefix("bytes=").removesuffix("-")
        begin = int(asked) if asked and fault.ranges else 0
        if asked and fault.ranges and begin >= len(content):
            self._say(handler, 416, {})
            return
        body = content[begin + fault.shift :] if begin else content
        handler.send_response(206 if asked and fault.ranges else 200)
        if asked and fault.ranges:
            end = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            handler.send_header("Content-Range", end)
        if fault.length:
            handler.send_header("Content-Length", str(len(body)))
        else:
            handler.send_header("Connection", "close")
            handler.close_connection = True
        for key, value in fault.headers.items():
            handler.send_header(key, value)
        handler.end_headers()
        self._send_body(handler, body, fault)

    def _send_body(self, handler: BaseHTTPRequestHandler, body: bytes, fault: Fault) -> None:
        end = len(body) if fault.cut is None else fault.cut
        at = 0
        while at < min(end, len(body)):
            step = 1 << 14
            for limit in (fault.stall, end):
                if limit is not None and at < limit:
                    step = min(step, limit - at)
            handler.wfile.write(body[at : at + step])
            with self.lock:
                self.sent += step
            at += step
            if fault.stall is not None and at >= fault.stall:
                self.released.wait(30)
                break
            if fault.piece_s:
                time.sleep(fault.piece_s)
        if at < len(body):
            handler.close_connection = True

    def _say(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        body: bytes = b"",
    ) -> None:
        handler.send_response(status)
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
