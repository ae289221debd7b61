"""What the owners of a GPU's memory have together is what the driver says that this process has."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

ALONE = """
import json, sys
import pynvml
from engine.messages import Sampling, Submit
from engine.options import EngineOptions
from engine.runtime.engine import Engine

pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
used = lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu).used
before = used()
options = EngineOptions(
    model="demo", device="cuda", moe_cache_rate=0.5, context_tokens=2048, max_sequences=3,
    emulate_vram_bytes=int(sys.argv[1]),
)
engine = Engine.load(options)
figures = []
for round in range(2):
    for number in range(3):
        tokens = [(7 * place + number) % 999 for place in range(700 * round + 31 * number + 5)]
        engine.submit(Submit(
            request=number, tokens=tokens, max_tokens=9, sampling=Sampling(temperature=0)
        ))
    while engine.has_work:
        engine.step()
    stats = engine.stats()
    owned = {
        name: getattr(stats, f"vram_{name}_bytes")
        for name in ("dense", "expert", "kv", "snapshot", "workspace", "graph", "overhead")
    }
    figures.append((used() - before, owned, stats.vram_total_bytes))
print(json.dumps(figures))
"""


@pytest.mark.parametrize("emulated", [0, 4 << 30])
def test_the_driver_s_figure_is_accounted_for(emulated: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(emulated)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for used, owned, total in json.loads(done.stdout.splitlines()[-1]):
        assert min(owned["dense"], owned["expert"], owned["kv"], owned["graph"]) > 0
        assert owned["overhead"] > 100 << 20, "a context takes more"
        assert sum(owned.values()) == pytest.approx(used, rel=0.02), owned
        if emulated:
            assert total == emulated and used < emulated
