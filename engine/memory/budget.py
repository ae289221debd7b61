"""Who gets how much memory, decided once and before anything is loaded. Torch-free.

Two memories are divided: the host's (store, and on `cpu` everything else too) and the device's.
On `sim` the device's memory lies in the host's, so the host must hold both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from engine.errors import InvalidRequest, OutOfMemory
from engine.formats.blob import ITEM_BYTES, round_up
from engine.models.spec import ModelSpec

KV_RESERVE_TOKENS = 8192
"""KV keeps room for so many tokens (or the context, if that is shorter) before experts grow."""
PAGE_TOKENS = 16
MARGIN_BYTES = 1 << 30
MARGIN_SHARE = 0.05
"""Left to the rest of the machine: this share of what is free, at most MARGIN_BYTES."""
SCORE_BYTES = 256 << 20
"""Most that the scores of one call of attention may take: a longer chunk is cut."""
AUTO_KV_SHARE = 0.25
"""What nobody asked for is not taken: KV sized by the solver ends at this share of what is free,
unless its floor is more."""


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


# --- the solver ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoolNeed:
    """Layers whose blobs have one stride share a pool of slots."""

    stride: int
    blobs: int
    """Experts of all these layers together."""


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
    """What a step takes whatever the context is."""
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
    margin: int = 0
    device: int = 0
    """On the host, for `sim`: the memory of the device that it plays."""

    @property
    def taken(self) -> int:
        owners = (self.store, self.dense, self.slots, self.kv, self.states, self.workspace)
        return sum(owners) + self.device

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
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was lowered, and why."""


def free_host_bytes(emulate_ram_bytes: int = 0) -> int:
    """Memory that programs can still get, or the figure that an option emulates."""
    return emulate_ram_bytes or int(psutil.virtual_memory().available)


def solve(need: Need, *, has_slots: bool, host_free: int, device_free: int | None = None) -> Budget:
    """Divide `host_free` bytes of host memory, and the device's where it `has_slots`.

    `device_free` is what a real device (cuda) has free. Without it, and with slots, the device is
    `sim`: its memory is part of the host's, and as large as its contents. Raises OutOfMemory with
    both numbers in GB if the model, a context or KV size that was asked for, or the floor of the KV
    cannot fit; InvalidRequest for a cache rate out of range, or a KV size below the context.
    """
    check_cache_rate(need.moe_cache_rate)
    _check_context(need)
    store = sum(pool.stride * pool.blobs for pool in need.pools)
    own_memory = device_free is not None
    free = host_free if device_free is None else device_free
    floor = _kv_floor(need)
    # Where the device has no memory of its own, the store is one more share of the host's.
    share = Share(
        free=free,
        margin=_margin(free),
        store=0 if own_memory else store,
        dense=need.dense,
        states=need.state * need.max_sequences,
        workspace=_workspace(need, floor),
    )
    host = Share(free=host_free, margin=_margin(host_free), store=store)
    if own_memory:
        _check(host, 0, "host memory")
    reserve = floor * need.kv_per_token
    smallest = sum(pool.stride for pool in need.pools) if has_slots else 0
    _check(share, reserve + smallest, "device memory" if own_memory else "host memory")
    notes: list[str] = []
    slots = _slots(need, share.left - reserve, notes) if has_slots else ()
    slot_bytes = sum(count * pool.stride for count, pool in zip(slots, need.pools, strict=False))
    share = replace(share, slots=slot_bytes)
    # What is less than one more slot stays free: as context the next slot would take it back,
    # and more memory would mean a shorter context.
    grows = not need.kv_tokens and slots == (_wanted_slots(need) if has_slots else ())
    kv_tokens = _auto_kv_tokens(need, share, floor) if grows else floor
    kv, workspace = kv_tokens * need.kv_per_token, _workspace(need, kv_tokens)
    share = replace(share, kv=kv, workspace=workspace)
    context = _context(need, kv_tokens, notes)
    if not has_slots:
        return Budget(share, None, (), kv_tokens, context, tuple(notes))
    if not own_memory:
        played = replace(share, store=0, margin=0)
        share = replace(played, free=played.taken)
        host = replace(host, device=played.taken)
    return Budget(host, share, slots, kv_tokens, context, tuple(notes))


