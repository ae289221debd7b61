"""From options to an engine's parts: open, describe, divide the memory, place, prove."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.errors import InvalidRequest
from engine.experts.runtime import ExpertRuntime
from engine.experts.store import LayerPlan, plan_layers, pool_needs
from engine.formats.blob import PLAIN_FORMATS
from engine.formats.checkpoint import Checkpoint, open_checkpoint
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.memory import budget as budgeting
from engine.memory.budget import PAGE_TOKENS, Budget, Need
from engine.memory.device import Device, resolve_device
from engine.memory.device_memory import DeviceMemory
from engine.memory.needs import need_of
from engine.memory.solver import solve
from engine.messages import Progress, Ready
from engine.models.loader import FLOAT32_WEIGHTS, keeps_blocks
from engine.models.model import Model
from engine.models.registry import (
    build_model,
    check_model,
    describe,
    expert_tensors,
    first_layers,
    hub_view,
)
from engine.models.spec import ModelSpec
from engine.options import DtypeName, EngineOptions
from engine.paths import demo_model
from engine.runtime.parts import Parts
from engine.runtime.proving import prove, settle
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
    checkpoint, spec = open_model(options)
    device = resolve_device(options.device)
    check_emulation(options, device)
    memory = DeviceMemory(device, options.emulate_vram_bytes)
    dtype = compute_dtype(options.dtype, device)
    plans = plan_layers(partial(expert_tensors, spec, checkpoint), spec.moe_layers)
    need = memory_need(options, checkpoint, spec, device, dtype, plans)
    divide = partial(
        solve,
        has_slots=device.has_slots,
        host_free=budgeting.free_host_bytes(options.emulate_ram_bytes),
        device_free=memory.free(),
        device_in_host=device.in_host_memory,
    )
    budget = divide(need)
    experts, model = _place(options, checkpoint, spec, device, dtype, plans, budget, report)
    # On a real GPU, or one that is played to be of some size, the budget is not taken on trust.
    proves = device.kind == "cuda" or memory.emulated
    parts = _parts(options, spec, device, memory, dtype, budget, model, experts, grows=proves)
    if proves:
        report(Progress(phase="warming", total=1, unit="chunks"))
        if memory.resizes:
            settle(parts, need, divide)
        else:
            prove(parts)
        report(Progress(phase="warming", done=1, total=1, unit="chunks"))
        if experts is not None:
            experts.fill_all()
    del checkpoint
    # A checkpoint and its view know each other: until they are collected, their mapped files count
    # as memory of this process. What is left lives as long, so later collections may skip it.
    gc.collect()
    gc.freeze()
    seconds = time.monotonic() - begin
    parts.ready = _ready(spec, device, dtype, parts.limits, parts.budget, seconds)
    return parts


def open_model(options: EngineOptions) -> tuple[Checkpoint, ModelSpec]:
    """The model's checked files, and what it is. Raises the typed errors of both."""
    checkpoint = open_checkpoint(model_path(options.model))
    spec = describe(checkpoint)
    if options.layers:
        spec = first_layers(checkpoint, spec, options.layers)
    check_model(checkpoint, spec)
    return checkpoint, spec


