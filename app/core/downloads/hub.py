"""The hub over HTTP: what a repository holds, and a file's bytes from an offset on.

Nothing that the hub says is taken for granted: names and digests become paths, so they are checked;
of headers only those count that contradict the plan.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from collections.abc import Iterator
from urllib.parse import quote

import httpx2
import msgspec

import engine
from app.core.downloads import answers, layout
from app.core.downloads.answers import WrongBytes
from app.core.downloads.errors import DownloadError
from app.core.downloads.records import Network, Plan, RemoteFile, Request
from app.core.downloads.selection import select

DEFAULT_ENDPOINT = "https://huggingface.co"
_LOCAL = {"localhost", "127.0.0.1", "::1"}
_HEX = re.compile("[0-9a-f]*")
_MAX_TEXT = 64 << 20
"""Of an answer that is kept in memory: far above any repository's list of files."""


class _Lfs(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct, rename="camel"):
    rfilename: str
    size: int | None = None
    blob_id: str | None = None
    lfs: _Lfs | None = None


class _Model(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


class Hub:
    """A connection pool to one endpoint. Its calls may be made from several threads."""

    def __init__(self, network: Network, token: str, stall_s: float) -> None:
        """Raises DownloadError for an address, a proxy or a certificate file that is none."""
        given = network.endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        self._endpoint = given.rstrip("/")
        try:
            url = httpx2.URL(self._endpoint)
            if url.scheme not in ("http", "https") or not url.host or url.userinfo:
                raise httpx2.InvalidURL("")
        except httpx2.InvalidURL:
            raise DownloadError("network", "The hub's address is not an http(s) URL.") from None
        self.host = url.host
        self._headers = {
            "User-Agent": f"headrace/{engine.__version__}",
            "Accept-Encoding": "identity",  # offsets are those of the file
        }
        # Unencrypted, everybody on the way could read the token.
        self.token_withheld = bool(token) and url.scheme == "http" and url.host not in _LOCAL
        if token and not self.token_withheld:
            self._headers["Authorization"] = f"Bearer {token}"
        self._client = _client(network, stall_s)

    def close(self) -> None:
        self._client.close()

    def look_up(self, request: Request) -> Plan:
        """The commit that the revision is now, and its files that the request means.

        Raises DownloadError, and Transient for what may pass.
        """
        revision = quote(request.revision, safe="")
        path = f"/api/models/{request.repo}/revision/{revision}?blobs=true"
        with self._get(path, {}) as answer:
            answers.require_ok(answer, request, self.host)
            body = _whole(answer, _MAX_TEXT)
        try:
            model = msgspec.json.decode(body, type=_Model)
        except msgspec.DecodeError as error:
            raise DownloadError(
                "hub",
                f"{self.host} answered with something else than a model's description ({error}).",
                hint="Does the network ask for a sign-in first?",
            ) from error
        if not layout.is_commit(model.sha):
            raise DownloadError("hub", f"{self.host} names no commit of {request.repo}.")
        wanted = select(request, tuple(map(self._remote_file, model.siblings)))
        for file in wanted:
            if not file.digest:
                raise DownloadError(
                    "hub",
                    f"{self.host} gives no size or checksum of {file.name}: "
                    "nobody could tell whether it came right.",
                    hint="Use another mirror.",
                )
        return Plan(request=request, commit=model.sha, files=wanted)

    def text(self, plan: Plan, file: RemoteFile) -> str:
        """A small file's content."""
        with self.body(plan, file, 0) as pieces:
            return b"".join(pieces).decode("utf-8", "replace")

    @contextlib.contextmanager
    def body(self, plan: Plan, file: RemoteFile, offset: int) -> Iterator[Iterator[bytes]]:
        """The file's bytes from `offset` on, never more than it has.

        Raises DownloadError, Transient for what may pass, and WrongBytes where only beginning the
        file anew can help.
        """
        path = f"/{plan.request.repo}/resolve/{plan.commit}/{quote(file.name)}"
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._get(path, headers) as answer:
            answers.require_file(answer, plan, file, self.host)
            skip = answers.bytes_before(answer, file, offset)
            yield _pieces(answer, skip, file.size - offset)

    @contextlib.contextmanager
    def _get(self, path: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        try:
            url = self._endpoint + path
            with self._client.stream("GET", url, headers={**self._headers, **headers}) as answer:
                yield answer
        except httpx2.HTTPError as error:
            raise answers.fault_of(error, self.host) from error
        except httpx2.InvalidURL as error:
            raise DownloadError("hub", f"{self.host} redirects to no address.") from error

    def _remote_file(self, sibling: _Sibling) -> RemoteFile:
        layout.check_name(sibling.rfilename)
        lfs = sibling.lfs
        size = sibling.size if lfs is None else lfs.size
        digest = (sibling.blob_id or "" if lfs is None else lfs.sha256).lower()
        known = size is not None and size >= 0 and _HEX.fullmatch(digest) is not None
        if not known or len(digest) != (40 if lfs is None else 64):
            size, digest = 0, ""  # refused should the file be wanted
        return RemoteFile(
            name=sibling.rfilename, size=size or 0, digest=digest, sha256=lfs is not None
        )


def _client(network: Network, stall_s: float) -> httpx2.Client:
    verify: ssl.SSLContext | bool = True
    if network.ca_file:
        try:
            verify = ssl.create_default_context(cafile=network.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise DownloadError(
                "network", f"{network.ca_file} holds no certificates that can be read: {error}."
            ) from error
    try:
        return httpx2.Client(
            verify=verify,
            proxy=network.proxy or None,
            follow_redirects=True,  # drops the token where the host changes
            timeout=httpx2.Timeout(stall_s, pool=None),
        )
    except (httpx2.InvalidURL, ValueError, ImportError) as error:
        # The address may hold a password: it is not repeated.
        raise DownloadError(
            "network", "The proxy's address is not one that can be used.", hint="http://host:port"
        ) from error


def _pieces(answer: httpx2.Response, skip: int, left: int) -> Iterator[bytes]:
    for piece in answer.iter_bytes():
        if skip >= len(piece):
            skip -= len(piece)
            continue
        wanted, skip = piece[skip:], 0
        if len(wanted) > left:
            raise WrongBytes("more bytes came than the file has")
        left -= len(wanted)
        yield wanted


def _whole(answer: httpx2.Response, limit: int) -> bytes:
    body = bytearray()
    for piece in answer.iter_bytes():
        body += piece
        if len(body) > limit:
            raise DownloadError("hub", "The hub's answer does not end.")
    return bytes(body)