def _check_context(need: Need) -> None:
    kv_tokens = round_up(need.kv_tokens, PAGE_TOKENS)
    if need.context_is_asked and need.kv_tokens and kv_tokens < need.context_tokens:
        raise InvalidRequest(
            f"A context of {need.context_tokens} tokens (--context) is asked for, and room for "
            f"{need.kv_tokens} tokens (--kv-tokens) that all requests share: one request of that "
            "length would not fit.",
            hint="Give --kv-tokens at least the context, or leave it out.",
            param="kv_tokens",
        )


def _workspace(need: Need, kv_tokens: int) -> int:
    """With the longest context that so many tokens of KV allow."""
    context = min(round_up(need.context_tokens, PAGE_TOKENS), kv_tokens)
    return need.workspace + context * need.workspace_per_token


def _kv_floor(need: Need) -> int:
    """Tokens that must have room: those asked for, or the reserve."""
    if need.kv_tokens:
        return round_up(need.kv_tokens, PAGE_TOKENS)
    wanted = need.context_tokens
    if not need.context_is_asked:
        wanted = min(need.kv_reserve_tokens, wanted)
    return round_up(wanted, PAGE_TOKENS)


def _check(share: Share, more: int, where: str) -> None:
    """Room for what is already in `share` and `more` bytes of KV and slots."""
    wanted = share.taken + more
    room = share.free - share.margin
    if wanted > room:
        raise OutOfMemory(
            f"The model needs {_gb(wanted)} of {where}; {_gb(room)} can be had"
            f" ({_gb(share.free)} are free, {_gb(share.margin)} of it stays free)."
            f" It would take: {_owners(share, more)}.",
            hint="Choose a smaller model or context, or close other programs.",
        )


def _owners(share: Share, more: int) -> str:
    owners = {
        "experts": share.store,
        "other weights": share.dense,
        "states": share.states,
        "workspace": share.workspace,
        "context": more,
    }
    return ", ".join(f"{name} {_gb(size)}" for name, size in owners.items() if size)


def _wanted_slots(need: Need) -> tuple[int, ...]:
    return tuple(slots_for_rate(need.moe_cache_rate, pool.blobs) for pool in need.pools)


def _slots(need: Need, room: int, notes: list[str]) -> tuple[int, ...]:
    """Slots of each pool: by the cache rate, or the same smaller share of each to fit."""
    wanted = _wanted_slots(need)
    size = sum(count * pool.stride for count, pool in zip(wanted, need.pools, strict=True))
    if size <= room:
        return wanted
    # One slot each is certain to fit; what is left over goes by each pool's wish.
    spare = room - sum(pool.stride for pool in need.pools)
    extra = size - sum(pool.stride for pool in need.pools)
    fitting = tuple(1 + (count - 1) * spare // extra for count in wanted)
    notes.append(
        f"Of {sum(wanted)} expert slots {sum(fitting)} fit beside the other weights and the "
        f"context ({_gb(room)} for slots, {_gb(size)} wanted)."
    )
    return fitting


def _auto_kv_tokens(need: Need, fixed: Share, floor: int) -> int:
    """As many tokens as all sequences could use, as far as a fair share of memory goes."""
    useful = round_up(need.context_tokens, PAGE_TOKENS) * need.max_sequences
    if need.kv_per_token == 0:
        return useful
    room = min(fixed.left, int(fixed.free * AUTO_KV_SHARE))
    # A token beyond the floor wants workspace too, until the longest context has its own.
    context, per_token = round_up(need.context_tokens, PAGE_TOKENS), need.workspace_per_token
    counted = min(context, floor)
    fair = (room + counted * per_token) // (need.kv_per_token + per_token)
    if fair > context:
        fair = (room - (context - counted) * per_token) // need.kv_per_token
    return max(min(useful, fair) // PAGE_TOKENS * PAGE_TOKENS, floor)


def _context(need: Need, kv_tokens: int, notes: list[str]) -> int:
    if need.context_tokens <= kv_tokens:
        return need.context_tokens
    notes.append(
        f"The longest request is {kv_tokens} tokens instead of {need.context_tokens}: "
        "that is what the memory for the context holds."
    )
    return kv_tokens


def _margin(free: int) -> int:
    return min(MARGIN_BYTES, int(free * MARGIN_SHARE))


def _gb(nbytes: int) -> str:
    for step, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= step:
            return f"{nbytes / step:.2f} {unit}"
    return f"{nbytes} bytes"
