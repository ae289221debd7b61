"""A layer step of experts in GGUF's formats, through the C interface, against float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kernels.native_linear import X_TYPES
from engine.native.library import ACTIVATIONS, FLOAT32, FORMATS, OK, ExpertLayout, Library
from tests.experts.checkpoint_experts import RandomExperts
from tests.native.test_linear import BLOCKS, plain, random_weight
from tests.native.test_moe import relative, rows_in_float64
from tests.native.tiles import has_tiles
from tests.properties import examples

pytestmark = pytest.mark.usefixtures("tier")


class GgufExperts(RandomExperts):
    """One layer of random experts; no blob holds GGUF's formats, so they lie in a bank of ours."""

    @staticmethod
    def random(gate_up: str, down: str, count: int, hidden: int, inner: int) -> GgufExperts:
        def expert() -> tuple[object, ...]:
            gate, up = random_weight(gate_up, inner, hidden), random_weight(gate_up, inner, hidden)
            return gate, up, random_weight(down, hidden, inner)

        return GgufExperts([[expert() for _ in range(count)]])  # type: ignore[misc]

    @property
    def plain(self) -> list[list[list[Tensor]]]:  # type: ignore[override]
        return [[[plain(weight) for weight in expert] for expert in layer] for layer in self.layers]

    def bank(self) -> tuple[Tensor, ExpertLayout]:
        blobs = [
            torch.cat([weight.parts["weight"].view(-1) for weight in expert])
            for expert in self.layers[0]
        ]
        (gate, _, down), *_ = self.layers[0]
        (inner, hidden), nbytes = gate.shape, gate.parts["weight"].nbytes
        stride = -(-blobs[0].numel() // 64) * 64
        bank = torch.zeros(len(blobs), stride, dtype=torch.uint8)
        bank[:, : blobs[0].numel()] = torch.stack(blobs)
        offsets = 0, -1, -1, 2 * nbytes, -1, -1, -1, -1
        formats = FORMATS[gate.format], FORMATS[down.format]
        return bank, ExpertLayout(hidden, inner, stride, *offsets, *formats, FLOAT32)


def step(native: Library, experts: GgufExperts, x: Tensor, ids: Tensor, activation: str) -> Tensor:
    bank, layout = experts.bank()
    rows = torch.zeros(*ids.shape, x.shape[1])
    native.set_threads(torch.get_num_threads())
    status = native.moe_rows(
        *(bank, layout, bank.data_ptr(), len(bank), x.data_ptr(), X_TYPES[x.dtype]),
        *(*ids.shape, ids.data_ptr(), ACTIVATIONS[activation], rows.data_ptr()),
    )
    assert status == OK
    native.settle()
    return rows


@settings(
    max_examples=examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_any_step_matches_float64(
    native: Library, tier: str, data: st.DataObject, seed: int
) -> None:
    torch.manual_seed(seed)
    gate_up, down = (data.draw(st.sampled_from(sorted(BLOCKS))) for _ in range(2))
    hidden = data.draw(st.integers(1, 512 // BLOCKS[gate_up][0])) * BLOCKS[gate_up][0]
    inner = data.draw(st.integers(1, 512 // BLOCKS[down][0])) * BLOCKS[down][0]
    count, width = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    x = torch.randn(data.draw(st.integers(1, 30)), hidden)
    x = x.to(data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    activation = data.draw(st.sampled_from(sorted(ACTIVATIONS)))
    torch.set_num_threads(data.draw(st.integers(1, 3)))
    experts = GgufExperts.random(gate_up, down, count, hidden, inner)
    ids = torch.randint(-1, count, (len(x), width))
    rows = step(native, experts, x, ids, activation)
    # Tiles hold weights of these formats to 2^-17, in gate, up and down.
    many = int((ids.flatten() == torch.arange(count).view(-1, 1)).sum(1).max()) > 16
    tiles = many and any(has_tiles(tier, kind, x.dtype) for kind in (gate_up, down))
    limit = 1e-4 if tiles else 1e-5
    assert relative(rows, rows_in_float64(experts, x, ids, activation)) < limit
