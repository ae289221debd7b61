"""Whether a config and the weights beside it speak of the same model.

A config of fewer layers or experts than the weights hold would load, and answer nonsense. Looked at
are names and shapes, so that a contradiction is told before anything is read for minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

from engine.errors import ModelFilesError
from engine.formats.checkpoint import Checkpoint
from engine.models.spec import ModelSpec

_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_GGUF_FIELDS = {"num_hidden_layers": "llama.block_count"}


def check_counts(spec: ModelSpec, weights: Checkpoint) -> None:
    """Layers, experts and vocabulary of `weights`, which are under the hub's plain names: what the
    family knows and skips, such as the heads of multi-token prediction, is not among them.

    Raises ModelFilesError that names the config's field and both numbers.
    """
    names = list(weights.names())
    _compare(weights, "num_hidden_layers", "layers", len(spec.layers), _numbers(_LAYER, names))
    if spec.moe is not None:
        found: dict[int, dict[int, str]] = {}
        for name in names:
            if match := _EXPERT.match(name):
                found.setdefault(int(match[1]), {}).setdefault(int(match[2]), name)
        for layer, experts in sorted(found.items()):
            what = f"experts in layer {layer}"
            _compare(weights, _experts_field(weights), what, spec.moe.experts, experts)
    rows = weights.info(_EMBEDDING).shape[0]
    if rows != spec.vocab_size:
        raise _contradiction(
            weights, "vocab_size", spec.vocab_size, f"{_EMBEDDING} has {rows} rows"
        )


def check_output_layer(spec: ModelSpec, weights: Checkpoint) -> None:
    """An output layer of its own where the config says that it is the embedding.

    Some writers store the embedding twice, which is no contradiction.
    """
    if not spec.tie_embeddings:
        if not weights.has(_HEAD):
            raise _contradiction(weights, "tie_word_embeddings", "false", f"{_HEAD} is missing")
        return
    if not weights.has(_HEAD):
        return
    head, embedding = weights.info(_HEAD), weights.info(_EMBEDDING)
    same = (head.dtype, head.shape) == (embedding.dtype, embedding.shape)
    if not same or not torch.equal(weights.read(_HEAD), weights.read(_EMBEDDING)):
        raise _contradiction(
            weights, "tie_word_embeddings", "true", f"{_HEAD} is not the same as {_EMBEDDING}"
        )


def _numbers(pattern: re.Pattern[str], names: Iterable[str]) -> dict[int, str]:
    """Each number that the pattern finds, with the first name that has it."""
    found: dict[int, str] = {}
    for name in names:
        if match := pattern.match(name):
            found.setdefault(int(match[1]), name)
    return found


def _experts_field(weights: Checkpoint) -> str:
    config = weights.config.get("text_config") or weights.config
    return "num_experts" if "num_experts" in config else "num_local_experts"


def _compare(weights: Checkpoint, field: str, what: str, count: int, found: dict[int, str]) -> None:
    beyond = [number for number in sorted(found) if number >= count]
    missing = next((number for number in range(count) if number not in found), None)
    if beyond:
        held = f"the weights hold {len(found)} {what}, such as {found[beyond[0]]}"
        raise _contradiction(weights, field, count, held)
    if missing is not None:
        held = f"the weights hold {len(found)} {what}: number {missing} is missing"
        raise _contradiction(weights, field, count, held)


def _contradiction(weights: Checkpoint, field: str, value: object, found: str) -> ModelFilesError:
    if weights.kind == "gguf":
        field = _GGUF_FIELDS.get(field, field)
    return ModelFilesError(
        f"{weights.config_source}: field {field} is {value}, but {found}",
        hint="Take config.json and the weights from the same model.",
    )
