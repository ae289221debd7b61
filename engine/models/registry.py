"""From an open checkpoint to a model and its experts. `describe` comes from families.py."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from engine.errors import InvalidRequest
from engine.formats.checkpoint import Checkpoint
from engine.formats.expert_tensors import ExpertTensors
from engine.layers.linear import Linear
from engine.layers.moe import ExpertsForward
from engine.layers.rotary import Rotary
from engine.models import experts as expert_names
from engine.models.agreement import check_counts, check_output_layer
from engine.models.blocks import decoder_layer
from engine.models.families import describe, family_of
from engine.models.loader import DenseLoader, require_dtype
from engine.models.model import Model
from engine.models.spec import ModelSpec
from engine.models.views import without_layers_from

__all__ = [
    "build_model",
    "check_model",
    "describe",
    "expert_tensors",
    "family_of",
    "first_layers",
    "hub_view",
]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def hub_view(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint under the hub's plain names, made once: it walks over all tensors."""
    if checkpoint.hub_view is None:
        checkpoint.hub_view = family_of(checkpoint).view(checkpoint)
    return checkpoint.hub_view


def first_layers(checkpoint: Checkpoint, spec: ModelSpec, count: int) -> ModelSpec:
    """The model cut behind its first `count` layers, for checks and measurements: from now on
    nobody sees the tensors of the others. Raises InvalidRequest if there are fewer layers."""
    layers = len(spec.layers)
    if not 1 <= count <= layers:
        raise InvalidRequest(
            f"The first {count} layers are asked for; the model has {layers}.", param="layers"
        )
    checkpoint.hub_view = without_layers_from(hub_view(checkpoint), count)
    note = f"only the first {count} of {layers} layers are loaded"
    return replace(spec, layers=spec.layers[:count], notes=(*spec.notes, note))


def check_model(checkpoint: Checkpoint, spec: ModelSpec) -> None:
    """Whether the config and the weights agree: counts, and every dense tensor's name and shape.

    Takes moments, so that nobody waits for gigabytes of experts to hear of it. Raises
    ModelFilesError that names the field or tensor with both values.
    """
    weights = hub_view(checkpoint)
    check_counts(spec, weights)
    check_output_layer(spec, weights)
    if checkpoint.kind != "gguf":  # whose tensors are decoded when they are read
        _assemble(DenseLoader(weights, torch.device("meta"), torch.float32), spec, _NoExperts())


def build_model(
    checkpoint: Checkpoint,
    spec: ModelSpec,
    device: torch.device,
    dtype: torch.dtype,
    experts: ExpertsForward | None,
    progress: Progress | None = None,
) -> Model:
    """Place all dense weights on `device`. `experts` computes the routed experts; a dense model has
    none. `progress` hears (layers placed, layers).

    Raises ModelFilesError that names a tensor and its file when one is missing or has the wrong
    shape or dtype.
    """
    require_dtype(dtype)
    loader = DenseLoader(hub_view(checkpoint), device, dtype)
    if experts is None:
        if spec.moe is not None:
            raise ValueError(
                f"a model of family {spec.family} needs someone to compute its experts"
            )
        experts = _NoExperts()
    model = _assemble(loader, spec, experts, progress)
    unused = loader.unused()
    if unused:
        log.warning("%d tensors belong to no layer: %s", len(unused), ", ".join(unused[:5]))
    return model


def _assemble(
    loader: DenseLoader,
    spec: ModelSpec,
    experts: ExpertsForward,
    progress: Progress | None = None,
) -> Model:
    embedding = loader.embedding("model.embed_tokens", spec.vocab_size, spec.hidden)
    layers = []
    for index in range(len(spec.layers)):
        layers.append(decoder_layer(loader, spec, index, experts))
        if progress is not None:
            progress(index + 1, len(spec.layers))
    head = (
        Linear(embedding.weight)
        if spec.tie_embeddings
        else loader.linear("lm_head", spec.vocab_size, spec.hidden)
    )
    norm = loader.norm("model.norm.weight", spec.hidden, spec.norm_eps, spec.norm_plus_one)
    rotary = Rotary(spec.attention.rope, loader.device)
    return Model(spec, embedding, tuple(layers), norm, head, rotary, loader.nbytes)


class _NoExperts:
    """Stands where a dense model's experts would; nothing calls it."""

    def __call__(
        self, layer: int, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int
    ) -> Tensor:
        raise ValueError(
            f"layer {layer} of a dense model sent {tuple(x.shape)} to experts {tuple(ids.shape)}, "
            f"{singles} rows of single tokens{'' if weights is None else ' with weights'}"
        )


def expert_tensors(spec: ModelSpec, checkpoint: Checkpoint, layer: int) -> list[ExpertTensors]:
    """The routed experts of one MoE layer in order; their names and shapes are checked here, their
    data is read when asked for. Raises ModelFilesError that names a tensor and its file."""
    return expert_names.expert_tensors(spec, hub_view(checkpoint), layer)
