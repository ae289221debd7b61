"""What a server's openness means for its person, in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from engine.server.listening import is_loopback
from engine.server.security import ANY_ORIGIN


def warnings(addresses: Sequence[str], cors_origins: Sequence[str], *, keys: bool) -> list[str]:
    """`addresses`: those that it listens on. `keys`: whether clients must send one."""
    found = []
    open_at = [address for address in addresses if not is_loopback(address)]
    if open_at:
        where = f"This server is open to the network at {', '.join(open_at)}."
        if keys:
            consequence = (
                "Whoever has a key can use it from there. The connection is not encrypted: keys, "
                "prompts and answers can be read on the way. Use it in a network that you trust."
            )
        else:
            consequence = (
                "No API key is set: whoever reaches it can use your model, fill its queue and read "
                "the responses that it keeps. `headrace keys create NAME` makes a key, and from "
                "then on one is wanted; --host 127.0.0.1 keeps the server to this PC."
            )
        found.append(f"{where} {consequence}")
    if ANY_ORIGIN in cors_origins and not keys:
        found.append(
            "With --cors-origin * and without an API key every web page that you open in a browser "
            "can use this server and read its answers. Name the pages instead, or make a key with "
            "`headrace keys create NAME`."
        )
    return found
