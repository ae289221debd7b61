"""What a loaded engine says about itself, on each device, and what it refuses to load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from engine.context.batch import Batch
from engine.errors import InvalidRequest, OutOfMemory
from engine.formats.checkpoint import open_checkpoint
from engine.messages import Progress, Sampling, Submit
from engine.runtime.engine import Engine
from engine.runtime.loading import load, prove
from tests.runtime.driving import Interceptor, driver, options, prompt


def submit(number: int, length: int = 12, count: int = 10) -> Submit:
    return Submit(
        request=number,
        tokens=prompt(length, seed=number),
        max_tokens=count,
        sampling=Sampling(temperature=0),
    )


def test_ready_says_what_runs(moe_model: Path) -> None:
    ready = Engine.load(options(moe_model, context_tokens=100, kv_tokens=200)).ready
    assert (ready.family, ready.device, ready.dtype) == ("qwen2_moe", "cpu", "float32")
    assert (ready.context_tokens, ready.kv_tokens, ready.vocab_size) == (100, 208, 96)
    assert ready.load_seconds > 0


def test_the_context_ends_where_the_kv_does(dense_model: Path) -> None:
    ready = Engine.load(options(dense_model, kv_tokens=64)).ready
    assert ready.context_tokens == 64
    assert any("64 tokens" in note for note in ready.notes)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux lists a process's maps")
def test_files_are_not_mapped_any_more(moe_model: Path) -> None:
    engine = Engine.load(options(moe_model))
    assert str(moe_model) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    engine.close()


def test_progress_counts_experts_and_layers(moe_model: Path) -> None:
    seen: list[Progress] = []
    Engine.load(options(moe_model), seen.append)
    assert seen[0] == Progress(phase="starting")
    for phase, unit in (("experts", "bytes"), ("reading", "layers")):
        steps = [each for each in seen if each.phase == phase]
        assert steps[-1].done == steps[-1].total > 0
        assert {each.unit for each in steps} == {unit}
        assert [each.done for each in steps] == sorted(each.done for each in steps)


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0])
def test_sim_gives_the_tokens_of_cpu(moe_model: Path, rate: float) -> None:
    wanted = [submit(1, 30), submit(2)]
    cpu = driver(moe_model).run(wanted)
    sim = driver(moe_model, device="sim", moe_cache_rate=rate).run(wanted)
    for each in wanted:
        assert sim.tokens(each.request) == cpu.tokens(each.request)


def test_sim_tells_its_slots_and_its_traffic(moe_model: Path) -> None:
    run = driver(moe_model, device="sim", moe_cache_rate=0.5)
    run.run([submit(1, 30)])
    stats = run.engine.stats()
    assert (stats.expert_total, stats.expert_slots) == (16, 8)
    assert 0 < stats.expert_slots_used <= 8
    assert stats.expert_misses == stats.expert_fills > 0 and stats.expert_hits > 0
    routed = stats.expert_hits + stats.expert_misses
    assert stats.expert_hit_rate == pytest.approx(stats.expert_hits / routed)
    assert stats.link_bytes % stats.expert_fills == 0 and stats.link_bytes_per_s > 0
    assert (stats.cpu_share, stats.host_bytes_per_s) == (0, 0)
    owners = (
        stats.vram_dense_bytes,
        stats.vram_expert_bytes,
        stats.vram_kv_bytes,
        stats.vram_workspace_bytes,
    )
    assert min(owners) > 0 and stats.vram_total_bytes == sum(owners)
    assert (stats.ram_dense_bytes, stats.ram_kv_bytes) == (0, 0)
    assert stats.ram_expert_store_bytes > 0
    resident = run.engine.residency()
    assert resident.experts == 8 and [layer.layer for layer in resident.layers] == [0, 1]
    assert sum(len(layer.resident) for layer in resident.layers) == stats.expert_slots_used


def test_cpu_computes_every_expert_in_place(moe_model: Path) -> None:
    run = driver(moe_model).run([submit(1)])
    stats = run.engine.stats()
    assert (stats.expert_slots, stats.expert_hits, stats.expert_misses) == (0, 0, 0)
    assert stats.cpu_share == 1 and stats.host_bytes_per_s > 0
    assert stats.vram_total_bytes == 0 and stats.ram_dense_bytes > 0
    assert run.engine.residency().layers == []


def test_recurrent_states_are_told(recurrent_model: Path) -> None:
    run = driver(recurrent_model, max_sequences=3)
    states = run.engine.parts.states
    assert states is not None and states.rows == 3
    assert run.engine.stats().ram_snapshot_bytes == states.nbytes


def test_estimated_dense_weights_are_those_placed(model: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        parts = load(options(model, dtype=dtype))
        # More only by the biases of q, k and v, which are counted in float32.
        assert parts.dense_bytes <= parts.budget.host.dense <= 1.01 * parts.dense_bytes
    assert open_checkpoint(model).display_name


def test_the_proof_computes_the_end_of_the_longest_request(model: Path) -> None:
    parts = load(options(model, context_tokens=200, prefill_chunk_tokens=64))
    seen: list[Batch] = []

    def watch(batch: Batch, forward: Callable[[], Tensor]) -> Tensor:
        seen.append(batch)
        return forward()

    Interceptor(parts, watch)
    prove(parts)
    (batch,) = seen
    assert batch.positions.tolist() == list(range(136, 200))
    (sequence,) = batch.sequences
    assert (sequence.context, sequence.length, len(sequence.pages)) == (136, 64, 13)


def test_a_context_beyond_the_kv_size_is_refused(moe_model: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"100 tokens.*64 tokens"):
        Engine.load(options(moe_model, context_tokens=100, kv_tokens=64))


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(moe_model: Path) -> None:
    with pytest.raises(OutOfMemory, match=r"\d [kMG]B .*\d [kMG]B "):
        Engine.load(options(moe_model, emulate_ram_bytes=100_000))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_tokens", 257),
        ("context_tokens", -1),
        ("max_sequences", 0),
        ("max_waiting", -1),
        ("prefill_chunk_tokens", 0),
        ("moe_cache_rate", 0.0),
        ("threads", -1),
    ],
)
def test_options_out_of_range_are_refused(moe_model: Path, name: str, value: float) -> None:
    with pytest.raises(InvalidRequest) as error:
        Engine.load(options(moe_model, **{name: value}))
    assert error.value.param == name


def test_a_link_that_is_played_is_no_faster_than_asked_for(moe_model: Path) -> None:
    rate = 2e6
    slow = driver(
        moe_model, device="sim", moe_cache_rate=0.25, emulate_link_bytes_per_s=int(rate)
    ).run([submit(1, 30)])
    stats = slow.engine.stats()
    assert stats.emulated and 0 < stats.gather_bytes_per_s <= rate
    experts = slow.engine.parts.experts
    assert experts is not None
    counters = experts.counters()
    assert counters.gather_bytes == stats.link_bytes > 0
    assert counters.gather_ns >= counters.gather_bytes / rate * 1e9 * 0.9999
    assert stats.gather_us_per_step > 0
    plain = driver(moe_model, device="sim", moe_cache_rate=0.25).run([submit(1, 30)])
    assert slow.tokens(1) == plain.tokens(1)
