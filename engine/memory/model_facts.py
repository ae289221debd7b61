"""What of a model decides memory and speed, whatever machine it meets. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from engine.formats.blob import ITEM_BYTES
from engine.memory.budget import Need, PoolNeed
from engine.memory.needs import need_of
from engine.models.spec import ModelSpec
from engine.options import EngineOptions


@dataclass(frozen=True)
class ModelFacts:
    """Weights outside the routed experts by how they are held, and the experts' blobs."""

    spec: ModelSpec
    plain: int
    """Weights of matrices that are held in the compute dtype."""
    wide: int
    """Weights that are float32 in any compute dtype: vectors, routers, convolutions."""
    stored: int
    """Bytes of quantised matrices, which are held as they are stored."""
    pools: tuple[PoolNeed, ...]
    """Layers of experts by the stride of their blobs; empty for a dense model."""
    format: str
    """Of the experts, or of a dense model's matrices: a name of formats.blob or a GGUF block."""
    weight_bytes: int
    """Of all tensors that are read, as they are stored."""
    blocks: int = 0
    """Bytes of matrices in GGUF's blocks. A GPU holds them as plain weights."""
    block_weights: int = 0

    @property
    def store(self) -> int:
        """Bytes of all expert blobs."""
        return sum(pool.stride * pool.blobs for pool in self.pools)

    def dense(self, dtype: str, *, keeps_blocks: bool = False) -> int:
        """Bytes held outside the routed experts."""
        blocks = self.blocks if keeps_blocks else self.block_weights * ITEM_BYTES[dtype]
        return self.plain * ITEM_BYTES[dtype] + self.wide * 4 + self.stored + blocks

    def dense_read(self, dtype: str, *, keeps_blocks: bool = False) -> int:
        """Bytes of them that one token reads: of an embedding of its own only a row."""
        held = self.dense(dtype, keeps_blocks=keeps_blocks)
        if self.spec.tie_embeddings:
            return held
        return max(0, held - self.spec.vocab_size * self.spec.hidden * ITEM_BYTES[dtype])

    @property
    def experts_read(self) -> int:
        """Bytes of routed experts that one token reads."""
        moe = self.spec.moe
        return 0 if moe is None else self.store * moe.top_k // moe.experts

    @property
    def active_weights(self) -> int:
        """Weights that one token is multiplied with."""
        spec = self.spec
        dense = self.plain + self.wide + self.block_weights + _weights(self.stored, self.format)
        if not spec.tie_embeddings:
            dense -= spec.vocab_size * spec.hidden
        if spec.moe is None:
            return dense
        return dense + len(spec.moe_layers) * spec.moe.top_k * 3 * spec.hidden * (
            spec.moe.intermediate
        )

    def need(self, options: EngineOptions, dtype: str, *, on_cpu: bool) -> Need:
        """What the solver is asked to place, as the runtime asks it. `on_cpu`: GGUF's blocks stay
        as they are, and nothing is captured or staged."""
        dense = self.dense(dtype, keeps_blocks=on_cpu)
        kind = "cpu" if on_cpu else "cuda"
        return need_of(options, self.spec, kind, dtype, dense, self.pools)


def _weights(nbytes: int, storage: str) -> int:
    """How many weights so many bytes of quantised matrices hold."""
    return int(nbytes / {"nvfp4": 0.5625, "mxfp4": 0.53125}.get(storage, 1.0))
