"""What has a claim on memory, and what each owner gets: the records that `solver` works on, and the
arithmetic of what a model needs. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

import psutil

from engine.errors import InvalidRequest
from engine.formats.blob import ITEM_BYTES, round_up
from engine.models.spec import ModelSpec

KV_RESERVE_TOKENS = 8192
"""KV keeps room for so many tokens (or the context, if that is shorter) before experts grow."""
PAGE_TOKENS = 16
SCORE_BYTES = 256 << 20
"""Most that the scores of one call of attention may take: a longer chunk is cut."""
SMALLEST_CHUNK = 128
"""Prompts are not cut smaller to save memory."""
LARGEST_CHUNK = {"cpu": 512, "sim": 512, "cuda": 8192}
"""Tokens of a prompt in one step, where nobody names another number and memory has room. On a GPU
each chunk brings the experts that are missing over the link once more."""
GRAPH_BYTES = 96 << 20
"""What captured steps take beside logits: eight graphs of a 40-layer model and their memory."""
STAGING_BYTES = 256 << 20
"""Pinned memory of the host beside the store: buffers on the way to a GPU."""


# --- what a model needs ------------------------------------------------------------------------


def kv_bytes_per_token(spec: ModelSpec, dtype: str) -> int:
    """Keys and values of one token in all full-attention layers, in the compute dtype."""
    heads = spec.attention.kv_heads * spec.attention.head_dim
    return 2 * heads * len(spec.attention_layers) * ITEM_BYTES[dtype]


def state_bytes(spec: ModelSpec, dtype: str) -> int:
    """One sequence's states of all recurrent layers: float32 delta rule, compute dtype conv."""
    delta = spec.gated_delta
    if delta is None:
        return 0
    layers = len(spec.recurrent_layers)
    channels = 2 * delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim
    conv = layers * channels * (delta.conv_kernel - 1) * ITEM_BYTES[dtype]
    recurrent = layers * delta.value_heads * delta.key_dim * delta.value_dim * 4
    return recurrent + round_up(conv, 4)


def dense_parameters(spec: ModelSpec) -> int:
    """Weights outside the routed experts. The matrices; vectors (norms, biases) are left out, they
    are below a thousandth."""
    hidden = spec.hidden
    total = spec.vocab_size * hidden * (1 if spec.tie_embeddings else 2)
    for layer in spec.layers:
        total += _mixer_parameters(spec, layer.mixer == "attention")
        if layer.feed_forward == "dense":
            total += 3 * hidden * spec.dense_intermediate
        elif spec.moe is not None:
            total += hidden * (spec.moe.experts + 3 * spec.moe.shared_intermediate)
    return total


def _mixer_parameters(spec: ModelSpec, attention: bool) -> int:
    if attention:
        a = spec.attention
        query = a.heads * a.head_dim
        return spec.hidden * (query * (3 if a.output_gate else 2) + 2 * a.kv_heads * a.head_dim)
    delta = spec.gated_delta
    if delta is None:
        return 0
    keys, values = delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim
    projections = 2 * keys + 3 * values + 2 * delta.value_heads
    return spec.hidden * projections + (2 * keys + values) * delta.conv_kernel


def _float32_parameters(spec: ModelSpec) -> int:
    """Those of the dense weights that are float32 in any compute dtype: routers, convolutions."""
    total = 0
    if spec.moe is not None:
        total += len(spec.moe_layers) * spec.moe.experts * spec.hidden
    if spec.gated_delta is not None:
        delta = spec.gated_delta
        channels = 2 * delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim
        total += len(spec.recurrent_layers) * channels * delta.conv_kernel
    return total


def dense_bytes(spec: ModelSpec, dtype: str) -> int:
    """Upper bound of the weights outside the routed experts: none is held quantised."""
    item = ITEM_BYTES[dtype]
    return dense_parameters(spec) * item + _float32_parameters(spec) * (4 - item)


def workspace_per_token(spec: ModelSpec, dtype: str) -> int:
    """What a step allocates for each token of the longest context: one layer's copy of a
    sequence's keys and values, in order. One sequence at a time is computed, so there is one."""
    if not spec.attention_layers:
        return 0
    return 2 * spec.attention.kv_heads * spec.attention.head_dim * ITEM_BYTES[dtype]


def workspace_bytes(
    spec: ModelSpec, chunk_tokens: int, max_sequences: int, context_tokens: int
) -> int:
    """Upper bound of what one step allocates and frees again, for the torch reference kernels,
    beside `workspace_per_token`.

    Float32 activations of the widest places for a full chunk, the rows of its routed experts, one
    decoded matrix or group of experts, attention's scores, and the logits of every sequence.
    """
    a = spec.attention
    widest = max(
        8 * spec.hidden,
        4 * (a.heads + a.kv_heads) * a.head_dim,
        3 * spec.dense_intermediate,
    )
    if spec.gated_delta is not None:
        delta = spec.gated_delta
        width = delta.key_heads * delta.key_dim + delta.value_heads * delta.value_dim
        widest = max(widest, 6 * width)
    if spec.moe is not None:
        moe = spec.moe
        widest += moe.top_k * (4 * spec.hidden + 3 * moe.intermediate)
    decoded = max(32 << 20, 3 * 4 * spec.hidden * (spec.moe.intermediate if spec.moe else 0))
    tokens = chunk_tokens + max_sequences
    scores = 0
    if spec.attention_layers:
        scores = min(SCORE_BYTES, 4 * a.heads * min(chunk_tokens, context_tokens) * context_tokens)
    return 4 * tokens * widest + decoded + scores + 3 * 4 * max_sequences * spec.vocab_size


