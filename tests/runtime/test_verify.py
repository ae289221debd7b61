"""`headrace verify`: a sound model passes, and damage is found and named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine import cli
from engine.context.batch import Batch
from engine.errors import InvalidRequest
from engine.experts.slots import SlotPool
from engine.formats.blob import BlobSpec
from engine.kernels.moe import moe_expert_rows
from engine.runtime.loading import load
from engine.runtime.verify_figures import measured
from engine.runtime.verify_steps import Steps
from engine.runtime.verify_text import load_text
from tests.runtime.driving import Interceptor, options

SHORT = ["--prompt-tokens", "20", "--tokens", "6", "--threads", "1"]


def verify(model: Path | str, *more: str) -> int:
    devices = [] if "--devices" in more else ["--devices", "cpu", "sim"]
    return cli.main(["verify", "--model", str(model), *SHORT, *devices, *more])


def test_the_demo_model_is_what_it_must_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "verify.json"
    assert verify("demo", "--rates", "0.37", "--replays", "2", "--json", str(file)) == 0
    printed = capsys.readouterr()
    assert "FAILED" not in printed.err
    record = json.loads(file.read_text())
    assert record["bench"] == "verify" and record["model"] == "demo"
    rows = {row["name"]: row for row in record["rows"]}
    for name in ("sim 100%", "sim 37%", "sim 37% evicted", "sim 37% streamed"):
        assert (rows[f"{name} apart"]["value"], rows[f"{name} apart"]["versus"]) == (
            0,
            "cpu float32",
        )
    assert rows["sim replays 37% apart"]["unit"] == "of 2 steps"
    assert 0 < rows["cpu float32 relative error"]["value"] < 1e-5
    assert rows["cpu bfloat16 relative error"]["value"] > 1e-4
    assert rows["cpu float32 perplexity"]["ratio"] == pytest.approx(1, abs=1e-5)
    assert "held_out.jsonl: a prompt of 20 tokens, then 6 decode steps" in printed.out


def test_every_kind_of_layer_passes(model: Path) -> None:
    assert verify(model, "--rates", "0.6", "--replays", "4") == 0


def test_a_setting_that_did_not_happen_is_not_called_equal(
    moe_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """There are fewer slots than a layer has experts."""
    assert verify(moe_model, "--devices", "sim", "--rates", "0.2") == 0
    printed = capsys.readouterr().out
    assert "sim 20% streamed: nothing was streamed" in printed
    assert not any("sim 20% streamed" in line and "=" in line for line in printed.splitlines())


def test_a_changed_byte_in_a_slot_is_found(
    moe_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill, number = SlotPool.fill, itertools.count()

    def damaging(pool: SlotPool, bank: Tensor, fills: Sequence[tuple[int, int]]) -> None:
        fill(pool, bank, fills)
        if fills and next(number) == 30:
            pool.bank[fills[0][1], 3] ^= 0x40

    monkeypatch.setattr(SlotPool, "fill", damaging)
    assert verify(moe_model, "--rates", "0.4") == 1
    told = capsys.readouterr()
    assert "FAILED: sim 40%" in told.err and "is not equal to cpu float32" in told.err
    assert "NOT cpu float32" in told.out


def test_swapped_experts_are_found(
    moe_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill = SlotPool.fill

    def swapping(pool: SlotPool, bank: Tensor, fills: Sequence[tuple[int, int]]) -> None:
        fill(pool, bank, [(expert ^ 1, slot) for expert, slot in fills])

    monkeypatch.setattr(SlotPool, "fill", swapping)
    assert verify(moe_model, "--rates", "0.4") == 1
    told = capsys.readouterr().err
    assert "FAILED: sim 100% is not equal to cpu float32" in told
    assert "FAILED: sim 100% is too far from the reference: its relative error is" in told


def test_a_damaged_kernel_is_found(
    moe_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal bits everywhere, and wrong ones: the reference does not go through the kernel."""

    def damaged(
        bank: Tensor, spec: BlobSpec, x: Tensor, slots: Tensor, rows: Tensor, *more: int
    ) -> None:
        moe_expert_rows.reference(bank, spec, x, slots, rows, *more)
        rows[slots >= 0] *= 1.01

    monkeypatch.setitem(moe_expert_rows._kernels, "cpu", damaged)
    assert verify(moe_model, "--rates", "0.4") == 1
    told = capsys.readouterr().err
    assert "FAILED: cpu float32 is too far from the reference" in told
    assert "is not equal" not in told


def test_replays_that_differ_are_counted(recurrent_model: Path) -> None:
    parts = load(options(recurrent_model, device="sim", max_sequences=3, context_tokens=32))
    number = itertools.count()

    def change(_: Batch, forward: Callable[[], Tensor]) -> Tensor:
        # Three prompts first, then two steps a turn: one of the third turn's is changed.
        return forward() + (next(number) == 3 + 2 * 2)

    Interceptor(parts, change)
    steps = Steps(parts)
    replayed = steps.replay(5, seed=1)
    steps.close()
    assert (replayed.steps, replayed.captured, replayed.mismatched) == (5, 0, 1)


def test_the_first_layers_alone(recurrent_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(recurrent_model, "--layers", "5") == 1
    assert "The first 5 layers are asked for; the model has 4." in capsys.readouterr().err
    assert verify(recurrent_model, "--layers", "4", "--devices", "cpu") == 0
    whole = capsys.readouterr().out
    assert verify(recurrent_model, "--layers", "3", "--devices", "cpu") == 0
    cut = capsys.readouterr().out
    assert "only the first 3 of 4 layers are loaded" in cut
    assert whole.splitlines()[2:5] != cut.splitlines()[2:5]


def test_texts_of_one_s_own(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("All experts are equal, but some are more equal than others. " * 4)
    text = load_text("demo", file, 9216, 20, 6)
    assert (text.name, len(text.tokens), text.decoded) == ("text.txt", 26, 6)
    assert text.targets == text.tokens[20:]
    for name, content, complaint in (
        ("short.txt", "Hello.", "tokens; 26 are asked for"),
        ("other.jsonl", '{"text": "x"}', "not every line is a JSON string"),
        ("broken.jsonl", '"x', "cannot be read"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(InvalidRequest, match=complaint):
            load_text("demo", tmp_path / name, 9216, 20, 6)


def test_figures_are_what_their_names_say() -> None:
    reference = torch.tensor([[0.0, 0.0], [2.0, 0.0]]).log_softmax(-1)
    logits = torch.tensor([[0.0, 0.0], [0.0, 2.0]]).log_softmax(-1)
    figures = measured(logits, reference, [1])
    p = float(reference[1, 0].exp())
    assert figures.agreement == 0.5
    assert figures.error == pytest.approx(2)
    assert figures.worst_divergence == pytest.approx(2 * (2 * p - 1))
    assert figures.divergence == pytest.approx(2 * p - 1)
    assert figures.perplexity == pytest.approx(2)
    assert figures.relative == pytest.approx(float((logits - reference).norm() / reference.norm()))
