"""The rotary embedding that a config describes, in any of the ways configs have described it."""

from __future__ import annotations

import math

from engine.errors import UnsupportedModel
from engine.formats.config_fields import Fields
from engine.models.spec import RopeSpec

DEFAULT_THETA = 10000.0


def read_rope(fields: Fields, head_dim: int, context_tokens: int, partial: float = 1.0) -> RopeSpec:
    """From `rope_parameters` (newer files) or `rope_theta` and `rope_scaling` (older ones).

    `partial` is the share of each head that rotates if the config says nothing. Raises
    UnsupportedModel that names a kind this engine does not compute, ModelConfigError for a field.
    """
    params = _parameters(fields)
    # Newer files say rope_type, older ones type, and some both: the newer name wins.
    kind = params.text("rope_type", params.text("type", "default"))
    theta = params.number("rope_theta", fields.number("rope_theta", DEFAULT_THETA), above=1.0)
    share = params.number("partial_rotary_factor", fields.number("partial_rotary_factor", partial))
    dim = int(head_dim * share)
    if dim % 2 or not 0 < dim <= head_dim:
        raise fields.error("partial_rotary_factor", f"makes {dim} of {head_dim} dimensions rotate")
    if kind in ("default", "mrope"):
        # Multimodal sections give one position in three axes; text has the same in all.
        return RopeSpec(theta, dim)
    if kind == "linear":
        return RopeSpec(theta, dim, "linear", params.number("factor"))
    if kind == "llama3":
        return _llama3(params, theta, dim, context_tokens)
    if kind == "yarn":
        return _yarn(fields, params, theta, dim, context_tokens)
    raise UnsupportedModel(
        f"{params.source}: rope_type {kind!r} is not supported",
        hint="Supported are default, linear, llama3 and yarn.",
    )


def _parameters(fields: Fields) -> Fields:
    for name in ("rope_parameters", "rope_scaling"):
        if fields.has(name):
            params = fields.child(name)
            return params.child("full_attention") if params.has("full_attention") else params
    return Fields({}, fields.source)


def _llama3(params: Fields, theta: float, dim: int, context_tokens: int) -> RopeSpec:
    low, high = params.number("low_freq_factor"), params.number("high_freq_factor")
    if high <= low:
        raise params.error("high_freq_factor", f"is {high}, not above low_freq_factor {low}")
    return RopeSpec(
        theta,
        dim,
        "llama3",
        params.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=params.integer("original_max_position_embeddings", context_tokens),
    )


def _yarn(fields: Fields, params: Fields, theta: float, dim: int, context_tokens: int) -> RopeSpec:
    if not params.flag("truncate", True):
        raise UnsupportedModel(f"{params.source}: yarn with truncate = false is not supported")
    original = fields.integer(
        "original_max_position_embeddings",
        params.integer("original_max_position_embeddings", context_tokens),
    )
    implied = context_tokens / original if original != context_tokens else None
    factor = params.number("factor", implied)
    return RopeSpec(
        theta,
        dim,
        "yarn",
        factor,
        original_positions=original,
        attention_factor=params.number("attention_factor", _yarn_attention(params, factor)),
        beta_fast=params.number("beta_fast", 32.0),
        beta_slow=params.number("beta_slow", 1.0),
    )


def _yarn_attention(params: Fields, factor: float) -> float:
    """What the paper scales the attention by, where the config does not say."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    mscale, mscale_all = (params.number(n, 0.0, above=-1.0) for n in ("mscale", "mscale_all_dim"))
    if mscale and mscale_all:
        return scale(mscale) / scale(mscale_all)
    return scale(1.0)
