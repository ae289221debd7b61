"""The demo model on a GPU: every setting gives the bits of all experts in slots."""

from __future__ import annotations

import pytest

from engine.runtime.verify import Choices, verify

pytestmark = pytest.mark.gpu


def test_nothing_changes_one_bit() -> None:
    verdict = verify(Choices(devices=("cuda",), rates=(0.37, 0.12), tokens=24, replays=40))
    assert verdict.failures == []
    names = [outcome.name for outcome in verdict.outcomes]
    assert {"cuda fused plain", "cuda offload 37% streamed", "cuda offload 12% evicted"} <= {*names}
    replayed = verdict.outcomes[-1].replayed
    assert replayed is not None and replayed.captured == 40
