"""Who gets how much memory, decided before anything is loaded and once more when a step's memory is
measured. Torch-free.

Two memories are divided: the host's (store, and on `cpu` everything else too) and the device's.
On `sim` the device's memory lies in the host's, so the host must hold both.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import InvalidRequest, OutOfMemory
from engine.formats.blob import round_up
from engine.memory.budget import (
    PAGE_TOKENS,
    Budget,
    Need,
    Share,
    check_cache_rate,
    gb,
    slots_for_rate,
)

MARGIN_BYTES = 1 << 30
MARGIN_SHARE = 0.05
"""Left to the rest of the machine: this share of what is free, at most MARGIN_BYTES."""
AUTO_KV_SHARE = 0.25
"""What nobody asked for is not taken: KV sized by the solver ends at this share of what is free,
unless its floor is more."""
CHUNK_SHARE = 0.125
"""Larger chunks bring the experts over the link less often, and take memory from their slots: what
a step takes ends at this share of what is free, unless the smallest chunk takes more."""


def solve(
    need: Need,
    *,
    has_slots: bool,
    host_free: int,
    device_free: int | None = None,
    device_in_host: bool = False,
) -> Budget:
    """Divide `host_free` bytes of host memory, and the device's where it `has_slots`.

    `device_free` is what a device has free: a real one (cuda), or one that is played in host memory
    (`device_in_host`). Without it, and with slots, the device is played too, and as large as its
    contents. Raises OutOfMemory with both numbers in GB if the model, a context or KV size that was
    asked for, or the floor of the KV cannot fit; InvalidRequest for a cache rate out of range, or a
    KV size below the context.
    """
    check_cache_rate(need.moe_cache_rate)
    _check_context(need)
    store = sum(pool.stride * pool.blobs for pool in need.pools)
    own_memory = device_free is not None
    free = host_free if device_free is None else device_free
    where = "device memory" if own_memory else "host memory"
    floor = _kv_floor(need)
    # Where the device has no memory of its own, the store is one more share of the host's.
    share = Share(
        free=free,
        margin=_margin(free),
        store=0 if own_memory else store,
        dense=need.dense,
        states=need.state * need.max_sequences,
        workspace=_workspace(need, need.workspace, floor),
        buffers=need.buffers if has_slots else 0,
    )
    host = Share(free=host_free, margin=_margin(host_free), store=store, buffers=need.staging)
    if own_memory:
        _check(need, host, 0, "host memory")
    reserve = floor * need.kv_per_token
    smallest = sum(pool.stride for pool in need.pools) if has_slots else 0
    _check(need, share, reserve + smallest, where)
    notes: list[str] = []
    chunk_tokens, chunk_workspace = _chunk(need, share, share.left - reserve - smallest, notes)
    share = replace(share, workspace=_workspace(need, chunk_workspace, floor))
    slots = _slots(need, share.left - reserve, notes) if has_slots else ()
    slot_bytes = sum(count * pool.stride for count, pool in zip(slots, need.pools, strict=False))
    share = replace(share, slots=slot_bytes)
    # What is less than one more slot stays free: as context the next slot would take it back,
    # and more memory would mean a shorter context.
    grows = not need.kv_tokens and slots == (_wanted_slots(need) if has_slots else ())
    kv_tokens = _auto_kv_tokens(need, share, floor) if grows else floor
    kv, workspace = kv_tokens * need.kv_per_token, _workspace(need, chunk_workspace, kv_tokens)
    share = replace(share, kv=kv, workspace=workspace)
    context = _context(need, kv_tokens, notes)
    if not has_slots:
        return Budget(share, None, (), kv_tokens, context, chunk_tokens, tuple(notes))
    if not own_memory:
        played = replace(share, store=0, margin=0)
        share = replace(played, free=played.taken)
    if not own_memory or device_in_host:
        host = replace(host, device=share.taken)
        _check(need, host, 0, "host memory")
    return Budget(host, share, slots, kv_tokens, context, chunk_tokens, tuple(notes))


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


def _workspace(need: Need, chunk: int, kv_tokens: int) -> int:
    """Of a chunk that takes so much, with the longest context that so many tokens of KV allow."""
    context = min(round_up(need.context_tokens, PAGE_TOKENS), kv_tokens)
    return chunk + context * need.workspace_per_token


def _kv_floor(need: Need) -> int:
    """Tokens that must have room: those asked for, or the reserve."""
    if need.kv_tokens:
        return round_up(need.kv_tokens, PAGE_TOKENS)
    wanted = need.context_tokens
    if not need.context_is_asked:
        wanted = min(need.kv_reserve_tokens, wanted)
    return round_up(wanted, PAGE_TOKENS)


def _check(need: Need, share: Share, more: int, where: str) -> None:
    """Room for what is already in `share` and `more` bytes of KV and slots."""
    wanted = share.taken + more
    room = share.free - share.margin
    if wanted > room:
        raise OutOfMemory(
            f"The model needs {gb(wanted)} of {where}; {gb(room)} can be had"
            f" ({gb(share.free)} are free, {gb(share.margin)} of it stays free)."
            f" It would take: {_owners(share, more)}.",
            hint=_mends(need, share, more, wanted - room),
        )


def _owners(share: Share, more: int) -> str:
    owners = {
        "experts": share.store,
        "other weights": share.dense,
        "states": share.states,
        "workspace": share.workspace,
        "buffers": share.buffers,
        "context": more,
        "the device that is played": share.device,
    }
    return ", ".join(f"{name} {gb(size)}" for name, size in owners.items() if size)


def _mends(need: Need, share: Share, more: int, lacking: int) -> str:
    """Names the options each of which would give up as much as is lacking."""
    context = "--kv-reserve-tokens"
    if need.kv_tokens or need.context_is_asked:
        context = "--kv-tokens" if need.kv_tokens else "--context"
    gives = {
        context: min(more, (_kv_floor(need) - PAGE_TOKENS) * need.kv_per_token),
        "--max-sequences": share.states - share.states // need.max_sequences,
        "--emulate-vram": share.device,
    }
    options = [option for option, size in gives.items() if size >= lacking]
    if not options:
        return "Choose a smaller model or context, or close other programs."
    return f"Lower {' or '.join(options)}, choose a smaller model, or close other programs."


def _chunk(need: Need, share: Share, room: int, notes: list[str]) -> tuple[int, int]:
    """Tokens and workspace of the largest chunk that takes no more than its share, in `room` bytes
    beyond the smallest one's."""
    most = max(need.workspace, int(share.free * CHUNK_SHARE))
    tokens, workspace = need.chunk_tokens, need.workspace
    for larger in need.larger_chunks:
        if larger.workspace <= most and larger.workspace - need.workspace <= room:
            tokens, workspace = larger.tokens, larger.workspace
    wanted = need.larger_chunks[-1] if need.larger_chunks else None
    if wanted is not None and tokens < wanted.tokens:
        notes.append(
            f"Prompts are read {tokens} tokens at a time instead of {wanted.tokens}, for which a "
            f"step would take {gb(wanted.workspace)} instead of {gb(workspace)}."
        )
    return tokens, workspace


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
        f"context ({gb(room)} for slots, {gb(size)} wanted)."
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
