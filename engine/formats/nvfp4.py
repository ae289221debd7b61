"""NVFP4: four-bit weights with one e4m3 scale per 16 along K and one float32 scale per tensor.

Layout (modelopt's naming on the hub), for a weight of shape [..., out, in]:

* `X.weight`         uint8 [..., out, in / 2]: two e2m1 codes a byte, even columns in the low half
* `X.weight_scale`   float8_e4m3fn [..., out, in / 16]
* `X.weight_scale_2` float32 scalar []

weight = e2m1(code) * weight_scale * weight_scale_2
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 16
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_VALUES = (*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES))
"""Of codes 0-15: bit 3 of a code is its sign."""
E2M1_MAX = 6.0
E4M3_MAX = 448.0
# Between neighbours a value goes to the nearest code, a tie to the even one. A tie below an odd
# code must round down and one below an even code up, so the bounds come in two kinds.
_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def _codes(magnitudes: Tensor) -> Tensor:
    """The nearest e2m1 code (0-7, ties to even) of non-negative values, as uint8."""
    codes = torch.zeros_like(magnitudes, dtype=torch.uint8)
    for index, bound in enumerate(_MIDPOINTS):
        above = magnitudes >= bound if index % 2 else magnitudes > bound
        codes += above.to(torch.uint8)
    return codes


def _grouped(weight: Tensor) -> Tensor:
    """[..., out, in] as [..., out, in / 16, 16]."""
    return weight.reshape(*weight.shape[:-1], weight.shape[-1] // GROUP, GROUP)


def _scales(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Per-group e4m3 scales [..., out, in / 16] and the float32 scalar of a float32 weight."""
    groups = _grouped(weight).abs().amax(-1)
    tensor_max = groups.amax() if groups.numel() else groups.new_zeros(())
    scale_2 = tensor_max / (E2M1_MAX * E4M3_MAX)
    safe = torch.where(scale_2 > 0, scale_2, torch.ones_like(scale_2))
    scale = (groups / (E2M1_MAX * safe)).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return scale, safe


def quantise(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round a floating-point weight [..., out, in] (in a multiple of 16) to NVFP4.

    Returns `(packed, scale, scale_2)` as laid out above. Non-finite weights are refused.
    """
    if weight.dim() < 2 or weight.shape[-1] % GROUP:
        raise ValueError(f"a shape of {tuple(weight.shape)} does not divide into groups of {GROUP}")
    weight = weight.detach().to(torch.float32)
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("the weight holds values that are not finite")
    scale, scale_2 = _scales(weight)
    step = scale.to(torch.float32) * scale_2
    inverse = torch.where(step > 0, 1.0 / step, torch.zeros_like(step))
    scaled = _grouped(weight) * inverse.unsqueeze(-1)
    codes = _codes(scaled.abs()) | (torch.signbit(scaled).to(torch.uint8) << 3)
    codes = codes.flatten(-2)
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, scale, scale_2.reshape(())


def unpack(packed: Tensor) -> Tensor:
    """The e2m1 values [..., out, in] (float32, unscaled) of packed codes [..., out, in / 2]."""
    if packed.dtype != torch.uint8:
        raise ValueError(f"packed codes must be uint8, not {packed.dtype}")
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=packed.device)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    values: Tensor = table[codes.to(torch.int64)]
    return values


def dequantise(
    packed: Tensor, scale: Tensor, scale_2: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The weight [..., out, in] in `dtype`: products in float32, then one rounding."""
    expected = (*packed.shape[:-1], packed.shape[-1] * 2 // GROUP)
    if packed.shape[-1] * 2 % GROUP or tuple(scale.shape) != expected:
        raise ValueError(
            f"scales of shape {tuple(scale.shape)} do not fit codes of shape {tuple(packed.shape)}"
        )
    step = scale.to(torch.float32) * scale_2.to(torch.float32)
    values = _grouped(unpack(packed)) * step.unsqueeze(-1)
    return values.flatten(-2).to(dtype)
