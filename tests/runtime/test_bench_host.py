"""The host benchmark on little memory: its rows, its record, what it refuses and tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import cli
from engine.formats.weight import StoredWeight
from engine.kernels.dequantise import dequantise
from engine.kernels.moe import decoded_blocks
from engine.native.library import library
from engine.native.topology import Core, Topology
from engine.runtime import bench_host, host_work
from engine.runtime.caches import last_cache_bytes
from engine.runtime.host_work import FORMATS, Stretch

needs_library = pytest.mark.skipif(library() is None, reason="the native library is not built")
SMALL = "--mebibytes 32 --rounds 2 --threads 1"


@needs_library
def test_it_prints_and_records_every_format_s_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "host.json"
    chosen = f"{SMALL} --formats nvfp4 q4_k --operations --json {file}"
    assert cli.main(["bench", "host", *chosen.split()]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    shares = ["host nvfp4", "host q4_k", "host moe nvfp4", "host nvfp4 torch"]
    for name in shares:
        assert name in printed
        assert rows[name]["unit"] == "GB/s" and rows[name]["versus"] == "reading"
    reads = [row["value"] for name, row in rows.items() if name.startswith("host read ")]
    assert len(reads) >= 1 and "host read 1 threads" in rows
    for name in shares:
        assert rows[name]["ratio"] == pytest.approx(rows[name]["value"] / max(reads))
    machine = record["machine"]
    assert machine["stream"] == pytest.approx(max(reads), abs=0.06) and machine["threads"] == 1
    assert (record["bench"], record["schema"]) == ("host", 1)


@needs_library
def test_tiers_are_measured_side_by_side_and_the_one_in_use_comes_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    native = library()
    assert native is not None
    used = native.tier
    chosen = f"{SMALL} --formats bfloat16 --tiers {' '.join(native.tiers)}"
    assert cli.main(["bench", "host", *chosen.split()]) == 0
    printed = capsys.readouterr().out
    assert all(f"host bfloat16 {tier}" in printed for tier in native.tiers)
    assert native.tier == used
    assert cli.main(["bench", "host", *f"{SMALL} --formats bfloat16 --tiers sse9".split()]) == 1
    assert "no instruction set 'sse9' here" in capsys.readouterr().err


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_DEBUG_NATIVE", "0")
    library.cache_clear()
    yield
    library.cache_clear()


def test_without_the_library_operations_are_measured_and_it_says_what_to_do(
    no_library: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "host.json"
    chosen = f"{SMALL} --formats nvfp4 q4_k --json {file}"
    assert cli.main(["bench", "host", *chosen.split()]) == 0
    assert "python3 dev.py setup" in capsys.readouterr().out
    record = json.loads(file.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    measured = {name for name in rows if not name.startswith("host read ")}
    assert measured == {"host nvfp4 torch", "host q4_k torch", "host moe nvfp4 torch"}
    assert all(rows[name]["versus"] == "reading" for name in measured)
    assert rows["host read 1 threads"]["value"] > 0
    assert "PyTorch's operations" in record["notes"][0]


def test_without_the_library_tiers_are_refused(
    no_library: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", "host", *f"{SMALL} --tiers avx2".split()]) == 1
    assert "python3 dev.py setup" in capsys.readouterr().err


@needs_library
def test_reading_takes_no_more_threads_than_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = tuple(Core(0, 0, cpu) for cpu in range(8))
    monkeypatch.setattr(bench_host, "topology", lambda: Topology(cores, 2.5, pinning=False))
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    choices = bench_host.Choices(formats=["bfloat16"], threads=1, rounds=1, mebibytes=1)
    names = [row.name for row in bench_host.measure_host(choices).rows]
    assert [name for name in names if "read" in name] == [
        "host read 1 threads",
        "host read 2 threads",
    ]


@needs_library
def test_moe_layers_that_do_not_fit_have_no_row() -> None:
    choices = bench_host.Choices(formats=["float32", "nvfp4"], threads=1, rounds=1, mebibytes=16)
    result = bench_host.measure_host(choices)
    assert [row.name for row in result.rows if "moe" in row.name] == ["host moe nvfp4"]
    assert any("bfloat16 activations" in note for note in result.notes)
    choices = bench_host.Choices(formats=["nvfp4"], threads=1, rounds=1, mebibytes=1)
    result = bench_host.measure_host(choices)
    assert not any("moe" in text for text in (*(row.name for row in result.rows), *result.notes))
    assert all(row.value > 0 for row in result.rows)


def test_moe_steps_take_bfloat16_as_products_do() -> None:
    taken = []
    spec = host_work.blob_spec("nvfp4", host_work.HIDDEN, host_work.INNER)
    draws = torch.zeros(1, 1, host_work.ROUTES, dtype=torch.int64)
    host_work._steps(lambda *step: taken.append(step[2].dtype), torch.empty(0), spec, draws)
    assert taken == [torch.bfloat16]


@needs_library
def test_more_than_half_of_free_memory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "host", "--mebibytes", str(1 << 30)]) == 1
    assert "half of what is free" in capsys.readouterr().err


def test_the_stretch_is_larger_than_the_caches_and_fits_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_host, "free_host_bytes", lambda: 64 << 30)
    assert bench_host._stretch_bytes(0, 32 << 20) == 2 << 30
    assert bench_host._stretch_bytes(0, 1 << 30) == 4 << 30
    monkeypatch.setattr(bench_host, "free_host_bytes", lambda: 3 << 30)
    assert bench_host._stretch_bytes(0, 1 << 30) == 3 << 29
    assert "partly theirs" in "".join(bench_host._cache_note(3 << 29, 1 << 30))


@pytest.mark.parametrize("storage", FORMATS)
def test_the_work_reads_what_it_says_and_no_number_is_slow(storage: str) -> None:
    stretch = Stretch(2 << 20)
    weight: StoredWeight = stretch._weight(storage, 2 << 20)
    assert 0.8 * (2 << 20) < weight.nbytes <= 2 << 20
    if storage in ("q8_0", "q4_0", "q4_1", "q4_k", "q6_k"):
        return
    values = dequantise(weight, torch.float64)
    smallest, largest = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    magnitudes = values.abs()[values != 0]
    assert float(magnitudes.min()) > smallest and float(magnitudes.max()) < largest


@pytest.mark.parametrize("storage", ["bfloat16", "fp8_block", "nvfp4", "mxfp4"])
def test_a_moe_step_s_numbers_stay_normal(storage: str) -> None:
    stretch = Stretch(64 << 20)
    work = stretch.moe(storage, tokens=1)
    assert work is not None and work.name == f"moe {storage}"
    spec = host_work.blob_spec(storage, host_work.HIDDEN, host_work.INNER)
    bank = stretch.bytes[: spec.stride].view(1, spec.stride)
    ((_, _, rows), *_) = decoded_blocks(bank, spec, "gate_up", [0])
    gate = float(rows[0].double().sum() * host_work.LARGE)
    ((_, _, rows), *_) = decoded_blocks(bank, spec, "down", [0])
    one = abs(gate * gate / 2 * float(rows[0, 0]))
    assert torch.finfo(torch.float32).tiny < one < torch.finfo(torch.float32).max
    work.run()


def test_shared_caches_count_once(tmp_path: Path) -> None:
    for cpu in range(4):
        for index, (level, size) in enumerate([(1, "48K"), (2, "2048K"), (3, "32M")]):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "size").write_text(f"{size}\n")
            shared = str(cpu) if level < 3 else "0-1" if cpu < 2 else "2-3"
            (folder / "shared_cpu_list").write_text(f"{shared}\n")
    assert last_cache_bytes(tmp_path) == 64 << 20
    assert last_cache_bytes(tmp_path / "absent") == 0
