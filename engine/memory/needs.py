"""What the solver is asked to place: the runtime asks so, and so does an estimate. Torch-free."""

from __future__ import annotations

from engine.memory import budget
from engine.memory.budget import Need, PoolNeed
from engine.models.spec import ModelSpec
from engine.options import EngineOptions


def need_of(
    options: EngineOptions,
    spec: ModelSpec,
    kind: str,
    dtype: str,
    dense: int,
    pools: tuple[PoolNeed, ...],
) -> Need:
    """On a device of this `kind` (cpu, sim or cuda), with `dense` bytes outside the experts. Only
    on cuda steps are captured and experts staged."""
    captured = kind == "cuda"
    context = options.context_tokens or spec.context_tokens
    smallest, *larger = budget.chunk_needs(
        spec,
        options.prefill_chunk_tokens or budget.LARGEST_CHUNK[kind],
        options.max_sequences,
        context,
    )
    return Need(
        dense=dense,
        pools=pools,
        kv_per_token=budget.kv_bytes_per_token(spec, dtype),
        state=budget.state_bytes(spec, dtype),
        workspace=smallest.workspace,
        workspace_per_token=budget.workspace_per_token(spec, dtype),
        context_tokens=context,
        context_is_asked=options.context_tokens > 0,
        kv_tokens=options.kv_tokens,
        max_sequences=options.max_sequences,
        moe_cache_rate=options.moe_cache_rate,
        kv_reserve_tokens=options.kv_reserve_tokens,
        chunk_tokens=smallest.tokens,
        larger_chunks=tuple(larger),
        buffers=budget.buffer_bytes(spec, options.max_sequences, captured=captured),
        staging=budget.STAGING_BYTES if captured else 0,
    )