def _parts(
    options: EngineOptions,
    spec: ModelSpec,
    device: Device,
    memory: DeviceMemory,
    dtype: torch.dtype,
    budget: Budget,
    model: Model,
    experts: ExpertRuntime | None,
    *,
    grows: bool,
) -> Parts:
    """Room for context beside what is placed. `grows`: another budget may give it more."""
    states = None
    if spec.recurrent_layers:
        states = StatePool(spec, options.max_sequences, device.torch, dtype)
    longest = options.context_tokens or spec.context_tokens
    useful = options.max_sequences * -(-longest // PAGE_TOKENS)
    limits = Limits(
        context_tokens=budget.context_tokens,
        kv_tokens=budget.kv_tokens,
        vocab_size=spec.vocab_size,
        chunk_tokens=budget.chunk_tokens,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
    )
    return Parts(
        ready=_ready(spec, device, dtype, limits, budget),
        limits=limits,
        device=device,
        memory=memory,
        budget=budget,
        model=model,
        dense_bytes=model.dense_bytes,
        kv=KvPages(
            spec,
            budget.kv_tokens // PAGE_TOKENS,
            PAGE_TOKENS,
            device.torch,
            dtype,
            most=useful if grows else 0,
        ),
        states=states,
        experts=experts,
        top_k=spec.moe.top_k if spec.moe is not None else 0,
        emulated=device.kind == "sim"
        or options.emulate_vram_bytes > 0
        or options.emulate_link_bytes_per_s > 0,
    )


def _place(
    options: EngineOptions,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    device: Device,
    dtype: torch.dtype,
    plans: list[LayerPlan],
    budget: Budget,
    report: Report,
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
            lock=options.lock_memory,
            link_bytes_per_s=options.emulate_link_bytes_per_s,
        )
    return experts, build_model(checkpoint, spec, device.torch, dtype, experts, layers_placed)


def _ready(
    spec: ModelSpec,
    device: Device,
    dtype: torch.dtype,
    limits: Limits,
    budget: Budget,
    load_seconds: float = 0.0,
) -> Ready:
    return Ready(
        family=spec.family,
        device=device.kind,
        dtype=_dtype_name(dtype),
        context_tokens=limits.request_tokens,
        kv_tokens=limits.kv_tokens,
        vocab_size=spec.vocab_size,
        load_seconds=load_seconds,
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
        "kv_reserve_tokens": 1,
        "prefill_chunk_tokens": 1,
        "threads": 0,
        "layers": 0,
        "emulate_ram_bytes": 0,
        "emulate_vram_bytes": 0,
        "emulate_link_bytes_per_s": 0,
    }
    for name, lowest in least.items():
        value = getattr(options, name)
        if value is not None and value < lowest:
            raise InvalidRequest(f"{name} is {value}; it must be at least {lowest}.", param=name)


def check_emulation(options: EngineOptions, device: Device) -> None:
    """Raises InvalidRequest that names the option."""
    if device.has_slots:
        return
    for name in ("emulate_vram_bytes", "emulate_link_bytes_per_s"):
        if getattr(options, name):
            raise InvalidRequest(
                f"{name} plays a GPU, which the device {device.kind} is not.",
                hint="Use --device sim, or cuda where there is a GPU.",
                param=name,
            )


def model_path(name: str) -> Path:
    """The bundled model `demo`, or the path that the name is."""
    return demo_model() if name == "demo" else Path(name).expanduser()


def compute_dtype(name: DtypeName, device: Device) -> torch.dtype:
    """`auto` is bfloat16 on a GPU and float32 where a CPU computes, which has no fast product of
    16-bit rows in torch without AMX."""
    if name == "auto":
        return torch.float32 if device.in_host_memory else torch.bfloat16
    return torch.float32 if name == "float32" else torch.bfloat16


def memory_need(
    options: EngineOptions,
    checkpoint: Checkpoint,
    spec: ModelSpec,
    device: Device,
    dtype: torch.dtype,
    plans: list[LayerPlan],
) -> Need:
    """What the solver has to know. Raises InvalidRequest for a context beyond the model's."""
    if options.context_tokens > spec.context_tokens:
        raise InvalidRequest(
            f"A context of {options.context_tokens} tokens is asked for; this model ends at "
            f"{spec.context_tokens}.",
            param="context_tokens",
        )
    dense = _dense_bytes(checkpoint, dtype, device.torch)
    pools = pool_needs(plans)
    return need_of(options, spec, device.kind, _dtype_name(dtype), dense, pools)


def _dense_bytes(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> int:
    """Everything but routed experts as it will be held: plain weights in the compute dtype (at
    most float32 for vectors), routers and convolutions in float32, quantised ones as stored, but
    GGUF's blocks as plain weights where nothing multiplies with them."""
    view = hub_view(checkpoint)
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
