"""From options to an engine's parts: open, describe, divide the memory, place, warm up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.formats.checkpoint import open_checkpoint
from engine.memory.device import Device, resolve_device
from engine.messages import Progress, Ready
from engine.models.registry import build_model, describe
from engine.options import DtypeName, EngineOptions
from engine.paths import demo_model
from engine.runtime.parts import NoExperts, Parts
from engine.runtime.threads import apply_threads
from engine.scheduler.limits import Limits

PAGE_TOKENS = 16
Report = Callable[[Progress], None]


def load(options: EngineOptions, on_progress: Report | None = None) -> Parts:
    """Everything an engine needs. Raises the typed errors that Engine.load names."""
    report = on_progress or (lambda _: None)
    begin = time.monotonic()
    report(Progress(phase="starting"))
    apply_threads(options.threads)
    checkpoint = open_checkpoint(model_path(options.model))
    spec = describe(checkpoint)
    device = resolve_device(options.device)
    dtype = compute_dtype(options.dtype, device)
    context = options.context_tokens or spec.context_tokens
    kv_tokens = options.kv_tokens or context
    pages = -(-kv_tokens // PAGE_TOKENS)
    model = build_model(checkpoint, spec, device.torch, dtype, None)
    kv = KvPages(spec, pages, PAGE_TOKENS, device.torch, dtype)
    states = (
        StatePool(spec, options.max_sequences, device.torch, dtype)
        if spec.recurrent_layers
        else None
    )
    limits = Limits(
        context_tokens=context,
        kv_tokens=pages * PAGE_TOKENS,
        vocab_size=spec.vocab_size,
        chunk_tokens=options.prefill_chunk_tokens,
        max_sequences=options.max_sequences,
        max_waiting=options.max_waiting,
    )
    ready = Ready(
        family=spec.family,
        device=device.kind,
        dtype=str(dtype).removeprefix("torch."),
        context_tokens=limits.request_tokens,
        kv_tokens=limits.kv_tokens,
        vocab_size=spec.vocab_size,
        load_seconds=time.monotonic() - begin,
        notes=list(spec.notes),
    )
    return Parts(
        ready=ready,
        limits=limits,
        device=device.torch,
        model=model,
        kv=kv,
        states=states,
        experts=NoExperts(),
        dense_bytes=model.dense_bytes,
        workspace_bytes=0,
        host_is_device=device.kind == "cpu",
        vram_total_bytes=0,
    )


def model_path(name: str) -> Path:
    """The bundled model `demo`, or the path that the name is."""
    return demo_model() if name == "demo" else Path(name).expanduser()


def compute_dtype(name: DtypeName, device: Device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.in_host_memory else torch.bfloat16
    return torch.float32 if name == "float32" else torch.bfloat16
