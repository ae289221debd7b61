"""What the hub's answers mean: which faults pass by themselves, and what to do about the others.

Addresses that the hub redirects to hold signatures: no message has one, hosts at most.
"""

from __future__ import annotations

import email.utils
import re
import ssl
import time

import httpx2

from app.core.downloads.errors import DownloadError
from app.core.downloads.records import Plan, RemoteFile, Request

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_WINDOW = re.compile(r";\s*t=(\d+)")
_MAX_PAUSE_S = 3600.0


class Transient(Exception):
    """May pass by itself. `pause_s`: what the hub asked for, if it did."""

    def __init__(self, reason: str, pause_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pause_s = pause_s


class WrongBytes(Exception):
    """What is there of the file does not go with what comes: it has to begin anew."""


def fault_of(error: httpx2.HTTPError, host: str) -> Exception:
    """What a request that got no answer, or no end of it, comes to."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return DownloadError(
                "network",
                f"The certificate of {host}, or of a host it leads to, is not trusted: "
                f"{cause.verify_message}.",
                hint="Where a company inspects the traffic, name its certificate file "
                "(SSL_CERT_FILE).",
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx2.ProxyError):
        return DownloadError(
            "network", f"The proxy refuses: {error}.", hint="Check its address and password."
        )
    if isinstance(error, httpx2.TooManyRedirects | httpx2.UnsupportedProtocol):
        return DownloadError("hub", f"{host} redirects in a way that leads nowhere.")
    if isinstance(error, httpx2.ReadTimeout):
        return Transient(f"{host} sends nothing any more")
    if isinstance(error, httpx2.ConnectTimeout):
        return Transient(f"{host} does not answer")
    return Transient(f"no connection to {host}: {str(error) or type(error).__name__}")


def require_ok(answer: httpx2.Response, request: Request, host: str) -> None:
    """Raises DownloadError or Transient for an answer that is no success."""
    status = answer.status_code
    if status in (200, 206):
        return
    what = answer.headers.get("X-Error-Code", "")
    elsewhere = answer.url.host != host
    if elsewhere and status in (400, 401, 403, 404, 410):
        # The hub signs addresses for a while only. The next try gets a new one.
        raise Transient(f"{answer.url.host} answered with {status}")
    if status in (408, 425, 429) or status >= 500:
        raise Transient(f"{host} answered with {status}", _pause(answer))
    if status == 407:
        raise DownloadError(
            "network", "The proxy wants a name and a password.", hint="http://name:password@host"
        )
    page = f"https://{host}/{request.repo}"
    if what == "GatedRepo" or status == 403:
        raise DownloadError(
            "gated",
            f"{host} does not let you read {request.repo}: its authors want to be asked.",
            hint=f"Open {page}, accept the terms, and set a token of that account that may read.",
        )
    if status == 401:
        sent = "Authorization" in answer.request.headers
        raise DownloadError(
            "unauthorised",
            f"{host} refuses the token."
            if sent
            else f"{request.repo} does not exist on {host}, or it is not public.",
            hint="Set a new token." if sent else "Check the name; for a private one set a token.",
        )
    if status == 404:
        name = (
            f"{request.repo} has no revision {request.revision!r}"
            if what == "RevisionNotFound"
            else f"{request.repo} does not exist on {host}, or not for you"
        )
        raise DownloadError("not_found", f"{name}.", hint="Check the name.")
    raise DownloadError("hub", f"{host} answered with {status}, which makes no sense here.")


def require_file(answer: httpx2.Response, plan: Plan, file: RemoteFile, host: str) -> None:
    """Raises for an answer that is not this file of this commit."""
    first = answer.history[0] if answer.history else answer
    if answer.status_code == 416:
        raise WrongBytes("the hub has no such range")
    if answer.status_code in (404, 410) and answer.url.host == host:
        raise changed(plan, file)
    require_ok(answer, plan.request, host)
    commit = first.headers.get("X-Repo-Commit", plan.commit)
    etag = first.headers.get("X-Linked-Etag", file.digest).removeprefix("W/").strip('"')
    size = first.headers.get("X-Linked-Size", str(file.size))
    if (commit, etag, size) != (plan.commit, file.digest, str(file.size)):
        raise changed(plan, file)


def changed(plan: Plan, file: RemoteFile) -> DownloadError:
    return DownloadError(
        "changed",
        f"The hub no longer has {file.name} of {plan.request.repo} as it was when this download "
        f"began (commit {plan.commit[:12]}).",
        hint="Cancel this download and begin it anew.",
    )


def bytes_before(answer: httpx2.Response, file: RemoteFile, offset: int) -> int:
    """How many of the answer's bytes come before `offset`: 0, or all where ranges are not served.

    Raises WrongBytes for an answer that announces other bytes.
    """
    encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
    length = answer.headers.get("Content-Length")
    if answer.status_code == 206:
        match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if (
            encoded
            or match is None
            or int(match[1]) != offset
            or match[3] not in ("*", str(file.size))
        ):
            raise WrongBytes("the hub sends another range than it was asked for")
        return 0
    if not encoded and length is not None and length != str(file.size):
        raise WrongBytes(f"{length} bytes are announced, and the file has {file.size}")
    return offset


def _pause(answer: httpx2.Response) -> float | None:
    """Retry-After: seconds, or a date. The hub itself says in RateLimit when its window ends, as
    draft-ietf-httpapi-ratelimit-headers has it."""
    value = answer.headers.get("Retry-After", "").strip()
    if not value:
        match = _WINDOW.search(answer.headers.get("RateLimit", ""))
        value = match[1] if match and answer.status_code == 429 else ""
    if not value:
        return None
    if value.isdecimal():
        return min(float(value), _MAX_PAUSE_S)
    try:
        until = email.utils.parsedate_to_datetime(value).timestamp()
    except ValueError:
        return None
    return min(max(0.0, until - time.time()), _MAX_PAUSE_S)
