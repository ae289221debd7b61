"""Which families there are, and what a model is before any weight is read. Torch-free.

The server and the app describe a model with `describe(inspect_model(path))`.
"""

from __future__ import annotations

from dataclasses import replace

from engine.errors import UnsupportedModel
from engine.formats.config_fields import Fields
from engine.formats.model_source import ModelSource
from engine.models import llama, qwen3_5_moe, qwen_moe
from engine.models.family import Family
from engine.models.spec import ModelSpec

FAMILIES = (llama.FAMILY, qwen_moe.QWEN2_MOE, qwen_moe.QWEN3_MOE, qwen3_5_moe.FAMILY)
_BY_MODEL_TYPE = {name: family for family in FAMILIES for name in family.model_types}
_GGUF_ARCHITECTURES = {"llama": llama.FAMILY}


def family_of(model: ModelSource) -> Family:
    """By `model_type`, or a GGUF file's architecture. UnsupportedModel names what is not known."""
    fields = Fields(model.config, model.config_source)
    gguf = model.kind == "gguf"
    known = _GGUF_ARCHITECTURES if gguf else _BY_MODEL_TYPE
    field = "general.architecture" if gguf else "model_type"
    name = fields.text(field)
    if name not in known:
        raise UnsupportedModel(
            f"{fields.source}: {field} {name!r} is not supported",
            hint=f"Supported {'in GGUF files ' if gguf else ''}are {', '.join(sorted(known))}.",
        )
    return known[name]


def describe(model: ModelSource) -> ModelSpec:
    """What the model is. UnsupportedModel or ModelConfigError name the file and the field."""
    spec = family_of(model).describe(model)
    return replace(spec, notes=(*model.notes, *spec.notes))
