"""What passes between a download's worker, its supervisor and the interface. Standard library and
msgspec.

Sizes are bytes, rates bytes a second, times seconds. Records cross a process boundary and lie on
disk, so they only gain fields.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to fetch. Two equal requests are one download."""

    repo: str
    """`organisation/name` on the hub."""
    revision: str = "main"
    """A branch, a tag or a commit. The commit that it names at the start is the one fetched."""
    files: tuple[str, ...] = ()
    """Patterns of file names (`*Q4_K_M*`, `config.json`). Empty: what it takes to run the model;
    where that is one of several, as with GGUF files, the download fails with `choose_files`."""
    root: str = ""
    """A folder in the layout of the hub's cache. Empty: the hub's cache itself."""

    @property
    def id(self) -> str:
        """Names this download on disk and in the interface."""
        parts = (self.repo, self.revision, self.root, *self.files)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Network(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the hub is reached. Empty fields mean what the environment says, or the default."""

    endpoint: str = ""
    """A mirror's address; else HF_ENDPOINT, else https://huggingface.co."""
    proxy: str = ""
    """Else HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY."""
    ca_file: str = ""
    """Certificates (PEM) to trust instead of the system's; else SSL_CERT_FILE."""


class Pace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a fetch."""

    streams: int = 4
    """Files that are fetched at once."""
    stall_s: float = 30.0
    """A connection without a byte for so long is given up, and made anew."""
    retry_s: float = 1.0
    """Pause before the second try of what may pass by itself; it doubles, up to a minute."""
    tries: int = 10
    """So many tries in a row that bring no byte end the download."""
    keep_free: int = 256 << 20
    """So much of the disk is left free."""


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file of the repository, as the hub's metadata has it."""

    name: str
    """Path within the repository, with `/`."""
    size: int
    digest: str
    """Lower-case hexadecimal; also the name of the file's blob in the cache."""
    sha256: bool = True
    """Else `digest` is git's blob SHA-1, which the hub has for files outside LFS."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request comes to."""

    request: Request
    commit: str
    """The commit's hash: every file is that commit's."""
    files: tuple[RemoteFile, ...] = ()

    @property
    def total(self) -> int:
        """Files of equal content lie on disk once."""
        return sum({file.digest: file.size for file in self.files}.values())


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a download failed.

    Codes: `disk_full`, `folder_unavailable` (drive not mounted, read-only), `not_found`,
    `unauthorised` (a token is wanted or is wrong), `gated` (terms to accept on the hub),
    `choose_files`, `checksum`, `changed` (the hub no longer has what was begun), `network`, `hub`
    (an answer that makes no sense), `busy` (another process fetches this model), `worker_died`.
    """

    code: str
    message: str
    hint: str = ""
    choices: tuple[RemoteFile, ...] = ()
    """With `choose_files`: what there is to choose from."""


# --- tasks: one JSON line on the worker's stdin; closing stdin or the line "stop" ends it ---


class Fetch(msgspec.Struct, frozen=True, kw_only=True, tag="fetch", omit_defaults=True):
    """Fetch, check, make ready."""

    request: Request
    network: Network = Network()
    pace: Pace = Pace()
    begun: bool = False
    """An earlier run has begun it. Where nothing of that is found, the folder is not the one it
    was, as a mount point without its drive: that is a fault then, not a new beginning."""


class LookUp(msgspec.Struct, frozen=True, kw_only=True, tag="look_up", omit_defaults=True):
    """Only ask what the request comes to; nothing is written."""

    request: Request
    network: Network = Network()
    pace: Pace = Pace()
    read: tuple[str, ...] = ()
    """Small files of the repository whose content is wanted too, such as config.json."""


class Discard(msgspec.Struct, frozen=True, kw_only=True, tag="discard", omit_defaults=True):
    """Delete what the request has fetched so far and is not ready."""

    request: Request


Task = Fetch | LookUp | Discard


# --- events: JSON lines on the worker's stdout ---


class Planned(msgspec.Struct, frozen=True, kw_only=True, tag="planned", omit_defaults=True):
    """What is going to be fetched. The last event of a `LookUp`."""

    plan: Plan
    present: int = 0
    """Bytes of it that are on disk already, not all of them checked yet."""
    free: int = 0
    """Bytes free where it goes."""
    texts: dict[str, str] = {}
    """Content of the files that `LookUp.read` named and that are there."""


class FileProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file's bytes on disk."""

    name: str
    size: int
    done: int = 0


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress", omit_defaults=True):
    """A few times a second. `done` counts bytes on disk that are what the hub sent."""

    done: int
    total: int
    fetched: int = 0
    """Bytes that came over the network in this run."""
    checking: bool = False
    """What is on disk already is being read and checked."""
    files: tuple[FileProgress, ...] = ()
    """Files whose bytes have changed since the last event."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag="waiting", omit_defaults=True):
    """Every stream waits before it tries again; the next Progress ends that."""

    reason: str
    seconds: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready", omit_defaults=True):
    """Everything is checked and in place. The last event of a `Fetch`."""

    path: str
    """What to load: the snapshot's folder, or the GGUF file."""


class Discarded(msgspec.Struct, frozen=True, kw_only=True, tag="discarded", omit_defaults=True):
    """The last event of a `Discard`."""

    freed: int = 0


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed", omit_defaults=True):
    """Last event of a task that failed. What was fetched is kept."""

    fault: Fault


class Stopped(msgspec.Struct, frozen=True, kw_only=True, tag="stopped", omit_defaults=True):
    """Last event of a task that was asked to stop. What was fetched is kept."""


Event = Planned | Progress | Waiting | Ready | Discarded | Failed | Stopped


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A download in the list that survives the app."""

    request: Request
    paused: bool = False
    begun: bool = False


# --- what the interface shows ---


class State(StrEnum):
    QUEUED = "queued"
    """Another download runs first."""
    STARTING = "starting"
    """Asks the hub what there is."""
    CHECKING = "checking"
    """Reads what is on disk already."""
    RUNNING = "running"
    WAITING = "waiting"
    """The network or the hub does not answer; it is tried again by itself."""
    PAUSING = "pausing"
    PAUSED = "paused"
    READY = "ready"
    FAILED = "failed"
    """`fault` says why; `resume` goes on from what is there."""
    CANCELLING = "cancelling"
    """Ends and deletes what it has fetched; then the job is gone."""


class Job(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A download as the interface shows it: a value, replaced at each change."""

    request: Request
    state: State = State.QUEUED
    plan: Plan | None = None
    done: int = 0
    """Bytes on disk, of all files."""
    total: int = 0
    """0 until the hub has told."""
    files: dict[str, FileProgress] = {}
    rate: float = 0.0
    """Over the last seconds."""
    left_s: float | None = None
    """At that rate."""
    reason: str = ""
    """While waiting: why."""
    retry_at: float | None = None
    """While waiting: when it is tried again, in the supervisor's clock."""
    fault: Fault | None = None
    path: str = ""
    """When ready: what to load."""

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def share(self) -> float:
        """Of all bytes, 0 to 1; 1 only when it is ready."""
        if self.state is State.READY:
            return 1.0
        return min(self.done / self.total, 0.999) if self.total else 0.0
