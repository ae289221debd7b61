"""A budget is proven by the largest step, on a device that is played to be of some size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.context.batch import Batch
from engine.errors import InvalidRequest, OutOfMemory
from engine.experts.store import plan_layers
from engine.formats.checkpoint import open_checkpoint
from engine.memory.solver import solve
from engine.messages import Sampling, Submit
from engine.models.registry import describe, expert_tensors
from engine.options import EngineOptions
from engine.paths import demo_model
from engine.runtime.debug import DebugFaults
from engine.runtime.engine import Engine
from engine.runtime.loading import load, memory_need
from engine.runtime.parts import Parts
from engine.runtime.proving import settle
from tests.runtime.driving import Driver, Interceptor, options, prompt

MIB = 1 << 20
SUBMIT = Submit(request=1, tokens=prompt(40), max_tokens=8, sampling=Sampling(temperature=0))


def played(mebibytes: int) -> tuple[Parts, EngineOptions]:
    given = options(
        demo_model(),
        device="sim",
        context_tokens=512,
        max_sequences=2,
        emulate_vram_bytes=mebibytes * MIB,
    )
    return load(given), given


def check(parts: Parts) -> None:
    """Everything is as the budget says, and that is not more than the device has."""
    share, limits = parts.budget.device, parts.limits
    assert share is not None and parts.experts is not None
    assert parts.experts.slots == parts.budget.slots
    assert (parts.kv.nbytes, limits.kv_tokens) == (share.kv, parts.budget.kv_tokens)
    assert limits.chunk_tokens == parts.budget.chunk_tokens
    held = parts.dense_bytes + parts.experts.slot_bytes + parts.kv.nbytes
    assert held <= share.taken <= share.free - share.margin < parts.memory.total


def test_an_estimate_that_is_too_high_costs_no_chunk() -> None:
    """By the estimate 140 MiB are enough for the smallest chunk only; a step takes far less."""
    parts, _ = played(140)
    check(parts)
    assert parts.limits.chunk_tokens == 512
    assert parts.share.workspace < 20 * MIB
    assert parts.ready.notes == []
    stats = Engine(parts).stats()
    assert stats.vram_total_bytes == 140 * MIB and stats.emulated
    assert stats.prefill_chunk_tokens == 512


def settled(parts: Parts, given: EngineOptions, per_token: int) -> None:
    """Divide anew where a step takes `per_token` bytes more for each of its tokens. As on a real
    GPU, it raises where nobody has left so much."""

    def change(batch: Batch, compute: Callable[[], Tensor]) -> Tensor:
        assert parts.experts is not None
        taken = parts.dense_bytes + parts.experts.slot_bytes + parts.kv.nbytes
        wanted = per_token * len(batch.tokens)
        if taken + wanted > parts.memory.total:
            raise torch.OutOfMemoryError(f"{wanted} bytes are not to be had")
        held = torch.zeros(wanted, dtype=torch.uint8)
        logits = compute()
        del held
        return logits

    Interceptor(parts, change)
    checkpoint = open_checkpoint(demo_model())
    spec = describe(checkpoint)
    plans = plan_layers(partial(expert_tensors, spec, checkpoint), spec.moe_layers)
    need = memory_need(given, checkpoint, spec, parts.device, torch.float32, plans)
    divide = partial(solve, has_slots=True, host_free=1 << 36, device_in_host=True)
    settle(parts, need, partial(divide, device_free=parts.memory.free()))


@pytest.mark.parametrize(
    ("per_token", "chunk"), [(10_000, 512), (50_000, 256), (125_000, 128), (600_000, 128)]
)
def test_a_step_that_takes_more_gets_it_by_smaller_chunks_and_from_slots(
    per_token: int, chunk: int
) -> None:
    parts, given = played(176)
    assert (parts.limits.chunk_tokens, parts.budget.slots) == (512, (160,))
    settled(parts, given, per_token)
    check(parts)
    assert parts.limits.chunk_tokens == chunk
    assert parts.share.workspace >= per_token * chunk
    told = any(f"{chunk} tokens at a time instead of 512" in note for note in parts.budget.notes)
    assert told == (chunk < 512)


def test_slots_give_way_to_what_a_step_takes() -> None:
    parts, given = played(100)
    settled(parts, given, 520_000)
    check(parts)
    assert parts.budget.slots < (160,)
    assert any("expert slots" in note for note in parts.budget.notes)


def test_where_no_step_fits_the_reason_is_told() -> None:
    parts, given = played(100)
    with pytest.raises(OutOfMemory, match=r"needs .* of device memory; .* can be had"):
        settled(parts, given, 2_000_000)


def test_answers_do_not_depend_on_the_size_of_the_device() -> None:
    answers = []
    for mebibytes in (0, 72):
        parts, _ = played(mebibytes)
        run = Driver(Engine(parts, DebugFaults())).run([SUBMIT])
        answers.append(run.tokens(1))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["emulate_vram_bytes", "emulate_link_bytes_per_s"])
def test_a_processor_is_not_played_to_be_a_gpu(dense_model: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="which the device cpu is not") as error:
        load(options(dense_model, **{name: 1 << 30}))
    assert error.value.param == name


def test_a_device_that_is_too_small_is_refused_with_both_numbers() -> None:
    with pytest.raises(OutOfMemory, match=r"needs .* of device memory; 31\.88 MB can be had"):
        played(32)
