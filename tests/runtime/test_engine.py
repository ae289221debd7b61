"""The engine on tiny real models: what it says, whatever runs beside it and however it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.errors import ModelNotFound
from engine.messages import (
    Admitted,
    Finished,
    RequestFailed,
    Sampled,
    Sampling,
    StepEnded,
    StepStarted,
    Submit,
)
from engine.runtime.engine import Engine
from tests.runtime.conftest import VOCAB
from tests.runtime.driving import Driver, driver, options, prompt, reference

GREEDY = Sampling(temperature=0)


def request(number: int, length: int, max_tokens: int = 12, **more: object) -> Submit:
    values = {"sampling": GREEDY, "tokens": prompt(length, seed=number), **more}
    return Submit(request=number, max_tokens=max_tokens, **values)  # type: ignore[arg-type]


def test_greedy_tokens_are_those_of_transformers(model: Path) -> None:
    run = driver(model).run([request(1, 21, 16)])
    assert run.tokens(1) == reference(model, prompt(21, seed=1), 16)
    assert run.end(1) == Finished(
        request=1, reason="length", prompt_tokens=21, completion_tokens=16
    )


def test_batched_is_alone(model: Path) -> None:
    wanted = [request(number, 3 + 9 * number, 14) for number in range(1, 6)]
    together = driver(model, prefill_chunk_tokens=16).run(wanted)
    assert max(step.decode_sequences for step in together.steps()) == 5
    for submit in wanted:
        alone = driver(model, prefill_chunk_tokens=16).run([submit])
        assert together.tokens(submit.request) == alone.tokens(submit.request)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_of_any_size_give_the_same_tokens(model: Path, chunk: int) -> None:
    run = driver(model, prefill_chunk_tokens=chunk).run([request(1, 40)])
    whole = driver(model, prefill_chunk_tokens=256).run([request(1, 40)])
    assert run.tokens(1) == whole.tokens(1)
    assert sum(step.prefill_tokens for step in run.steps()) == 40


def test_decodes_ride_along_with_a_long_prompt(dense_model: Path) -> None:
    run = driver(dense_model, prefill_chunk_tokens=8)
    run.engine.submit(request(1, 4, 40))
    run.step()
    run.engine.submit(request(2, 80))
    for _ in range(10):
        events = run.step()
        assert [event.request for event in events if isinstance(event, Sampled)][:1] == [1]
    assert len(run.tokens(2)) == 1


def test_cancel_in_the_middle_of_a_prompt(model: Path) -> None:
    wanted = request(1, 20)
    run = driver(model, prefill_chunk_tokens=8)
    run.engine.submit(request(2, 100))
    run.engine.submit(wanted)
    run.step(3)
    run.engine.cancel(2)
    run.run()
    assert run.end(2) == Finished(
        request=2, reason="cancelled", prompt_tokens=100, completion_tokens=0
    )
    assert run.tokens(1) == driver(model, prefill_chunk_tokens=8).run([wanted]).tokens(1)


def test_cancel_of_a_waiting_and_of_an_unknown_request(dense_model: Path) -> None:
    run = driver(dense_model, max_sequences=1)
    run.engine.submit(request(1, 5))
    run.engine.submit(request(2, 5))
    run.step()
    run.engine.cancel(2)
    run.engine.cancel(99)
    run.run()
    assert isinstance(run.end(2), Finished)
    assert not any(isinstance(e, Admitted) and e.request == 2 for e in run.events)


def test_preemption_changes_no_token(model: Path) -> None:
    wanted = [request(number, 30, 40) for number in (1, 2, 3)]
    tight = driver(model, kv_tokens=128, prefill_chunk_tokens=16).run(wanted)
    assert tight.engine.scheduler.preemptions > 0
    for submit in wanted:
        undisturbed = driver(model, prefill_chunk_tokens=16).run([submit])
        assert tight.tokens(submit.request) == undisturbed.tokens(submit.request)
        assert len(tight.tokens(submit.request)) == 40
    admitted = [event.request for event in tight.events if isinstance(event, Admitted)]
    assert admitted == [1, 2, 3]


def test_stop_token_is_told_but_not_sent(model: Path) -> None:
    tokens = driver(model).run([request(1, 9)]).tokens(1)
    stop = tokens[5]
    run = driver(model).run([request(1, 9, stop_tokens=[stop])])
    kept = tokens[: tokens.index(stop)]
    assert run.tokens(1) == kept
    assert run.end(1) == Finished(
        request=1, reason="stop", prompt_tokens=9, completion_tokens=len(kept), stop_token=stop
    )


def test_stop_at_withdraws_what_was_sampled_since(dense_model: Path) -> None:
    run = driver(dense_model, max_sequences=1)
    run.engine.submit(request(1, 9, 30))
    run.engine.submit(request(2, 5, 3))
    run.step(8)
    assert len(run.tokens(1)) == 8
    run.engine.stop_at(1, 3)
    assert run.engine.stats().kv_tokens_used == 0
    run.run()
    run.engine.stop_at(1, 2)
    assert not run.engine.has_work
    assert run.end(1) == Finished(request=1, reason="stop", prompt_tokens=9, completion_tokens=3)
    assert len(run.tokens(2)) == 3


def test_same_seed_same_text_whatever_the_batch(model: Path) -> None:
    sampling = Sampling(temperature=1.2, top_p=0.95, seed=5)
    wanted = request(1, 12, 20, sampling=sampling)
    others = [
        request(n, 4 * n, 20, sampling=Sampling(temperature=2.0, top_k=9)) for n in range(2, 6)
    ]
    alone = driver(model).run([wanted]).tokens(1)
    assert driver(model).run([*others, wanted]).tokens(1) == alone
    different = request(1, 12, 20, sampling=Sampling(temperature=1.2, top_p=0.95, seed=6))
    assert driver(model).run([different]).tokens(1) != alone
    unseeded = request(1, 12, 20, sampling=Sampling(temperature=2.0))
    texts = {tuple(driver(model).run([unseeded]).tokens(1)) for _ in range(3)}
    assert len(texts) == 3


def test_preempted_sampling_goes_on_with_its_draws(dense_model: Path) -> None:
    wanted = [
        request(n, 30, 40, sampling=Sampling(temperature=1.0, seed=n, frequency_penalty=0.5))
        for n in (1, 2, 3)
    ]
    tight = driver(dense_model, kv_tokens=128).run(wanted)
    assert tight.engine.scheduler.preemptions > 0
    for submit in wanted:
        undisturbed = driver(dense_model).run([submit]).tokens(submit.request)
        assert tight.tokens(submit.request) == undisturbed


def test_logprobs_do_not_follow_temperature_or_bias(model: Path) -> None:
    plain = driver(model).run([request(1, 8, 1, logprobs=VOCAB)]).sampled(1)[0]
    biased = Sampling(temperature=3.0, seed=1, bias={7: 50.0})
    changed = driver(model).run([request(1, 8, 1, logprobs=3, sampling=biased)]).sampled(1)[0]
    told = {each.token: each.logprob for each in plain.top}
    assert len(told) == VOCAB
    assert torch.tensor(list(told.values())).exp().sum() == pytest.approx(1.0, abs=1e-4)
    assert plain.logprob == pytest.approx(max(told.values()))
    assert changed.token == 7
    assert changed.logprob == pytest.approx(told[7], abs=1e-5)
    assert [each.token for each in changed.top] == sorted(told, key=lambda t: -told[t])[:3]
    assert driver(model).run([request(1, 8, 1)]).sampled(1)[0].logprob is None


def test_refusals_are_events_with_codes(dense_model: Path) -> None:
    run = driver(dense_model, context_tokens=64, max_sequences=1, max_waiting=1)
    run.run(
        [
            request(1, 10, 5),
            request(2, 64),
            request(3, 4, sampling=Sampling(top_p=7.0)),
            request(4, 4, tokens=[VOCAB]),
            request(5, 4, tokens=[VOCAB], sampling=Sampling(repetition_penalty=1.5)),
            request(6, 4),
            request(7, 4),
        ]
    )
    codes = {
        n: end.error.code for n in (2, 3, 4, 5, 7) if isinstance(end := run.end(n), RequestFailed)
    }
    assert codes == {
        2: "context_length_exceeded",
        3: "invalid_request",
        4: "invalid_request",
        5: "invalid_request",
        7: "overloaded",
    }
    assert isinstance(run.end(1), Finished) and isinstance(run.end(6), Finished)
    stats = run.engine.stats()
    assert (stats.requests_finished, stats.requests_failed) == (2, 5)


def test_output_is_clipped_to_the_context(dense_model: Path) -> None:
    run = driver(dense_model, context_tokens=32).run([request(1, 28, 100)])
    assert run.end(1) == Finished(request=1, reason="length", prompt_tokens=28, completion_tokens=4)


def test_a_live_number_is_the_callers_defect(dense_model: Path) -> None:
    run = driver(dense_model)
    run.engine.submit(request(1, 5))
    with pytest.raises(ValueError, match="live"):
        run.engine.submit(request(1, 6))
    run.run()
    run.run([request(1, 5)], most=50)


def test_the_heartbeat_is_handed_over_before_the_forward(dense_model: Path) -> None:
    run = driver(dense_model)
    run.engine.submit(request(1, 5))
    handed: list[object] = []
    rest = run.engine.step(before_forward=handed.extend)
    assert handed == [
        Admitted(request=1, prompt_tokens=5),
        StepStarted(step=1, prefill_tokens=5, decode_sequences=0),
    ]
    assert isinstance(rest[-1], StepEnded) and rest[-1].step == 1 and rest[-1].seconds > 0
    assert isinstance(rest[0], Sampled)


def test_stats_add_up(model: Path) -> None:
    run = driver(model).run([request(n, 10 * n, 6) for n in (1, 2, 3)])
    stats = run.engine.stats()
    assert stats.prefill_tokens == 60 and stats.decode_tokens == 18
    assert stats.steps == len(run.steps())
    assert stats.decode_tokens_per_s > 0 and stats.prefill_tokens_per_s > 0
    assert 0 < stats.ttft_s <= stats.ttft_worst_s
    assert (stats.requests_running, stats.requests_waiting, stats.kv_tokens_used) == (0, 0, 0)
    assert stats.ram_dense_bytes > 0 and stats.ram_kv_bytes > 0 and stats.vram_kv_bytes == 0
    assert stats.ram_runtime_bytes > 0 and stats.kv_tokens_total == run.engine.ready.kv_tokens


def test_kv_tokens_used_follows_running_sequences(dense_model: Path) -> None:
    run = driver(dense_model, prefill_chunk_tokens=8)
    run.engine.submit(request(1, 20))
    run.step(2)
    stats = run.engine.stats()
    assert (stats.kv_tokens_used, stats.requests_running) == (16, 1)


def test_close_ends_everything(dense_model: Path) -> None:
    run = driver(dense_model)
    run.engine.submit(request(1, 5))
    run.step()
    scheduler = run.engine.scheduler
    run.engine.close()
    assert not scheduler.has_work and scheduler.pages.available == scheduler.pages.total


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        Engine.load(options(tmp_path / "nowhere"))


def test_driver_sees_every_event_once(dense_model: Path) -> None:
    run = Driver(driver(dense_model).engine).run([request(1, 5, 3)])
    assert [type(event) for event in run.events[:3]] == [Admitted, StepStarted, Sampled]
