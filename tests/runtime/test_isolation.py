"""A fault belongs to the request that causes it; others go on with unchanged tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.context.batch import Batch
from engine.errors import DeviceFault
from engine.messages import Finished, RequestFailed, Sampling, Submit
from engine.runtime.debug import DebugFaults
from engine.runtime.sampling_row import SamplingRow
from tests.runtime.conftest import VOCAB
from tests.runtime.driving import Driver, Interceptor, driver, prompt

MARK = VOCAB - 1
Compute = Callable[[], torch.Tensor]


def request(number: int, length: int = 10, marked: bool = False, count: int = 12) -> Submit:
    tokens = prompt(length, seed=number)
    if marked:
        tokens[length // 2] = MARK
    return Submit(request=number, tokens=tokens, max_tokens=count, sampling=Sampling(temperature=0))


def unchanged(model: Path, run: Driver, wanted: list[Submit]) -> None:
    for submit in wanted:
        assert isinstance(run.end(submit.request), Finished)
        alone = driver(model, prefill_chunk_tokens=16).run([submit])
        assert run.tokens(submit.request) == alone.tokens(submit.request)


def test_a_prompt_that_raises_fails_alone(model: Path) -> None:
    wanted = [request(1), request(2, 40)]
    run = driver(model, DebugFaults(fail_token=MARK), prefill_chunk_tokens=16)
    for submit in wanted:
        run.engine.submit(submit)
    run.step(4)
    run.run([request(3, 40, marked=True)])
    end = run.end(3)
    assert isinstance(end, RequestFailed) and end.error.code == "step_failed"
    assert "set to fail" in end.error.message
    unchanged(model, run, wanted)
    assert run.engine.stats().requests_failed == 1


def raises_at(position: int, error: Exception, times: int = 1 << 30) -> Callable[..., torch.Tensor]:
    """Raise, after the model has moved its states, when a step covers this position of 10 + 1."""
    left = [times]

    def change(batch: Batch, compute: Compute) -> torch.Tensor:
        logits = compute()
        hit = any(
            seq.context <= position < seq.context + seq.length
            and MARK in batch.tokens[seq.start : seq.start + seq.length].tolist()
            for seq in batch.sequences
        )
        if hit and left[0] > 0:
            left[0] -= 1
            raise error
        return logits

    return change


def test_states_that_a_failed_step_moved_are_computed_again(model: Path) -> None:
    wanted = [request(1, 24), request(2, 3)]
    change = raises_at(20, RuntimeError("broken kernel"))
    run = driver(model, prepare=lambda p: Interceptor(p, change), prefill_chunk_tokens=16)
    for submit in wanted:
        run.engine.submit(submit)
    run.step(5)
    bad = request(3, 40, count=4)
    bad.tokens[20] = MARK
    run.run([bad])
    end = run.end(3)
    assert isinstance(end, RequestFailed) and "broken kernel" in end.error.message
    unchanged(model, run, wanted)


def test_memory_that_comes_back_costs_nobody_anything(model: Path) -> None:
    change = raises_at(5, torch.OutOfMemoryError("no room"), times=1)
    run = driver(model, prepare=lambda p: Interceptor(p, change), prefill_chunk_tokens=16)
    wanted = [request(1), request(2, marked=True)]
    run.run(wanted)
    unchanged(model, run, wanted)
    assert all(isinstance(run.end(n), Finished) for n in (1, 2))


def test_a_lone_request_gets_one_more_try_for_memory(dense_model: Path) -> None:
    for times, kind in ((1, Finished), (2, RequestFailed)):
        change = raises_at(5, torch.OutOfMemoryError("no room"), times=times)
        run = driver(dense_model, prepare=lambda p, c=change: Interceptor(p, c))
        run.run([request(1, marked=True)])
        end = run.end(1)
        assert isinstance(end, kind)
        if isinstance(end, RequestFailed):
            assert end.error.code == "out_of_memory" and "no room" in end.error.message


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_fail_their_request(model: Path, value: float) -> None:
    def change(batch: Batch, compute: Compute) -> torch.Tensor:
        logits = compute().clone()
        for row, place in enumerate(batch.logit_rows.tolist()):
            if int(batch.positions[place]) >= 14 and len(batch.tokens) > 1:
                owner = next(s for s in batch.sequences if s.start <= place < s.start + s.length)
                if int(owner.pages[0]) == 0:
                    logits[row, 3] = value
        return logits

    wanted = [request(1, 12), request(2, 12)]
    run = driver(model, prepare=lambda p: Interceptor(p, change), prefill_chunk_tokens=32)
    run.run(wanted)
    end = run.end(1)
    assert isinstance(end, RequestFailed) and end.error.code == "step_failed"
    assert "position 14" in end.error.message and "not a number" in end.error.message
    assert len(run.tokens(1)) == 3
    unchanged(model, run, wanted[1:])


def test_pages_that_held_nan_do_not_reach_their_next_owner(model: Path) -> None:
    run = driver(model, kv_tokens=64)
    attention = 3 if "recurrent" in str(model) else 0
    for part in run.engine.parts.kv.layer(attention):
        part.fill_(torch.nan)
    wanted = [request(1, 20), request(2, 5)]
    run.run(wanted)
    unchanged(model, run, wanted)


def test_an_error_of_the_sampler_is_its_requests_own(
    dense_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = SamplingRow.draw

    def faulty(self: SamplingRow) -> float:
        if self.sampling.seed == 13 and self.drawn == 3:
            raise ArithmeticError("unlucky")
        return draw(self)

    monkeypatch.setattr(SamplingRow, "draw", faulty)

    def sampled(number: int, seed: int) -> Submit:
        return Submit(
            request=number,
            tokens=prompt(8, seed=number),
            max_tokens=8,
            sampling=Sampling(seed=seed),
        )

    run = driver(dense_model).run([sampled(1, 12), sampled(2, 13), sampled(3, 14)])
    end = run.end(2)
    assert isinstance(end, RequestFailed) and "unlucky" in end.error.message
    assert len(run.tokens(2)) == 3
    for number, seed in ((1, 12), (3, 14)):
        assert run.tokens(number) == driver(dense_model).run([sampled(number, seed)]).tokens(number)


def test_a_lost_device_ends_the_engine_with_a_typed_error(dense_model: Path) -> None:
    change = raises_at(5, torch.AcceleratorError("CUDA error: an illegal memory access"))
    run = driver(dense_model, prepare=lambda p: Interceptor(p, change))
    with pytest.raises(DeviceFault, match="illegal memory access"):
        run.run([request(1, marked=True)])


def test_slots_give_up_what_a_step_lacked(moe_model: Path) -> None:
    """A quarter of the slots is what the step asked for in vain."""
    plain = driver(moe_model, device="sim")
    experts = plain.engine.parts.experts
    assert experts is not None and experts.slots == (16,)
    lacking = f"Tried to allocate {4 * experts.pools[0][0].stride >> 10}.00 KiB. No more is free."
    change = raises_at(5, torch.OutOfMemoryError(lacking), times=1)
    run = driver(moe_model, device="sim", prepare=lambda p: Interceptor(p, change))
    wanted = [request(1), request(2, marked=True)]
    run.run(wanted)
    parts = run.engine.parts
    assert parts.experts is not None and parts.experts.slots == parts.budget.slots == (12,)
    assert run.engine.stats().expert_slots == 12
    for submit in wanted:
        assert isinstance(run.end(submit.request), Finished)
        assert run.tokens(submit.request) == driver(moe_model).run([submit]).tokens(submit.request)


def test_a_request_that_no_slots_can_help_fails_alone(moe_model: Path) -> None:
    change = raises_at(5, torch.OutOfMemoryError("no room"))
    run = driver(moe_model, device="sim", prepare=lambda p: Interceptor(p, change))
    run.run([request(1), request(2, marked=True), request(3)])
    end = run.end(2)
    assert isinstance(end, RequestFailed) and end.error.code == "out_of_memory"
    assert all(isinstance(run.end(number), Finished) for number in (1, 3))
    assert run.engine.stats().expert_slots >= 1
