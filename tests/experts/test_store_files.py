"""Experts that lie in a checkpoint's files go from there into the store, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import ModelFilesError
from engine.experts import store as module
from engine.experts.store import ExpertStore, plan_layers
from engine.formats.checkpoint import Checkpoint, open_checkpoint
from engine.formats.expert_tensors import ExpertTensors
from engine.formats.weight import StoredWeight
from engine.models.registry import describe, expert_tensors
from tests.experts.checkpoint_experts import FORMATS, as_tensors, random_experts
from tests.formats.checkpoints import LLAMA, write_json

LAYERS = (0, 1)


class FiledExperts:
    """Random experts in a checkpoint of several files, as views of these."""

    def __init__(self, folder: Path, formats: Sequence[str], experts: int = 3) -> None:
        made = random_experts(formats, experts=experts, hidden=288, inner=160)
        self.made = made.layers
        folder.mkdir()
        write_json(folder / "config.json", LLAMA)
        shards: list[dict[str, Tensor]] = [{}, {}]
        for name, tensor in self._named():
            shards[len(shards[0]) > len(shards[1])][name] = tensor.clone()
        index = {}
        for number, tensors in enumerate(shards):
            file = f"model-{number}.safetensors"
            save_file(tensors, folder / file)
            index |= dict.fromkeys(tensors, file)
        write_json(folder / "model.safetensors.index.json", {"weight_map": index})
        self.checkpoint: Checkpoint = open_checkpoint(folder)

    def _named(self) -> list[tuple[str, Tensor]]:
        return [
            (f"{layer}.{number}.{matrix}.{name}", part)
            for layer, experts in enumerate(self.made)
            for number, weights in enumerate(experts)
            for matrix, weight in enumerate(weights)
            for name, part in weight.parts.items()
        ]

    def __call__(self, layer: int) -> list[ExpertTensors]:
        def stored(number: int, matrix: int) -> StoredWeight:
            weight = self.made[layer][number][matrix]
            base = f"{layer}.{number}.{matrix}"
            parts = {name: self.checkpoint.read(f"{base}.{name}") for name in weight.parts}
            return StoredWeight(weight.format, weight.shape, parts)

        return [
            as_tensors(*(stored(number, matrix) for matrix in range(3)))
            for number in range(len(self.made[layer]))
        ]


@pytest.fixture(params=["library", "python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is filled by the library, and by Python where it was not built."""
    if request.param == "python":
        monkeypatch.setattr(module, "library", lambda: None)
    elif module.library() is None:
        pytest.skip("the native library is not built here")


@pytest.mark.parametrize("storage", FORMATS)
def test_read_and_copied_stores_are_equal(storage: str, tmp_path: Path, reader: None) -> None:
    experts = FiledExperts(tmp_path / "model", [storage, storage])
    plans = plan_layers(experts, LAYERS)
    copied = ExpertStore.load(experts, plans)
    found = 0

    def file_range(part: Tensor) -> object:
        nonlocal found
        place = experts.checkpoint.file_range(part)
        found += place is not None
        return place

    told: list[tuple[int, int]] = []
    read = ExpertStore.load(
        experts, plans, lambda done, total: told.append((done, total)), file_range=file_range
    )
    for layer in LAYERS:
        assert torch.equal(read.bank(layer), copied.bank(layer))
    assert found == sum(1 for _ in experts._named())
    total = sum(plan.nbytes for plan in plans)
    assert told == sorted(set(told)) and told[-1] == (total, total)


def test_parts_that_were_converted_are_copied(tmp_path: Path, reader: None) -> None:
    """Scales stored as bfloat16, say, are float32 in the blob: these bytes lie in no file."""
    experts = FiledExperts(tmp_path / "model", ["fp8_block"])
    plans = plan_layers(experts, [0])
    half = experts(0)
    for expert in half:
        assert experts.checkpoint.file_range(expert.gate.parts["weight"]) is not None
        assert experts.checkpoint.file_range(expert.gate.parts["scale"].to(torch.bfloat16)) is None
        assert experts.checkpoint.file_range(expert.gate.parts["weight"].t()) is None

    def weights_only(part: Tensor) -> object:
        return experts.checkpoint.file_range(part) if part.dtype != torch.float32 else None

    mixed = ExpertStore.load(experts, plans, file_range=weights_only)
    assert torch.equal(mixed.bank(0), ExpertStore.load(experts, plans).bank(0))


def test_the_demo_model_s_store_is_the_same_either_way(reader: None) -> None:
    from engine.paths import demo_model

    checkpoint = open_checkpoint(demo_model())
    spec = describe(checkpoint)
    source = partial(expert_tensors, spec, checkpoint)
    plans = plan_layers(source, spec.moe_layers)
    read = ExpertStore.load(source, plans, file_range=checkpoint.file_range)
    copied = ExpertStore.load(source, plans)
    for plan in plans:
        assert torch.equal(read.bank(plan.layer), copied.bank(plan.layer))


def test_reading_leaves_no_second_copy_in_this_process(tmp_path: Path) -> None:
    if module.library() is None:
        pytest.skip("the native library is not built here")
    experts = FiledExperts(tmp_path / "model", ["float32", "float32"], experts=24)
    plans = plan_layers(experts, LAYERS)
    before = psutil.Process().memory_info().rss
    store = ExpertStore.load(experts, plans, file_range=experts.checkpoint.file_range)
    # Eight readers with a buffer of 4 MiB each, and two layers' last huge pages.
    assert psutil.Process().memory_info().rss - before < store.nbytes + (40 << 20)


def test_a_file_cut_after_it_was_opened_is_an_error_and_no_crash(
    tmp_path: Path, reader: None
) -> None:
    experts = FiledExperts(tmp_path / "model", ["bfloat16"])
    plans = plan_layers(experts, [0])
    cut = tmp_path / "model" / "model-1.safetensors"
    with cut.open("r+b") as file:
        file.truncate(cut.stat().st_size - 5000)
    with pytest.raises(ModelFilesError, match=r"model-1.safetensors ends at byte \d+"):
        ExpertStore.load(experts, plans, file_range=experts.checkpoint.file_range)


def test_what_progress_raises_ends_the_load(tmp_path: Path, reader: None) -> None:
    experts = FiledExperts(tmp_path / "model", ["bfloat16", "bfloat16"])

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ExpertStore.load(
            experts,
            plan_layers(experts, LAYERS),
            stop,
            file_range=experts.checkpoint.file_range,
        )


def test_a_lock_that_is_refused_is_told_once_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    experts = random_experts(["bfloat16"] * 3, experts=2, hidden=64, inner=32)
    plans = plan_layers(experts, [0, 1, 2])
    ExpertStore.load(experts, plans, lock=True)
    answers = iter(["", "Cannot allocate memory; this user may lock 0.008 GB"])
    monkeypatch.setattr(module.HostArena, "lock", lambda arena: next(answers))
    ExpertStore.load(experts, plans, lock=True)
    told = [record.getMessage() for record in caplog.records if "locked" in record.getMessage()]
    assert len([line for line in told if "this user may lock 0.008 GB" in line]) == 1
