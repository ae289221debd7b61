"""From options to an engine's parts: open, describe, divide the memory, place, prove."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch

from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.errors import InvalidRequest, OutOfMemory
from engine.experts.runtime import ExpertRuntime
from engine.experts.store import LayerPlan, plan_layers, pool_needs
from engine.formats.blob import PLAIN_FORMATS
from engine.formats.checkpoint import Checkpoint, open_checkpoint
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.memory import budget as budgeting
from engine.memory.budget import PAGE_TOKENS, Budget, Need
from engine.memory.device import Device, resolve_device
from engine.messages import Progress, Ready
from engine.models.loader import FLOAT32_WEIGHTS, keeps_blocks
from engine.models.model import Model
from engine.models.registry import build_model, check_model, describe, expert_tensors, family_of
from engine.models.spec import ModelSpec
from engine.options import DtypeName, EngineOptions
from engine.paths import demo_model
from engine.runtime import faults
from engine.runtime.parts import Parts
from engine.runtime.threads import apply_threads
from engine.scheduler.limits import Limits

Report = Callable[[Progress], None]


def load(options: EngineOptions, on_progress: Report | None = None) -> Parts:
    """Everything an engine needs. Raises the typed errors that Engine.load names."""
    report = on_progress or (lambda _: None)
    begin = time.monotonic()
    report(Progress(phase="starting"))
    check_options(options)
    apply_threads(options.threads)
    checkpoint = open_checkpoint(model_path(options.model))
    spec = describe(checkpoint)
    check_model(checkpoint, spec)
    device = resolve_device(options.device)
    dtype = compute_dtype(options.dtype, device)
    plans = plan_layers(partial(expert_tensors, spec, checkpoint), spec.moe_layers)
    budget = divide_memory(options, checkpoint, spec, device, dtype, plans)
    experts, model = _place(
        checkpoint, spec, device, dtype, plans, budget, report, lock=options.lock_memory
    )
    states = None
    if spec.recurrent_layers:
        states = StatePool(spec, options.max_sequences, device.torch, dtype)
    limits = Limits(
        context_tokens=budget.context_tokens,
        kv_tokens=budget.kv_tokens,
        vocab_size=spec.vocab_size,
        chunk_tokens=options.prefill_chunk_tokens,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
    )
    parts = Parts(
        ready=_ready(spec, device, dtype, limits, budget),
        limits=limits,
        device=device,
        budget=budget,
        model=model,
        dense_bytes=model.dense_bytes,
        kv=KvPages(spec, budget.kv_tokens // PAGE_TOKENS, PAGE_TOKENS, device.torch, dtype),
        states=states,
        experts=experts,
        top_k=spec.moe.top_k if spec.moe is not None else 0,
    )
    if device.kind == "cuda":
        report(Progress(phase="warming", total=1, unit="chunks"))
        prove(parts)
        report(Progress(phase="warming", done=1, total=1, unit="chunks"))
    del checkpoint
    # A checkpoint and its view know each other: until they are collected, their mapped files count
    # as memory of this process. What is left lives as long, so later collections may skip it.
    gc.collect()
    gc.freeze()
    parts.ready = msgspec.structs.replace(parts.ready, load_seconds=time.monotonic() - begin)
    return parts


def _place(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    device: Device,
    dtype: torch.dtype,
    plans: list[LayerPlan],
    budget: Budget,
    report: Report,
    *,
    lock: bool,
) -> tuple[ExpertRuntime | None, Model]:
    """Read all weights: routed experts into the store, the others onto the device."""

    def experts_read(done: int, total: int) -> None:
        report(Progress(phase="experts", done=done, total=total))

    def layers_placed(done: int, total: int) -> None:
        report(Progress(phase="reading", done=done, total=total, unit="layers"))

    experts = None
    if plans:
        source = partial(expert_tensors, spec, checkpoint)
        experts = ExpertRuntime.load(
            source,
            plans,
            device,
            slots=budget.slots,
            progress=experts_read,
            file_range=checkpoint.file_range,
            lock=lock,
        )
    return experts, build_model(checkpoint, spec, device.torch, dtype, experts, layers_placed)


def _ready(
    spec: ModelSpec, device: Device, dtype: torch.dtype, limits: Limits, budget: Budget
) -> Ready:
    return Ready(
        family=spec.family,
        device=device.kind,
        dtype=_dtype_name(dtype),
        context_tokens=limits.request_tokens,
        kv_tokens=limits.kv_tokens,
        vocab_size=spec.vocab_size,
        load_seconds=0.0,
        notes=[*spec.notes, *budget.notes],
        model_context_tokens=spec.context_tokens,
    )


def check_options(options: EngineOptions) -> None:
    """Raises InvalidRequest that names the option."""
    budgeting.check_cache_rate(options.moe_cache_rate)
    least = {
        "max_sequences": 1,
        "max_waiting": 0,
        "context_tokens": 0,
        "kv_tokens": 0,
        "prefill_chunk_tokens": 1,
        "threads": 0,
        "emulate_ram_bytes": 0,
    }
    for name, lowest in least.items():
        value = getattr(options, name)
        if value < lowest:
            raise InvalidRequest(f"{name} is {value}; it must be at least {lowest}.", param=name)


def model_path(name: str) -> Path:
    """The bundled model `demo`, or the path that the name is."""
    return demo_model() if name == "demo" else Path(name).expanduser()


def compute_dtype(name: DtypeName, device: Device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU and float32 where a CPU computes, which has no fast product of
    16-bit rows in torch without AMX."""
    if name == "auto":
        return torch.float32 if device.in_host_memory else torch.bfloat16
    return torch.float32 if name == "float32" else torch.bfloat16


