"""The typed records that pass between server and runtime, and the frames that carry them.

A frame is a 4-byte little-endian length and that many bytes of MessagePack: a list of records.
Records only ever gain fields with defaults; none is renamed or removed.
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

from engine.errors import ErrorRecord
from engine.options import EngineOptions

MAX_FRAME_BYTES = 64 << 20


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one request picks its tokens. Defaults change nothing about the model's distribution."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    bias: dict[int, float] = {}
    """Added to the logits of these token ids before anything else."""


# --- commands: server to runtime -------------------------------------------------------------


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Configure(Command, tag="configure", frozen=True):
    """First on the pipe; the runtime loads the model and answers Progress, then Ready or Fatal."""

    options: EngineOptions


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much may be thought before an answer."""

    tokens: int
    """Most tokens within the tags; the closing one follows."""
    closing: list[int]
    """Ids of the closing tag."""
    end: str
    """What ends thinking wherever it stands in it: a pattern of the `regex` library, as the next
    two are."""
    call: str = ""
    """The header of a call, which ends thinking too; empty: there are no calls."""
    opening: str = ""
    """What the output begins with where it thinks; empty: the prompt has opened it."""
    marks: list[int] = []
    """Ids of control tokens. In patterns, and in the text that they are looked for in, U+D800 is
    the first, U+D801 the second; other control tokens have no text."""


class Submit(Command, tag="submit", frozen=True):
    request: int
    tokens: list[int]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_tokens: list[int] = []
    """Ids that end the output; the id is not part of the text. Empty ignores the model's ends."""
    logprobs: int = -1
    """-1: none; 0: the chosen token's; n: and those of the n likeliest."""
    grammar: str = ""
    """What the output must be: JSON of a GrammarDocument; empty: anything. Only after
    UseVocabulary."""
    thinking: ThinkingBudget | None = None
    """None: without a limit. Only after UseVocabulary."""
    compiled_beside: list[str] = []
    """Further GrammarDocuments, to which the output is not held; one that cannot be compiled
    refuses the request. Only after UseVocabulary."""

    @property
    def compiles(self) -> bool:
        """Whether there is a grammar to be compiled."""
        return bool(self.grammar or self.compiled_beside)


class GrammarSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a request that a grammar was made of, so that a fault can be told in its terms."""

    param: str
    """The request's field."""
    what: str
    """Begins the sentence about a fault: `The schema of the tool 'add'`."""
    json_schema: Any = None


class GrammarDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grammar for a whole answer, in llguidance's terms."""

    start: str
    """Lark with a rule `start`."""
    named: dict[str, dict[str, Any]] = {}
    """Grammars that it refers to as @name: `{"json_schema": ...}` or `{"lark_grammar": ...}`."""
    sources: list[GrammarSource] = []


class UseVocabulary(Command, tag="use_vocabulary", frozen=True):
    """What tokens stand for: once to each runtime, before its first request with a grammar or a
    thinking budget."""

    tokens: list[bytes]
    """UTF-8 bytes by token id, possibly part of a character; b"" for ids that stand for nothing."""
    special: list[int]
    """Ids of control tokens, whose bytes are their spelling: text never means them."""
    ends: list[int]
    """Ids that end an answer."""


class Cancel(Command, tag="cancel", frozen=True):
    """The client is gone. Nothing more is sent for this request but one Finished."""

    request: int


class StopAt(Command, tag="stop_at", frozen=True):
    """A stop string matched: the output ends after `keep` sampled tokens; later ones are withdrawn.

    The runtime answers Finished with reason `stop` and `completion_tokens` = keep.
    """

    request: int
    keep: int


class ReportResidency(Command, tag="report_residency", frozen=True):
    """Ask for one Residency event."""


class Shutdown(Command, tag="shutdown", frozen=True):
    pass


# --- events: runtime to server ---------------------------------------------------------------


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Progress(Event, tag="progress", frozen=True):
    """Loading: `done` of `total` in `unit` of this phase."""

    phase: Literal["starting", "reading", "experts", "warming"]
    done: int = 0
    total: int = 0
    unit: str = "bytes"


class Ready(Event, tag="ready", frozen=True):
    """The model runs."""

    family: str
    device: str
    dtype: str
    context_tokens: int
    kv_tokens: int
    vocab_size: int
    load_seconds: float
    notes: list[str] = []
    """Sentences worth a log line: tensors skipped knowingly, limits lowered."""
    model_context_tokens: int = 0
    """The model's own limit, to which options or memory may have given a lower one."""


class Fatal(Event, tag="fatal", frozen=True):
    """The runtime ends after this record."""

    error: ErrorRecord


class Admitted(Event, tag="admitted", frozen=True):
    request: int
    prompt_tokens: int
    cached_tokens: int = 0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    token: int
    logprob: float
    """Natural logarithm, of the model's own distribution (before temperature and penalties)."""


class Sampled(Event, tag="sampled", frozen=True):
    request: int
    token: int
    logprob: float | None = None
    top: list[TokenLogprob] = []


class Finished(Event, tag="finished", frozen=True):
    """`stop`: an end token or StopAt; `length`: max_tokens or the context is full."""

    request: int
    reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    completion_tokens: int
    stop_token: int | None = None
    """The end token that was sampled; it was never sent as Sampled and is not counted."""


