"""A hub, a folder, and the worker's own code in this process or in its own."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from app.core.downloads.records import Event, Fetch, Network, Pace, Request
from tests.app.downloads.checks import QUICK, do
from tests.app.downloads.fake_hub import FakeHub

SHARDS = [random.Random(5).randbytes(size) for size in (3_300_000, 2_500_000)]


@pytest.fixture(scope="session")
def one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """All of a system's certificates take longer to read than a test's model to fetch."""
    known = ssl.create_default_context().get_ca_certs(binary_form=True)
    if not known:
        return None
    path = tmp_path_factory.mktemp("certificates") / "one.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(known[0]))
    return path


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_certificate: Path | None) -> None:
    """Neither the user's hub nor a proxy."""
    if one_certificate is not None:
        monkeypatch.setenv("SSL_CERT_FILE", str(one_certificate))
    names = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH")
    proxies = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    for name in (*names, *proxies, *(proxy.lower() for proxy in proxies)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    files = {
        "config.json": b'{"model_type": "qwen3_moe"}',
        "model-00001-of-00002.safetensors": SHARDS[0],
        "model-00002-of-00002.safetensors": SHARDS[1],
        "empty.txt": b"",
        "README.md": b"# Model\n" * 9000,
        "original/weights.pth": b"not wanted",
    }
    with FakeHub(files).running() as running:
        yield running


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def fetch(hub: FakeHub, root: Path) -> Callable[..., list[Event]]:
    """Fetches in this process; returns the events."""

    def run(pace: Pace = QUICK, begun: bool = False, **fields: object) -> list[Event]:
        fields.setdefault("root", str(root))
        request = msgspec.convert({"repo": hub.repo, **fields}, Request)
        network = Network(endpoint=hub.endpoint)
        return do(Fetch(request=request, network=network, pace=pace, begun=begun))

    return run
