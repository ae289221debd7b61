"""Mirrors, proxies and certificates."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from app.core.downloads.records import Event, Fetch, Network, Ready, Request
from app.core.downloads.token import save_token
from tests.app.downloads.checks import QUICK, check_whole, code, do
from tests.app.downloads.fake_hub import FakeHub, Fault

SMALL = ["README.md", "config.json"]


def fetch_from(network: Network, hub: FakeHub, root: Path, files: list[str]) -> list[Event]:
    request = Request(repo=hub.repo, root=str(root), files=tuple(files))
    return do(Fetch(request=request, network=network, pace=QUICK))


@pytest.fixture
def secure(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate that nobody knows, and the certificate."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


def test_a_certificate_of_ones_own_is_trusted_where_it_is_named(
    secure: tuple[ssl.SSLContext, Path], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = secure
    with FakeHub({"config.json": b"{}", "README.md": b"x"}).running(context) as hub:
        events = fetch_from(Network(endpoint=hub.endpoint), hub, root, SMALL)
        assert code(events) == "network"
        assert "certificate" in events[-1].fault.message  # type: ignore[union-attr]
        assert len(events) == 1  # nothing to try again for
        network = Network(endpoint=hub.endpoint, ca_file=str(certificate))
        assert isinstance(fetch_from(network, hub, root, SMALL)[-1], Ready)
        check_whole(hub, root, SMALL)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        found = fetch_from(Network(endpoint=hub.endpoint), hub, root, ["config.json"])
        assert isinstance(found[-1], Ready)


@pytest.mark.parametrize("how", ["setting", "environment"])
def test_a_proxy_is_used(
    hub: FakeHub, root: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The hub plays the proxy too: it takes addresses with a host in them."""
    network = Network(endpoint="http://hub.invalid")
    if how == "setting":
        network = Network(endpoint="http://hub.invalid", proxy=hub.endpoint)
    else:
        monkeypatch.setenv("HTTP_PROXY", hub.endpoint)
    assert isinstance(fetch_from(network, hub, root, SMALL)[-1], Ready)
    check_whole(hub, root, SMALL)
    assert {host for host, _, _ in hub.requests} == {"hub.invalid"}


def test_a_proxy_that_wants_a_password_says_so(hub: FakeHub, root: Path) -> None:
    hub.faults[""] = Fault(status=407)
    network = Network(endpoint="http://hub.invalid", proxy=hub.endpoint)
    events = fetch_from(network, hub, root, SMALL)
    assert (code(events), len(events)) == ("network", 1)


def test_no_token_goes_over_an_open_line(
    hub: FakeHub, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_token("hf_secret")
    network = Network(endpoint="http://hub.invalid", proxy=hub.endpoint)
    assert isinstance(fetch_from(network, hub, root, SMALL)[-1], Ready)
    assert not any("Authorization" in headers for _, _, headers in hub.requests)
    assert "no token is sent to hub.invalid" in caplog.text


def test_the_environment_names_a_mirror(
    hub: FakeHub, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint + "/")
    assert isinstance(fetch_from(Network(), hub, root, SMALL)[-1], Ready)
