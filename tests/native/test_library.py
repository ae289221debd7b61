"""Finding, loading and refusing the library; its threads."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
import torch

from engine.errors import InvalidRequest
from engine.kernels.linear import linear
from engine.kernels.moe import moe_combine, moe_expert_rows
from engine.native import library as module
from engine.native.library import Library, NativeError, library
from engine.native.structures import Matrix
from tests.experts.checkpoint_experts import store
from tests.project.checkout import ROOT


@pytest.fixture
def afresh() -> object:
    """The module forgets what it found, before and after."""
    library.cache_clear()
    yield
    library.cache_clear()


def test_the_kernels_answer_on_the_cpu(native: Library) -> None:
    for operation in (linear, moe_combine, moe_expert_rows):
        assert operation.kernel("cpu") is not operation.reference
        assert operation.kernel("meta") is operation.reference


def test_what_is_missing_is_said_once_with_the_remedy(
    afresh: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    with caplog.at_level(logging.WARNING):
        assert library() is None
        assert library() is None
    (record,) = caplog.records
    assert "have not been built" in record.getMessage()
    assert "python3 dev.py setup" in record.getMessage()


def test_a_wheel_s_library_lies_beside_its_loader(
    afresh: None, native: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / native.path.name).write_bytes(native.path.read_bytes())
    monkeypatch.setattr(module, "FOLDER", tmp_path / "_build")
    found = library()
    assert found is not None and found.path.parent == tmp_path


def test_an_installed_program_is_not_told_of_the_checkout_s_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "program", lambda: tmp_path)
    assert "dev.py" not in module.remedy()
    assert f'"{sys.executable}" -m pip install' in module.remedy()


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"headrace_native{module.SUFFIX}"
    path.write_bytes(b"not a library")
    with pytest.raises(NativeError, match="does not load"):
        Library(path)


def test_another_interface_is_refused(native: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ABI", module.ABI + 1)
    with pytest.raises(NativeError, match=f"interface {module.ABI - 1}, .* needs {module.ABI}"):
        Library(native.path)


def test_a_library_that_was_cut_off_is_refused_before_it_is_loaded(
    afresh: None,
    native: Library,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    content = native.path.read_bytes()
    (tmp_path / native.path.name).write_bytes(content[:200_000])
    (tmp_path / "record.json").write_text(json.dumps({"size": len(content)}))
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(ctypes, "CDLL", None)  # what loads it could end this process
    assert library() is None
    assert f"damaged: it has 200000 bytes, and {len(content)}" in caplog.text
    assert "python3 dev.py setup" in caplog.text


@pytest.mark.parametrize("table", ["_SIGNATURES", "READ_SIGNATURES"])
def test_a_library_that_lacks_a_function_is_refused(
    afresh: None,
    native: Library,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    table: str,
) -> None:
    monkeypatch.setitem(getattr(module, table), "headrace_of_tomorrow", (ctypes.c_int32,))
    assert library() is None
    assert "is of another version: it lacks headrace_of_tomorrow" in caplog.text


def test_the_header_and_the_loader_name_one_interface() -> None:
    header = (ROOT / "engine/native/source/headrace_native.h").read_text(encoding="utf-8")
    assert f"#define HEADRACE_NATIVE_ABI {module.ABI}\n" in header
    for name in module._SIGNATURES:
        assert f" {name}(" in header or f"*{name}(" in header


def test_the_instruction_set_can_be_capped(
    afresh: None, native: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG_ISA", "portable")
    capped = library()
    assert capped is not None
    assert capped.tier == "portable"
    native.set_tier(native.tiers[-1])
    with pytest.raises(NativeError, match="no instruction set 'sse9' here; there are portable"):
        native.set_tier("sse9")


def test_a_name_in_capitals_caps_the_instruction_set(
    afresh: None, native: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG_ISA", " Portable")
    capped = library()
    assert capped is not None and capped.tier == "portable"


@pytest.mark.parametrize("setting", ["bogus", " "])
def test_an_unknown_instruction_set_is_refused_with_those_there_are(
    afresh: None, native: Library, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG_ISA", setting)
    with pytest.raises(InvalidRequest, match=f"HEADRACE_DEBUG_ISA is '{setting}'") as refusal:
        library()
    assert ", ".join(native.compiled_tiers) in refusal.value.hint
    verify = [sys.executable, "-m", "engine.cli", "bench", "host"]
    told = subprocess.run(verify, cwd=ROOT, capture_output=True, text=True, encoding="utf-8")
    assert told.returncode == 1
    assert told.stderr.startswith("error: HEADRACE_DEBUG_ISA is ")
    assert "Traceback" not in told.stderr


def test_an_instruction_set_that_the_machine_lacks_caps_to_the_best_below(
    afresh: None,
    native: Library,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [*native.compiled_tiers, "avx2048"]  # every real one may be here
    monkeypatch.setattr(Library, "compiled_tiers", names)
    monkeypatch.setenv("HEADRACE_DEBUG_ISA", "avx2048")
    capped = library()
    assert capped is not None and capped.tier == native.tiers[-1]
    assert f"no avx2048: the CPU kernels use {capped.tier}" in caplog.text


def test_a_run_without_the_library_gives_the_same_answer(native: Library) -> None:
    code = (
        "import torch; from engine.kernels.linear import linear;"
        "from engine.formats.weight import StoredWeight; torch.manual_seed(0);"
        "w = StoredWeight('float32', (4, 8), {'weight': torch.randn(4, 8)});"
        "print(linear.kernel('cpu') is linear.reference);"
        "print(linear(torch.ones(1, 8), w, None).tolist())"
    )
    answers = []
    for setting in ("0", "1"):
        environment = os.environ | {"HEADRACE_DEBUG_NATIVE": setting}
        outcome = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(outcome.stdout.splitlines())
    assert [answer[0] for answer in answers] == ["True", "False"]
    first, second = (torch.tensor(eval(answer[1])) for answer in answers)
    assert torch.allclose(first, second, rtol=1e-6)


def test_bad_calls_return_a_status(native: Library) -> None:
    words = torch.zeros(64)
    at = words.data_ptr()
    for *shape, scale, kind in (
        (99, 4, 4, None, 0),
        (4, 4, 24, at, 0),
        (3, 4, 4, None, 0),
        (0, 4, 4, None, 7),
    ):
        storage, rows, columns = shape
        matrix = Matrix(rows, columns, at, scale, scale, None, storage)
        assert native.products(matrix, 1, at, kind, 1, at) == module.BAD_ARGUMENT
    assert native.decode(0, 4, 4, at, None, None, 3, 2, at) == module.BAD_ARGUMENT


def test_threads_come_and_go_and_sleep_when_idle(native: Library) -> None:
    weight = store(torch.randn(2000, 512), "bfloat16")
    x = torch.randn(3, 512)
    torch.set_num_threads(1)
    expected = linear(x, weight, None)
    process = psutil.Process()
    for threads in (4, 2, 3, 1, 4):
        torch.set_num_threads(threads)
        for _ in range(50):
            assert torch.equal(linear(x, weight, None), expected)
    time.sleep(0.2)
    before = sum(process.cpu_times()[:2])
    time.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before < 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux where its threads run")
def test_threads_run_where_they_are_put(native: Library) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    before = set(Path("/proc/self/task").iterdir())

    def masks() -> list[set[int]]:
        native.set_threads(1)
        native.set_threads(2)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and native.placed < 1:
            time.sleep(0.01)
        started = set(Path("/proc/self/task").iterdir()) - before
        return [os.sched_getaffinity(int(task.name)) for task in started]

    if len(cpus) < 2:
        pytest.skip("one CPU is no choice")
    try:
        native.set_cpus(cpus[:2], each=True)
        assert masks() == [{cpus[1]}]
        native.set_cpus(cpus[:2])
        assert masks() == [set(cpus[:2])]
        native.set_cpus([cpus[-1], 100_000])  # CPUs that are not there are passed over
        assert masks() == [{cpus[-1]}]
        assert os.sched_getaffinity(0) == set(cpus)
    finally:
        native.set_cpus([])
        native.set_threads(1)


def test_two_callers_take_turns(native: Library) -> None:
    weight = store(torch.randn(700, 512), "nvfp4")
    x = torch.randn(2, 512)
    torch.set_num_threads(2)
    expected = linear(x, weight, None)
    wrong = []

    def call() -> None:
        torch.set_num_threads(2)
        wrong.extend(1 for _ in range(100) if not torch.equal(linear(x, weight, None), expected))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_callers_that_differ_about_threads_leave_what_is_noted(
    native: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, counts = native.functions.headrace_set_threads, [1]

    def slow(threads: int) -> None:
        counts.append(real(threads))
        time.sleep(0.001)  # lets another caller in before the number is noted

    monkeypatch.setattr(native.functions, "headrace_set_threads", slow)

    def call(own: int) -> None:
        for number in range(30):
            native.set_threads(1 + (number + own) % 2)

    callers = [threading.Thread(target=call, args=(own,)) for own in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts[-1] == native._threads
    assert all(before != after for before, after in pairwise(counts))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("call", ["set_threads(3)", "set_threads(1)", "set_cpus([])"])
def test_a_forked_child_is_refused_and_does_not_hang(native: Library, call: str) -> None:
    code = (
        "import os, signal, sys\n"
        "from engine.native.library import NativeError, library\n"
        "native = library(); native.set_threads(2)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.alarm(5)\n"
        "    try:\n"
        f"        native.{call}\n"
        "    except NativeError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 8)\n"
        "    os._exit(9)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "native.set_threads(1)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert outcome.stdout.strip() == "7"


def test_reading_sees_every_byte(native: Library) -> None:
    data = torch.zeros(3_000_017, dtype=torch.uint8)
    assert native.read(data.data_ptr(), data.numel()) == 0
    for place in (0, 1_500_000, data.numel() - 1):
        data[place] = 1
    assert native.read(data.data_ptr(), data.numel()) != 0