def divide_memory(
    options: EngineOptions,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    device: Device,
    dtype: torch.dtype,
    plans: list[LayerPlan],
) -> Budget:
    """Who gets how much. Raises OutOfMemory; InvalidRequest for a context beyond the model's or
    beyond the KV size asked for."""
    if options.context_tokens > spec.context_tokens:
        raise InvalidRequest(
            f"A context of {options.context_tokens} tokens is asked for; this model ends at "
            f"{spec.context_tokens}.",
            param="context_tokens",
        )
    name = _dtype_name(dtype)
    context = options.context_tokens or spec.context_tokens
    need = Need(
        dense=_dense_bytes(checkpoint, dtype, device.torch),
        pools=pool_needs(plans),
        kv_per_token=budgeting.kv_bytes_per_token(spec, name),
        state=budgeting.state_bytes(spec, name),
        workspace=budgeting.workspace_bytes(
            spec, options.prefill_chunk_tokens, options.max_sequences, context
        ),
        workspace_per_token=budgeting.workspace_per_token(spec, name),
        context_tokens=context,
        context_is_asked=options.context_tokens > 0,
        kv_tokens=options.kv_tokens,
        max_sequences=options.max_sequences,
        moe_cache_rate=options.moe_cache_rate,
    )
    return budgeting.solve(
        need,
        has_slots=device.has_slots,
        host_free=budgeting.free_host_bytes(options.emulate_ram_bytes),
        device_free=None if device.in_host_memory else torch.cuda.mem_get_info(device.torch)[0],
    )


def prove(parts: Parts) -> None:
    """The last full chunk of the longest request: memory that is too small is found at the start.

    Raises OutOfMemory.
    """
    end = parts.limits.request_tokens
    tokens = min(parts.limits.chunk_tokens, end)
    device = parts.device.torch
    pages = torch.arange(parts.kv.pages_for(end), device=device)
    rows = torch.arange(tokens, device=device)
    batch = Batch(
        tokens=rows % parts.limits.vocab_size,
        positions=rows + (end - tokens),
        sequences=(SequenceSlice(0, tokens, end - tokens, pages, 0),),
        logit_rows=rows[-1:],
    )
    try:
        with torch.inference_mode():
            parts.model.forward(batch, parts.kv, parts.states).cpu()
    except Exception as error:
        if not faults.is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"The last {tokens} tokens of a context of {end} do not fit beside the model: {error}",
            hint="Lower --moe-cache-rate, --context or the prefill chunk.",
        ) from error


def _dense_bytes(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> int:
    """Everything but routed experts as it will be held: plain weights in the compute dtype (at
    most float32 for vectors), routers and convolutions in float32, quantised ones as stored, but
    GGUF's blocks as plain weights where nothing multiplies with them."""
    view = family_of(checkpoint).view(checkpoint)
    total = 0
    for name in view.names():
        if ".mlp.experts." in name:
            continue
        info = view.info(name)
        unpacked = info.dtype.lower() in GGUF_BLOCKS and not keeps_blocks(device)
        if info.dtype in PLAIN_FORMATS or unpacked:
            weights = 1
            for extent in info.shape:
                weights *= extent
            narrow = len(info.shape) > 1 and not name.endswith(FLOAT32_WEIGHTS)
            total += weights * (dtype.itemsize if narrow else 4)
        else:
            total += info.nbytes
    return total


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
