"""A model's facts, from its files or from its configuration alone. Torch-free.

Files tell exactly how each tensor is stored. A configuration tells the shapes and what is left
unquantised, so that a model can be judged before a byte of it is downloaded; vectors (norms,
biases) are left out then, they are below a thousandth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import ModelFilesError, UnsupportedModel
from engine.formats.blob import ITEM_BYTES, PLAIN_FORMATS, BlobSpec, blob_spec
from engine.formats.config_fields import Fields
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.model_files import ModelFiles
from engine.formats.quantisation import FP8_BLOCK, NVFP4_GROUP, Quantisation, read_quantisation
from engine.formats.tensor_info import TensorInfo
from engine.memory.budget import PoolNeed
from engine.memory.model_facts import ModelFacts
from engine.models.families import describe, family_of
from engine.models.spec import ModelSpec, MoeSpec

_EXPERT = re.compile(
    r"layers\.(?P<layer>\d+)\.mlp\.experts\.(?:(?:0\.)?(?P<name>gate_proj|gate_up_proj|down_proj))"
    r"(?:\.weight)?$"
)
_STORED_AS = {"uint8": "nvfp4", "float8_e4m3fn": "fp8_block"}
_WIDE = (".mlp.gate.weight", ".conv1d.weight")
"""Matrices that are float32 whatever the compute dtype is, as models/loader.py has them."""


# --- from files ----------------------------------------------------------------------------------


def facts_of_files(files: ModelFiles) -> ModelFacts:
    """Exact. Raises what `describe` raises, and UnsupportedModel for experts of another format."""
    spec = describe(files)
    skipped = family_of(files).skipped
    plain = wide = stored = blocks = block_weights = nbytes = 0
    formats: dict[int, dict[str, str]] = {}
    kinds: Counter[str] = Counter()
    for name in files.names():
        if name.startswith(skipped):
            continue
        info = files.info(name)
        nbytes += info.nbytes
        if ".mlp.experts." in name:
            if found := _EXPERT.search(name):
                formats.setdefault(int(found["layer"]), {})[found["name"]] = info.dtype
            continue
        weights, matrix = _count(info), len(info.shape) > 1
        kinds[info.dtype.lower()] += info.nbytes if matrix else 0
        if info.dtype.lower() in GGUF_BLOCKS:
            blocks += info.nbytes
            block_weights += weights
        elif info.dtype not in PLAIN_FORMATS:
            stored += info.nbytes
        elif matrix and not name.endswith(_WIDE):
            plain += weights
        else:
            wide += weights
    strides = _strides(spec, formats, files.path)
    main = kinds.most_common(1)[0][0] if kinds else "bfloat16"
    return ModelFacts(
        spec=spec,
        plain=plain,
        wide=wide,
        stored=stored,
        blocks=blocks,
        block_weights=block_weights,
        pools=_pools(spec, [blob.stride for blob in strides]),
        format=strides[0].gate_up_format if strides else _STORED_AS.get(main, main),
        weight_bytes=nbytes,
    )


def _count(info: TensorInfo) -> int:
    weights = 1
    for extent in info.shape:
        weights *= extent
    return weights


def _strides(spec: ModelSpec, formats: dict[int, dict[str, str]], path: Path) -> list[BlobSpec]:
    """The layout of each MoE layer's blobs."""
    blobs = []
    for layer in spec.moe_layers:
        stored = formats.get(layer, {})
        gate, down = stored.get("gate_proj") or stored.get("gate_up_proj"), stored.get("down_proj")
        if gate is None or down is None or spec.moe is None:
            raise ModelFilesError(f"{path}: layer {layer} has no routed experts")
        names = [_STORED_AS.get(dtype, dtype) for dtype in (gate, down)]
        blobs.append(blob_spec(names[0], spec.hidden, spec.moe.intermediate, names[1]))
    return blobs


def _pools(spec: ModelSpec, strides: Iterable[int]) -> tuple[PoolNeed, ...]:
    layers = Counter(strides)
    experts = spec.moe.experts if spec.moe is not None else 0
    return tuple(PoolNeed(stride, count * experts) for stride, count in sorted(layers.items()))


# --- from a configuration ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Config:
    """A ModelSource of a configuration alone."""

    config: dict[str, Any]
    config_source: str
    kind: str = "safetensors"
    generation_config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        return Path(self.config_source)

    def names(self) -> Iterable[str]:
        return ()

    def has(self, name: str) -> bool:
        """A configuration that does not say so ties no output layer, in any family here."""
        return name == "lm_head.weight"

    def info(self, name: str) -> TensorInfo:
        raise ModelFilesError(f"{self.config_source} tells nothing of the tensor {name}")


