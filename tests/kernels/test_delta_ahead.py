"""The gated delta rule's kernels compile without a GPU and fit every architecture."""

from __future__ import annotations

import pytest

from engine.kernels.gpu.ahead import ARCHITECTURES, MOST_SHARED_BYTES
from tests.kernels.compiling import compiled_resources

MODULES = ("delta_decode", "delta_conv", "delta_within", "delta_scan", "gated_norm")
ORDINARY = (86, 90)


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(each, marks=[] if each in ORDINARY else [pytest.mark.full])
        for each in ARCHITECTURES
    ],
)
def test_kernels_fit(architecture: int) -> None:
    for name, used in compiled_resources(architecture, *MODULES).items():
        assert used["spilled_bytes"] == 0, name
        assert used["shared_bytes"] <= MOST_SHARED_BYTES, name