def chunk_needs(
    spec: ModelSpec, most_tokens: int, max_sequences: int, context_tokens: int
) -> tuple[ChunkNeed, ...]:
    """Chunks in which prompts may be read, ascending: `most_tokens`, its half and so on."""
    sizes = [most_tokens]
    while sizes[-1] // 2 >= SMALLEST_CHUNK:
        sizes.append(sizes[-1] // 2)
    return tuple(
        ChunkNeed(tokens, workspace_bytes(spec, tokens, max_sequences, context_tokens))
        for tokens in reversed(sizes)
    )


def buffer_bytes(spec: ModelSpec, max_sequences: int, *, captured: bool) -> int:
    """Small things that stay: the tables of residency and, where steps are `captured`, the memory
    of their graphs."""
    blobs = spec.moe.experts * len(spec.moe_layers) if spec.moe is not None else 0
    tables = 7 * 4 * blobs
    return tables + (GRAPH_BYTES + 3 * 4 * max_sequences * spec.vocab_size if captured else 0)


def slots_for_rate(cache_rate: float, blobs: int) -> int:
    """Slots that a share of all experts comes to, rounded down, and at least one.

    Raises InvalidRequest for a rate outside 0 < rate <= 1.
    """
    check_cache_rate(cache_rate)
    # 0.29 * 100 is 28.999...: the share was meant exactly.
    return max(1, int(cache_rate * blobs + 1e-6))


def check_cache_rate(cache_rate: float) -> None:
    if not 0 < cache_rate <= 1:
        raise InvalidRequest(
            f"moe_cache_rate is {cache_rate}; it must be above 0 and at most 1.",
            hint="It is the share of all experts that have a slot on the device.",
            param="moe_cache_rate",
        )


# --- what is divided ---------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolNeed:
    """Layers whose blobs have one stride share a pool of slots."""

    stride: int
    blobs: int
    """Experts of all these layers together."""


@dataclass(frozen=True)
class ChunkNeed:
    tokens: int
    """Of a prompt that one step reads."""
    workspace: int
    """Bytes that such a step takes whatever the context is."""


@dataclass(frozen=True)
class Need:
    """What a model and its options ask for. Sizes in bytes unless the name says tokens."""

    dense: int
    """Weights outside the routed experts, as they will be held."""
    pools: tuple[PoolNeed, ...]
    kv_per_token: int
    state: int
    """Of one sequence."""
    workspace: int
    """What a step takes whatever the context is, with the smallest chunk."""
    context_tokens: int
    """Longest request."""
    workspace_per_token: int = 0
    """And for each token of the longest context that is given."""
    context_is_asked: bool = False
    """The user named this context: refuse rather than lower it."""
    kv_tokens: int = 0
    """0: the solver decides."""
    max_sequences: int = 8
    moe_cache_rate: float = 1.0
    kv_reserve_tokens: int = KV_RESERVE_TOKENS
    chunk_tokens: int = SMALLEST_CHUNK
    """The smallest chunk."""
    larger_chunks: tuple[ChunkNeed, ...] = ()
    """Others to choose from, ascending."""
    buffers: int = 0
    """Graphs and tables, on the device."""
    staging: int = 0
    """Pinned buffers, in host memory."""

    @property
    def chunks(self) -> tuple[ChunkNeed, ...]:
        """All to choose from, ascending."""
        return ChunkNeed(self.chunk_tokens, self.workspace), *self.larger_chunks

    def with_workspace(self, measured: int, estimated: int, chunk_tokens: int) -> Need:
        """The same with estimates of a step's memory corrected by what one took with a chunk of so
        many tokens: other chunks are taken to need as much for a token."""
        share = Fraction(measured, max(1, estimated))
        (proven,) = (chunk for chunk in self.chunks if chunk.tokens == chunk_tokens)
        per_token = proven.workspace * share / chunk_tokens
        smallest, *larger = (
            ChunkNeed(chunk.tokens, ceil(per_token * chunk.tokens)) for chunk in self.chunks
        )
        return replace(
            self,
            workspace=smallest.workspace,
            workspace_per_token=ceil(self.workspace_per_token * share),
            larger_chunks=tuple(larger),
        )


@dataclass(frozen=True)
class Share:
    """One memory, divided. What is not given to anybody stays free."""

    free: int
    """What there was to divide."""
    store: int = 0
    dense: int = 0
    slots: int = 0
    kv: int = 0
    states: int = 0
    workspace: int = 0
    buffers: int = 0
    """On a device graphs and tables, on the host pinned buffers."""
    margin: int = 0
    """Left to the rest of the machine."""
    device: int = 0
    """On the host, for `sim`: the memory of the device that it plays."""

    @property
    def taken(self) -> int:
        weights = self.store + self.dense + self.slots
        return weights + self.kv + self.states + self.workspace + self.buffers + self.device

    @property
    def left(self) -> int:
        return self.free - self.margin - self.taken


@dataclass(frozen=True)
class Budget:
    host: Share
    device: Share | None
    """None on `cpu`, where the host's memory holds everything."""
    slots: tuple[int, ...]
    """Of each pool; empty on `cpu`."""
    kv_tokens: int
    """A whole number of pages."""
    context_tokens: int
    chunk_tokens: int
    """Of a prompt, in one step."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was lowered, and why."""


def free_host_bytes(emulate_ram_bytes: int = 0) -> int:
    """Memory that programs can still get, or the figure that an option emulates."""
    return emulate_ram_bytes or int(psutil.virtual_memory().available)


def gb(nbytes: int) -> str:
    """In the unit that fits."""
    for step, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= step:
            return f"{nbytes / step:.2f} {unit}"
    return f"{nbytes} bytes"