def facts_of_config(
    config: dict[str, Any], source: str, quantisation_config: dict[str, Any] | None = None
) -> ModelFacts:
    """Of a checkpoint in the hub's layout, as its config.json implies.

    `source` is what a message calls it, `quantisation_config` is modelopt's hf_quant_config.json.
    Raises UnsupportedModel or ModelConfigError that name the field.
    """
    spec = describe(_Config(config, source))
    quantisation = read_quantisation(config, quantisation_config or {}, source)
    scheme = quantisation.scheme if quantisation is not None else _plain_format(config, source)
    plain = spec.vocab_size * spec.hidden * (1 if spec.tie_embeddings else 2)
    wide = stored = 0
    for name, rows, columns, is_wide in _modules(spec):
        if is_wide:
            wide += rows * columns
        elif quantisation is None or _left_out(quantisation, name):
            plain += rows * columns
        else:
            stored += matrix_bytes(quantisation.scheme, rows, columns)
    pools: tuple[PoolNeed, ...] = ()
    experts = 0
    if spec.moe is not None and spec.moe_layers:
        stride = blob_spec(scheme, spec.hidden, spec.moe.intermediate).stride
        pools = _pools(spec, [stride] * len(spec.moe_layers))
        experts = len(spec.moe_layers) * spec.moe.experts * _expert_bytes(scheme, spec, spec.moe)
    item = ITEM_BYTES[scheme] if scheme in PLAIN_FORMATS else 2
    return ModelFacts(
        spec=spec,
        plain=plain,
        wide=wide,
        stored=stored,
        pools=pools,
        format=scheme,
        weight_bytes=(plain + wide) * item + stored + experts,
    )


def facts_of_gguf(config: dict[str, Any], source: str, file_bytes: int) -> ModelFacts:
    """Of a GGUF file of this size with the model that the hub's config.json describes, as its
    matrices are a mixture of blocks that only the file tells: all are taken as the average."""
    plain = facts_of_config(config, source)
    return replace(
        plain,
        plain=0,
        blocks=file_bytes,
        block_weights=plain.plain,
        format="q4_k",
        weight_bytes=file_bytes,
    )


def _plain_format(config: dict[str, Any], source: str) -> str:
    top = Fields(config, source)
    for fields in (top, top.child("text_config") if top.has("text_config") else top):
        for name in ("dtype", "torch_dtype"):
            if fields.has(name):
                stored = fields.text(name)
                if stored not in PLAIN_FORMATS:
                    raise UnsupportedModel(f"{source}: weights of {stored!r} are not read")
                return stored
    return "bfloat16"


def _left_out(quantisation: Quantisation, module: str) -> bool:
    """By the hub's plain name, or that within a model of several towers."""
    towers = module.replace("model.", "model.language_model.", 1)
    return quantisation.ignores(module) or quantisation.ignores(towers)


def matrix_bytes(scheme: str, rows: int, columns: int) -> int:
    """A quantised matrix with its scales, as checkpoints store it."""
    if scheme == "nvfp4":
        return rows * (columns // 2 + columns // NVFP4_GROUP) + 4
    return rows * columns + 4 * -(-rows // FP8_BLOCK) * -(-columns // FP8_BLOCK)


def _expert_bytes(scheme: str, spec: ModelSpec, moe: MoeSpec) -> int:
    if scheme in PLAIN_FORMATS:
        return 3 * spec.hidden * moe.intermediate * ITEM_BYTES[scheme]
    gate = matrix_bytes(scheme, moe.intermediate, spec.hidden)
    return 2 * gate + matrix_bytes(scheme, spec.hidden, moe.intermediate)


def _modules(spec: ModelSpec) -> Iterator[tuple[str, int, int, bool]]:
    """Matrices of all layers outside the routed experts: name, rows, columns, always float32."""
    hidden, attention, delta = spec.hidden, spec.attention, spec.gated_delta
    query, keys = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
    for index, layer in enumerate(spec.layers):
        base = f"model.layers.{index}"
        if layer.mixer == "attention":
            yield f"{base}.self_attn.q_proj", query * (1 + attention.output_gate), hidden, False
            yield f"{base}.self_attn.k_proj", keys, hidden, False
            yield f"{base}.self_attn.v_proj", keys, hidden, False
            yield f"{base}.self_attn.o_proj", hidden, query, False
        elif delta is not None:
            key, value = delta.key_heads * delta.key_dim, delta.value_heads * delta.value_dim
            yield f"{base}.linear_attn.in_proj_qkv", 2 * key + value, hidden, False
            yield f"{base}.linear_attn.in_proj_z", value, hidden, False
            yield f"{base}.linear_attn.in_proj_b", delta.value_heads, hidden, False
            yield f"{base}.linear_attn.in_proj_a", delta.value_heads, hidden, False
            yield f"{base}.linear_attn.out_proj", hidden, value, False
            yield f"{base}.linear_attn.conv1d", 2 * key + value, delta.conv_kernel, True
        inner = spec.dense_intermediate
        if layer.feed_forward == "moe" and spec.moe is not None:
            yield f"{base}.mlp.gate", spec.moe.experts, hidden, True
            if spec.moe.shared_gate:
                yield f"{base}.mlp.shared_expert_gate", 1, hidden, False
            base, inner = f"{base}.mlp.shared_expert", spec.moe.shared_intermediate
        else:
            base = f"{base}.mlp"
        if inner:
            yield f"{base}.gate_proj", inner, hidden, False
            yield f"{base}.up_proj", inner, hidden, False
            yield f"{base}.down_proj", hidden, inner, False
