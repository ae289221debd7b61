"""The reference: one pass of torch's own operations over weights that are dequantised.

It shares the layers' order of operations with the runtime and none of its kernels, blobs, slots or
captured steps. tests/parity holds the layers to transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from engine.context.batch import Batch, SequenceSlice
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.formats.checkpoint import Checkpoint
from engine.formats.expert_tensors import ExpertTensors
from engine.formats.weight import StoredWeight
from engine.kernels.dequantise import dequantise
from engine.kernels.moe import moe_combine
from engine.kernels.registry import references_only
from engine.memory.budget import PAGE_TOKENS
from engine.memory.device import Device
from engine.models.registry import build_model, expert_tensors
from engine.models.spec import ModelSpec
from engine.runtime.verify_text import Text

CHUNK_TOKENS = 512


class PlainExperts:
    """Routed experts (ExpertsForward), read from the model's files whenever they are asked for:
    of the whole model no more than one dequantised expert exists at a time."""

    def __init__(
        self, source: Callable[[int], Sequence[ExpertTensors]], device: torch.device
    ) -> None:
        self._source = source
        self._device = device

    def __call__(
        self,
        layer: int,
        x: Tensor,
        ids: Tensor,
        weights: Tensor | None,
        singles: int,  # noqa: ARG002, for kernels
    ) -> Tensor:
        """As ExpertsForward has it; products are in x's dtype."""
        experts = self._source(layer)
        rows = torch.zeros((*ids.shape, x.shape[1]), device=x.device)
        for number in sorted(set(ids.flatten().tolist())):
            token, route = (ids == number).nonzero(as_tuple=True)
            taken, expert = x[token], experts[number]
            inner = functional.silu(self._times(taken, expert.gate))
            inner = inner * self._times(taken, expert.up)
            rows[token, route] = self._times(inner, expert.down).to(torch.float32)
        return moe_combine(rows, weights, x.dtype)

    def _times(self, x: Tensor, weight: StoredWeight) -> Tensor:
        parts = {name: part.to(self._device) for name, part in weight.parts.items()}
        bias = parts.get("bias")
        matrix = dequantise(StoredWeight(weight.format, weight.shape, parts), x.dtype)
        return functional.linear(x, matrix, None if bias is None else bias.to(x.dtype))


@torch.inference_mode()
def reference_logits(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    text: Text,
    device: Device,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """float32 [D + 1, vocab] in host memory: after the prompt and after each of the D tokens behind
    it, computed in `dtype`. Raises what `build_model` raises."""
    place, count = device.torch, len(text.tokens)
    experts = PlainExperts(partial(expert_tensors, spec, checkpoint), place)
    rows: list[Tensor] = []
    with references_only():
        model = build_model(
            checkpoint, spec, place, dtype, experts if spec.moe is not None else None
        )
        kv = KvPages(spec, -(-count // PAGE_TOKENS), PAGE_TOKENS, place, dtype)
        states = StatePool(spec, 1, place, dtype) if spec.recurrent_layers else None
        pages = torch.arange(kv.pages, device=place)
        for start in range(0, count, CHUNK_TOKENS):
            length = min(CHUNK_TOKENS, count - start)
            wanted = range(max(0, text.prompt - 1 - start), length)
            batch = Batch(
                tokens=torch.tensor(text.tokens[start : start + length], device=place),
                positions=torch.arange(start, start + length, device=place),
                sequences=(SequenceSlice(0, length, start, pages, 0),),
                logit_rows=torch.tensor(list(wanted), dtype=torch.int64, device=place),
            )
            rows.append(model.forward(batch, kv, states).cpu())
    return torch.cat(rows)
