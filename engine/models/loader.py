"""Put dense weights on the device: one copy of each, checked against what the spec implies."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.formats.blob import PLAIN_FORMATS
from engine.formats.checkpoint import Checkpoint, wrong_tensor
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.formats.weight import Projections, StoredWeight
from engine.kernels.linear import linear
from engine.layers.linear import Embedding, Linear, Mlp, RmsNorm

# Of no use here: how activations and the KV cache were scaled, and old files' rope tables.
_EXPECTED = re.compile(r".*\.(input_scale|[kvq]_scale|rotary_emb\.inv_freq)|rope_freqs\.weight")
_ROUTED = ".mlp.experts."
FLOAT32_WEIGHTS = (".mlp.gate.weight", ".conv1d.weight")
"""Ends of the names of matrices that are held in float32 whatever the compute dtype is."""


class DenseLoader:
    """Plain weights are held in the compute dtype, quantised ones as they are stored (GGUF's blocks
    only where a kernel multiplies with them, see `keeps_blocks`).

    A plain weight whose stored dtype differs is rounded (or widened) once, here, and not at each
    use; the file's copy is the page cache's business. `nbytes` counts what was placed.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self.checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        self.nbytes = 0
        self.used: set[str] = set()

    def _place(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        placed = tensor.to(device=self.device, dtype=dtype or tensor.dtype, copy=True).contiguous()
        self.nbytes += placed.nbytes
        return placed

    def matrix(self, base: str, rows: int, columns: int) -> StoredWeight:
        """`base`.weight [rows, columns] on the device. ModelFilesError for a wrong shape."""
        stored = self.checkpoint.weight(base)
        info = self.checkpoint.info(f"{base}.weight")
        if stored.shape != (rows, columns):
            raise wrong_tensor(
                info, f"has shape {list(stored.shape)}, the config implies {[rows, columns]}"
            )
        self.used.add(info.name)
        unpacked = stored.format in GGUF_BLOCKS and not keeps_blocks(self.device)
        if stored.format in PLAIN_FORMATS or unpacked:
            weight = self.checkpoint.read(info.name) if unpacked else stored.parts["weight"]
            weight = self._place(weight, self.dtype)
            name = str(self.dtype).removeprefix("torch.")
            return StoredWeight(name, stored.shape, {"weight": weight})
        parts = {name: self._place(part) for name, part in stored.parts.items()}
        return StoredWeight(stored.format, stored.shape, parts)

    def vector(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """A plain tensor of exactly `shape` in `dtype`."""
        info = self.checkpoint.info(name)
        if info.shape != shape:
            raise wrong_tensor(
                info, f"has shape {list(info.shape)}, the config implies {list(shape)}"
            )
        if info.dtype not in PLAIN_FORMATS:
            raise wrong_tensor(info, f"has dtype {info.dtype}, not a plain float")
        self.used.add(name)
        return self._place(self.checkpoint.read(name), dtype)

    def unused(self) -> list[str]:
        """Tensors that nothing asked for and nothing explains, sorted."""
        return sorted(
            name
            for name in self.checkpoint.names()
            if re.sub(r"_scale(_2|_inv)?$", "", name) not in self.used
            and _ROUTED not in name
            and not _EXPECTED.fullmatch(name)
        )

    def linear(self, base: str, rows: int, columns: int, bias: bool = False) -> Linear:
        weight = self.matrix(base, rows, columns)
        if bias:
            return Linear(weight, self.vector(f"{base}.bias", (rows,), self.dtype))
        if self.checkpoint.has(f"{base}.bias"):
            info = self.checkpoint.info(f"{base}.bias")
            raise wrong_tensor(info, "is there, and the config says that there is no bias")
        return Linear(weight)

    def embedding(self, base: str, rows: int, columns: int) -> Embedding:
        return Embedding(self.matrix(base, rows, columns), self.dtype)

    def norm(self, name: str, size: int, eps: float, plus_one: bool) -> RmsNorm:
        weight = self.vector(name, (size,))
        # Sums without data would import torch's compiler, which takes seconds.
        adds = plus_one and not weight.is_meta
        return RmsNorm(weight + 1.0 if adds else weight, eps)

    def router(self, name: str, experts: int, hidden: int) -> Tensor:
        """float32 [experts, hidden] of a plain matrix; a quantised router would route elsewhere."""
        return self.vector(name, (experts, hidden))

    def mlp(self, base: str, hidden: int, intermediate: int) -> Mlp:
        maps = (
            self.linear(f"{base}.gate_proj", intermediate, hidden),
            self.linear(f"{base}.up_proj", intermediate, hidden),
            self.linear(f"{base}.down_proj", hidden, intermediate),
        )
        return Mlp(Projections(tuple(m.weight for m in maps), (None,) * 3))


def keeps_blocks(device: torch.device) -> bool:
    """Whether matrices in GGUF's blocks stay so: only the CPU's kernels multiply with them."""
    return device.type == "cpu" and linear.kernel("cpu") is not linear.reference


def require_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.bfloat16):
        raise UnsupportedModel(f"{dtype} is not a compute dtype; use float32 or bfloat16")
