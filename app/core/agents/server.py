"""The server that agents are pointed at: one that runs, or the one that the settings describe."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.core import server_record
from app.core.agents.agent import AgentError, Endpoint
from app.core.settings import Settings, model_path
from engine import api_keys
from engine.options import DEFAULT_PORT

_PATIENCE_S = 10.0
# A local server is not asked for by way of a proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def running(settings: Settings, url: str = "", model: str = "", key: str = "") -> Endpoint:
    """The server that answers at `url`, else one that runs here, the app's first.

    Raises AgentError where none answers.
    """
    recorded = _recorded(settings)
    address = _address(url) or recorded
    if not address:
        raise AgentError(
            "No Headrace server runs.",
            hint="Open the app, or start one with `headrace serve --model demo`. For a server "
            "elsewhere there is --url.",
        )
    key = key or _usual_key(settings, ours=address == recorded)
    served = _served(address, key)
    return Endpoint(address, model or served["id"], key, served.get("context_length") or 0)


def described(settings: Settings, url: str = "", model: str = "", key: str = "") -> Endpoint:
    """The running server, or what a server started with these settings will be."""
    recorded = _recorded(settings)
    address = _address(url) or recorded
    if address and not (url and model):
        return running(settings, address, model, key)
    path = model_path(settings.model)
    name = model or (path.name if path else settings.model)
    port = settings.port or DEFAULT_PORT
    key = key or _usual_key(settings, ours=address == recorded)
    return Endpoint(address or f"http://127.0.0.1:{port}", name, key)


def _usual_key(settings: Settings, *, ours: bool) -> str:
    """`ours`: the server is this user's. The local key fits there, whatever keys come and go, and
    is shown to no other server."""
    return (api_keys.local_key() if ours else "") or settings.api_key


def read_key(path: Path) -> str:
    """A key from a file, which holds nothing else. Raises AgentError."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise AgentError(f"--api-key-file {path} cannot be read: {error}.") from error
    if not key or any(letter <= " " for letter in key):
        raise AgentError(f"--api-key-file {path} must hold one key, and nothing else.")
    return key


def _recorded(settings: Settings) -> str:
    """The server that the app would go on with, else whichever of the person's began first."""
    servers = server_record.running_servers()
    found = server_record.to_use(servers, settings.port) or next(iter(servers), None)
    return found.url if found else ""


def _address(url: str) -> str:
    if not url:
        return ""
    bare = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(bare)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise AgentError(f"--url {url} is no address like http://127.0.0.1:{DEFAULT_PORT}.")
    return bare


def _served(address: str, key: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{address}/v1/models", headers=headers)
    try:
        with _OPENER.open(request, timeout=_PATIENCE_S) as answer:
            (model, *_) = json.load(answer)["data"]
            if not isinstance(model["id"], str):
                raise TypeError("a model without a name")
            return dict(model)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise AgentError(
                f"The server at {address} wants another API key.",
                hint="Give it with --api-key-file, or set it in the app's settings.",
            ) from error
        raise AgentError(f"The server at {address} answered with status {error.code}.") from error
    except (OSError, http.client.HTTPException) as error:
        raise AgentError(f"No server answers at {address}: {error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise AgentError(f"What answers at {address} is no Headrace server.") from error
