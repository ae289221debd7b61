"""Writes what this PC's probes see, a line of JSON a second, to make a scene of it for the tests.

    python -m app.core.governor.record --seconds 300 > game.jsonl

Each line is an `Evidence`, with names and paths of programs that use the GPU or are games.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

import msgspec

from app.core import server_record
from app.core.governor.engine_figures import engine_of
from app.core.governor.evidence import Engine
from app.core.governor.policy import Policy
from app.core.governor.sampler import Sampler
from app.core.server_record import ServerRecord
from engine.messages import Stats

_NOBODY = Engine(identity="none", held_bytes=0)
_ANSWER_S = 2.0


def engine_now() -> Engine:
    """What the engine of the first running server holds; nothing where there is none."""
    for record in server_record.running_servers()[:1]:
        return engine_of(_stats(record), 0.0, str(record.pid)) or _NOBODY
    return _NOBODY


def _stats(record: ServerRecord) -> Stats:
    headers = {"Authorization": f"Bearer {record.control_token()}"}
    request = urllib.request.Request(f"{record.url}/v1/engine/stats", headers=headers)
    # Never through a proxy: the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return msgspec.json.decode(answer.read(), type=Stats)
    except (OSError, urllib.error.URLError, msgspec.MsgspecError) as error:
        print(f"The server at {record.url} tells nothing: {error}", file=sys.stderr)
        return Stats(state="stopped")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m app.core.governor.record")
    parser.add_argument("--seconds", type=int, default=60, help="how long to record (60)")
    chosen = parser.parse_args(arguments)
    sampler = Sampler()
    begun = time.monotonic()
    for second in range(chosen.seconds):
        time.sleep(max(0.0, begun + second - time.monotonic()))
        at = round(time.monotonic() - begun, 2)
        line = msgspec.json.encode(sampler.read(at, engine_now(), Policy()))
        print(line.decode(), flush=True)
    sampler.rest()
    return 0


if __name__ == "__main__":
    sys.exit(main())
