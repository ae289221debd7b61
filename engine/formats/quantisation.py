"""What config.json says about how a checkpoint's weights are quantised. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from engine.errors import UnsupportedModel
from engine.formats.config_fields import Fields

Scheme = Literal["nvfp4", "fp8_block"]
FP8_BLOCK = 128
NVFP4_GROUP = 16
MXFP4_GROUP = 32
SUPPORTED = "Supported are NVFP4 (modelopt), FP8 with 128 x 128 blocks, and plain float weights."


@dataclass(frozen=True)
class Quantisation:
    """`ignored` are the globs of modules that stay unquantised."""

    scheme: Scheme
    ignored: tuple[str, ...] = ()

    def ignores(self, module: str) -> bool:
        return any(fnmatchcase(module, glob) for glob in self.ignored)


def read_quantisation(
    config: dict[str, Any], beside: dict[str, Any], source: str
) -> Quantisation | None:
    """The scheme of a checkpoint, None when its weights are plain.

    `config` is config.json, `beside` is modelopt's hf_quant_config.json or empty. Raises
    UnsupportedModel that names a scheme this engine does not read.
    """
    text_config = config.get("text_config")
    for holder in (config, text_config if isinstance(text_config, dict) else {}):
        if holder.get("quantization_config") is not None:
            return _from_config(Fields(holder, source).child("quantization_config"))
    if beside:
        name = str(Path(source).parent / "hf_quant_config.json")
        return _modelopt(Fields(beside, name).child("quantization"), "exclude_modules")
    return None


def _from_config(fields: Fields) -> Quantisation:
    method = fields.text("quant_method", "modelopt" if fields.has("quant_algo") else None).lower()
    if method == "modelopt":
        return _modelopt(fields, "ignore")
    if method == "fp8":
        block = fields.integers("weight_block_size")
        if block != [FP8_BLOCK, FP8_BLOCK]:
            raise UnsupportedModel(
                f"{fields.source}: FP8 weights with weight_block_size "
                f"{block or None} are not supported",
                hint=SUPPORTED,
            )
        return Quantisation("fp8_block", tuple(fields.texts("modules_to_not_convert")))
    raise UnsupportedModel(
        f"{fields.source}: quantisation {method!r} is not supported", hint=SUPPORTED
    )


def _modelopt(fields: Fields, ignore_field: str) -> Quantisation:
    algo = fields.text("quant_algo").upper()
    if algo != "NVFP4":
        raise UnsupportedModel(
            f"{fields.source}: modelopt's quant_algo {algo!r} is not supported", hint=SUPPORTED
        )
    group = fields.integer("group_size", NVFP4_GROUP)
    if group != NVFP4_GROUP:
        raise UnsupportedModel(
            f"{fields.source}: NVFP4 with group_size {group} is not supported, only {NVFP4_GROUP}"
        )
    return Quantisation("nvfp4", tuple(fields.texts(ignore_field)))
