"""A small server with the endpoints the app uses, for what the engine cannot be made to do.

It is started like `headrace serve`, as a process of its own, and misbehaves as STAND_IN says:
`fail-start` ends with code 3, `failed-model` loads nothing, `no-adopt` refuses a new owner and
`adopt-late` does twice,
`mid-error` breaks off an answer, `deaf` ignores the request to end; `resizes` does what it is told
about its VRAM, where it otherwise knows no such path.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

MODE = os.environ.get("STAND_IN", "")
TOKEN = "stand-in-token"
KEY = os.environ.get("STAND_IN_KEY", "")
"""What clients must send; the token above opens the engine's own paths, too."""
REPLY = json.loads(os.environ.get("STAND_IN_REPLY", '["Hello", " there", "."]'))
PAUSE_S = float(os.environ.get("STAND_IN_PAUSE", "0.01"))
STATS: dict[str, Any] = json.loads(os.environ.get("STAND_IN_STATS", "{}"))
refusals = 2 if MODE == "adopt-late" else 10**9 if MODE == "no-adopt" else 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "stand-in"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path != "/health" and not self._authorised(KEY, TOKEN):
            return
        if path == "/health":
            self._health()
        elif path == "/v1/engine/stats/stream":
            self._stream(self._stats_forever())
        elif path == "/v1/engine/stats":
            self._json(200, next(self._stats_forever()))
        else:
            self._json(404, {"error": {"message": f"nothing at {path}"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/v1/chat/completions" and self._authorised(KEY):
            self._chat(json.loads(body))
        elif self.path in ("/v1/engine/owner", "/v1/engine/shutdown"):
            self._control(body)
        elif self.path == "/v1/engine/budget" and MODE == "resizes":
            self._resize(json.loads(body))
        elif self.path != "/v1/chat/completions":
            self._json(404, {"error": {"message": "no such path"}})

    def _authorised(self, *secrets: str) -> bool:
        sent = self.headers.get("Authorization", "").removeprefix("Bearer ")
        sent = sent.encode("latin-1").decode()  # what http.server makes of bytes
        if KEY and sent not in secrets:
            self._json(401, {"error": {"message": "a wrong key"}})
            return False
        return True

    def log_message(self, form: str, *arguments: Any) -> None:
        pass

    def _health(self) -> None:
        if MODE == "failed-model":
            error = {"code": "model_files", "message": "shard 2 is missing", "hint": "Fetch it."}
            self._json(503, {"status": "failed", "error": error})
        else:
            self._json(200, {"status": "ready", "model": "stand-in"})

    def _control(self, body: bytes) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json(401, {"error": {"message": "a wrong token"}})
        elif self.path.endswith("owner"):
            global refusals
            if refusals:
                refusals -= 1
                self._json(500, {"error": {"message": "not now"}})
                return
            write_record(self.server.server_port, json.loads(body)["pid"])
            self._json(200, {})
        elif MODE == "deaf":
            self._json(200, {})
        else:
            self._json(200, {})
            threading.Thread(target=leave).start()

    def _resize(self, asked: dict[str, Any]) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json(401, {"error": {"message": "a wrong token"}})
            return
        assert asked["cause"].endswith(".")
        experts = max(0, asked["vram_bytes"] - STATS["vram_dense_bytes"] - STATS["vram_kv_bytes"])
        STATS["vram_expert_bytes"] = experts
        self._json(200, {"applied_bytes": asked["vram_bytes"], "state": "ready"})

    def _chat(self, request: dict[str, Any]) -> None:
        words = request["messages"][-1]["content"]
        if words == "refuse":
            self._json(400, {"error": {"message": "the prompt is too long", "hint": "Shorten it."}})
            return
        self._stream(self._answer())

    def _answer(self) -> Any:
        yield {"choices": [{"delta": {"role": "assistant"}}]}
        for at, piece in enumerate(REPLY):
            time.sleep(PAUSE_S)
            if MODE == "mid-error" and at == 2:
                yield {"error": {"message": "the runtime died", "code": "runtime_died"}}
                return
            yield {"choices": [{"delta": {"content": piece}}]}
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"completion_tokens": len(REPLY)}}

    def _stats_forever(self) -> Any:
        while True:
            yield {"state": "ready", "model": "stand-in", **STATS}
            time.sleep(0.2)

    def _stream(self, events: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for event in events:
                self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()
            self.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            pass
        self.close_connection = True

    def _json(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def servers() -> Path:
    return Path(os.environ["HEADRACE_HOME"], "servers")


def write_record(port: int, owner: int) -> None:
    me = psutil.Process()
    servers().mkdir(exist_ok=True)
    token = servers() / f"{me.pid}.token"
    token.write_text(TOKEN)
    record = {
        "pid": me.pid,
        "started": me.create_time(),
        "argv": me.cmdline(),
        "host": "127.0.0.1",
        "port": port,
        "version": os.environ.get("STAND_IN_VERSION", ""),
        "control_token_file": str(token),
        "owner_pid": owner,
        "owner_started": start_of(owner),
    }
    fresh = servers() / "record.new"
    fresh.write_text(json.dumps(record))
    fresh.replace(servers() / f"{me.pid}.json")


def start_of(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time() if pid else 0.0
    except psutil.NoSuchProcess:
        return 0.0


def leave(*_: object) -> None:
    (servers() / f"{os.getpid()}.json").unlink(missing_ok=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--owner-pid", type=int, default=0)
    known, _ = parser.parse_known_args()
    if MODE == "fail-start":
        print("model folder is empty", flush=True)
        sys.exit(3)
    signal.signal(signal.SIGTERM, leave)
    server = ThreadingHTTPServer(("127.0.0.1", known.port), Handler)
    server.daemon_threads = True
    write_record(server.server_port, known.owner_pid)
    print(f"Headrace listens on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