class RequestFailed(Event, tag="request_failed", frozen=True):
    """This request ends with a reason; the engine goes on."""

    request: int
    error: ErrorRecord


class StepStarted(Event, tag="step_started", frozen=True):
    """Heartbeat. The server's watchdog measures the time to the matching StepEnded."""

    step: int
    prefill_tokens: int = 0
    decode_sequences: int = 0


class StepEnded(Event, tag="step_ended", frozen=True):
    step: int
    seconds: float


class LayerResidency(msgspec.Struct, frozen=True, kw_only=True):
    layer: int
    resident: list[int]
    """Experts of this layer that have a slot."""


class Residency(Event, tag="residency", frozen=True):
    experts: int = 0
    """Experts a layer."""
    layers: list[LayerResidency] = []
    generation: int = 0


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the engine tells about itself. Additive only; units are in the names.

    `vram_*` are of the device that computes: real for cuda, emulated for sim, 0 for cpu, where the
    same owners are under `ram_*`. Rates are over the last two seconds. Counters are since the
    start: as the runtime reports them since its own, as the server tells them since the server's.
    """

    # filled by the server
    state: str = "starting"
    """starting, loading, ready, restarting, failed, stopped"""
    model: str = ""
    server_uptime_s: float = 0.0
    runtime_pid: int = 0
    runtime_restarts: int = 0
    runtime_restarted_at: float = 0.0
    """When the latest restart began, in seconds since 1970; 0: there was none."""
    last_error: str = ""
    # what runs
    device: str = ""
    dtype: str = ""
    family: str = ""
    requests_running: int = 0
    requests_waiting: int = 0
    requests_finished: int = 0
    """Ended without an error: answered, stopped, or cancelled by the client."""
    requests_failed: int = 0
    """Refused, or ended by an error."""
    steps: int = 0
    # speed
    decode_tokens: int = 0
    """Tokens sampled: also a prompt's first one, and end tokens, which no answer contains."""
    prefill_tokens: int = 0
    """Prompt tokens computed, again after a preemption or a failed step too."""
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    ttft_s: float = 0.0
    """Time to first token of the newest request, from admission to the queue."""
    ttft_worst_s: float = 0.0
    # memory by owner
    vram_total_bytes: int = 0
    vram_dense_bytes: int = 0
    vram_expert_bytes: int = 0
    vram_kv_bytes: int = 0
    vram_snapshot_bytes: int = 0
    vram_workspace_bytes: int = 0
    vram_graph_bytes: int = 0
    """What captured steps hold."""
    vram_overhead_bytes: int = 0
    """The driver's context and kernels, of this runtime."""
    vram_other_bytes: int = 0
    """Other programs'."""
    ram_total_bytes: int = 0
    ram_available_bytes: int = 0
    ram_expert_store_bytes: int = 0
    ram_expert_pinned_bytes: int = 0
    """Of the store, what the GPU reads by itself."""
    ram_expert_locked_bytes: int = 0
    """Of the rest of the store, what is never swapped out."""
    ram_dense_bytes: int = 0
    ram_kv_bytes: int = 0
    ram_snapshot_bytes: int = 0
    ram_runtime_bytes: int = 0
    """Resident set of the runtime process."""
    kv_tokens_used: int = 0
    kv_tokens_total: int = 0
    prefill_chunk_tokens: int = 0
    """Most tokens of a prompt in one step."""
    emulated: bool = False
    """The device is played (sim), or its memory or link are: figures are not of a real GPU."""
    # the channel
    expert_slots: int = 0
    expert_slots_used: int = 0
    expert_total: int = 0
    expert_hits: int = 0
    expert_misses: int = 0
    expert_fills: int = 0
    expert_hit_rate: float = 0.0
    """Over the last two seconds with traffic; 0 where nothing was routed yet."""
    link_bytes: int = 0
    link_bytes_per_s: float = 0.0
    """Over all the time, with what else the steps did."""
    gather_us_per_step: float = 0.0
    """What fetching absent experts took in a step, by the device's clock, over the last two seconds
    with traffic. Steps that stream experts ahead of their layers fetch none."""
    gather_bytes_per_s: float = 0.0
    """The link's rate while they were fetched."""
    host_bytes_per_s: float = 0.0
    cpu_share: float = 0.0
    """Share of routed experts that the CPU computed."""


class StatsReport(Event, tag="stats", frozen=True):
    stats: Stats


AnyCommand = Configure | UseVocabulary | Submit | Cancel | StopAt | ReportResidency | Shutdown
AnyEvent = (
    Progress
    | Ready
    | Fatal
    | Admitted
    | Sampled
    | Finished
    | RequestFailed
    | StepStarted
    | StepEnded
    | Residency
    | StatsReport
)

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(list[AnyCommand])
_events = msgspec.msgpack.Decoder(list[AnyEvent])
_header = struct.Struct("<I")
HEADER_BYTES = _header.size


def pack(records: list[AnyCommand] | list[AnyEvent]) -> bytes:
    """One frame, header included."""
    body = _encoder.encode(records)
    return _header.pack(len(body)) + body


def body_length(header: bytes) -> int:
    """Bytes of the body that follows this header. Raises ValueError on a broken stream."""
    (length,) = _header.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return int(length)


def unpack_commands(body: bytes) -> list[AnyCommand]:
    return _commands.decode(body)


def unpack_events(body: bytes) -> list[AnyEvent]:
    return _events.decode(body)
