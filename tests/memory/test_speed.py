"""The estimate's constants and results against the committed results of real runs.

A result that is taken anew may move a constant: then change it in engine/memory/speed.py, where
each says what it comes from. Bounds stay.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.formats.model_files import inspect_model
from engine.memory import speed
from engine.memory.pc import Pc, Rate
from engine.models.facts import facts_of_files
from engine.paths import demo_model
from tests.memory.measured import h200, qwen35_35b, result, rows


def small_pc(name: str) -> Pc:
    machine = result(name)["machine"]
    rate = Rate(machine["stream"] * 1e9, "", measured=True)
    return Pc(machine["ram_bytes"], machine["ram_bytes"], machine["threads"], rate)


@pytest.mark.parametrize("percent", [100, 37, 12])
def test_decode_on_a_gpu_lies_in_the_range_and_near_its_middle(percent: int) -> None:
    measured = rows("gpu-xeon-16-decode")[f"decode cuda {percent}% bfloat16"]["value"]
    estimate = speed.gpu_decode(qwen35_35b(), h200(), percent / 100)
    assert estimate.low < measured < estimate.high
    assert estimate.middle == pytest.approx(measured, rel=0.15)
    assert estimate.high < 2.2 * estimate.low, "no wider than it is of use"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("cpu-xeon-2-decode", "decode cpu float32"),
        ("cpu-xeon-2-cpu-demo", "decode, native kernels"),
    ],
)
def test_decode_on_a_cpu_lies_in_the_range(name: str, row: str) -> None:
    facts = facts_of_files(inspect_model(demo_model()))
    estimate = speed.cpu_decode(facts, small_pc(name))
    measured = rows(name)[row]["value"]
    assert estimate.low < measured < estimate.high
    assert estimate.middle == pytest.approx(measured, rel=0.35)


def test_the_first_token_on_a_cpu_lies_in_the_range() -> None:
    name = "cpu-xeon-2-cpu-demo"
    facts = facts_of_files(inspect_model(demo_model()))
    estimate = speed.cpu_first_token(facts, small_pc(name), 512, 512)
    measured = rows(name)["first token after 512, native kernels"]["value"]
    assert estimate.low < measured < estimate.high


def test_the_formats_shares_are_those_that_were_measured() -> None:
    found: dict[str, list[float]] = {}
    for name in ("cpu-xeon-2-host", "gpu-xeon-16-host"):
        for row, values in rows(name).items():
            words = row.removeprefix("host ").removeprefix("moe ").split()
            if values["versus"] == "reading" and words[0] in speed.HOST_SHARE:
                found.setdefault(words[0], []).append(values["ratio"])
    assert set(found) == set(speed.HOST_SHARE)
    for storage, (least, most) in speed.HOST_SHARE.items():
        assert min(found[storage]) == pytest.approx(least, abs=0.006), storage
        assert max(found[storage]) == pytest.approx(most, abs=0.006), storage


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (speed.LEAST_HITS, "cpu-xeon-2-expert-cache"),
        (speed.MOST_HITS, "cpu-xeon-2-expert-cache-simulated"),
    ],
)
def test_hit_rates_are_those_that_were_measured(
    table: tuple[tuple[float, float], ...], name: str
) -> None:
    measured = rows(name)
    for cached, hits in table[1:-1]:
        row = measured[f"hits cache {100 * cached:.0f}%"]
        assert row["value"] / 100 == pytest.approx(hits, abs=0.001)


@pytest.mark.parametrize(("percent", "hits"), [(37, 0.795), (12, 0.462)])
def test_hits_on_a_gpu_lie_in_the_range(percent: int, hits: float) -> None:
    """The figures stand in the notes of gpu-xeon-16-decode.json."""
    notes = " ".join(result("gpu-xeon-16-decode")["notes"])
    assert f"{percent}% bfloat16: {100 * hits:.1f}% of the experts" in notes
    estimate = speed.hit_range(qwen35_35b(), percent / 100)
    assert estimate.low < hits < estimate.high


def test_more_cache_never_makes_it_slower() -> None:
    facts, pc = qwen35_35b(), h200()
    ranges = [speed.gpu_decode(facts, pc, step / 50) for step in range(1, 51)]
    prompts = [speed.gpu_prompt(facts, pc, step / 50, 512) for step in range(1, 51)]
    for series in (ranges, prompts):
        assert all(one.low <= next_.low for one, next_ in pairwise(series))
        assert all(one.high <= next_.high for one, next_ in pairwise(series))
        assert all(one.low <= one.high for one in series)


def test_a_layer_with_fewer_slots_than_routes_cannot_hit_them_all() -> None:
    facts = qwen35_35b()
    assert speed.hit_range(facts, 1 / 256).high <= 1 / 8


def test_a_prompt_takes_as_long_as_its_chunks() -> None:
    facts, pc = qwen35_35b(), h200()
    rate = speed.gpu_prompt(facts, pc, 0.37, 512)
    whole = speed.gpu_first_token(facts, pc, 0.37, 1024, 512)
    assert (whole.low, whole.high) == pytest.approx((1024 / rate.high, 1024 / rate.low))
    longer = speed.gpu_first_token(facts, pc, 0.37, 1025, 512)
    assert whole.low < longer.low < 1.5 * whole.low
    # One chunk brings the experts over the link once.
    assert speed.gpu_first_token(facts, pc, 0.37, 1024, 1024).high < 0.6 * whole.high
