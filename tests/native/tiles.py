"""Which products of more than 16 tokens tiles compute, in an order of summation of their own."""

from __future__ import annotations

import torch

from engine.native.library import library

_ONE_PART = ("bfloat16", "nvfp4", "mxfp4")
_NONE = ("float32", "fp8_block")


def has_tiles(tier: str, storage: str, dtype: torch.dtype) -> bool:
    """Weights of this format, activations of this type."""
    if tier != "amx" or storage in _NONE:
        return False
    return dtype == torch.bfloat16 or storage in _ONE_PART


def has_tiles_now(storage: str, dtype: torch.dtype) -> bool:
    """With the library as it is loaded; the references have none."""
    native = library()
    return native is not None and has_tiles(native.tier, storage, dtype)
