"""A loaded model: embedding, decoder layers, last norm, output layer."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.context.batch import Batch
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.kernels.moe_layer import MoeSum
from engine.layers.decoder import DecoderLayer
from engine.layers.linear import Embedding, Linear, RmsNorm
from engine.layers.rotary import Rotary
from engine.layers.step import DecodeRows, Step
from engine.models.spec import ModelSpec


class Model:
    def __init__(
        self,
        spec: ModelSpec,
        embedding: Embedding,
        layers: tuple[DecoderLayer, ...],
        norm: RmsNorm,
        head: Linear,
        rotary: Rotary,
        dense_bytes: int,
    ) -> None:
        self.spec = spec
        self.dense_bytes = dense_bytes
        """Bytes of everything but routed experts, as placed on the device."""
        self._embedding = embedding
        self._layers = layers
        self._norm = norm
        self._head = head
        self._rotary = rotary

    @torch.no_grad()
    def forward(self, batch: Batch, kv: KvPages, states: StatePool | None) -> Tensor:
        """Logits float32 [R, vocab] of the batch's logit rows.

        Keys and values of all rows are in `kv` afterwards, and `states` stand after each
        sequence's last row. A sequence with context 0 starts from an empty state.
        """
        return self._run(Step.begin(batch, kv, states, self._rotary)).to(torch.float32)

    @torch.no_grad()
    def decode(self, rows: DecodeRows, kv: KvPages, states: StatePool | None) -> Tensor:
        """Logits [S, vocab] of one token of each of S sequences, on a GPU, in the compute dtype.
        The host waits for nothing, where the experts let it, and a captured graph can hold it."""
        return self._run(Step.decode(rows, kv, states, self._rotary))

    def _run(self, step: Step) -> Tensor:
        x = self._embedding(step.tokens)
        added: Tensor | MoeSum | None = None
        for layer in self._layers:
            x, added = layer(x, added, step)
        rows = step.logit_rows
        x = x[rows]
        if isinstance(added, MoeSum):
            added = added.take(rows)
        elif added is not None:
            added = added[rows]
        last = self._norm(x) if added is None else self._norm.after_adding(x, added)[1]
        # One row of a sequence, be it a prompt's: as single tokens are, whatever the step.
        return self._head(last, len(last))
