"""How fast experts get into the store, and how much memory that takes at its worst.

python benchmarks/load.py --json benchmarks/results/<machine>-load.json

Writes a checkpoint of NVFP4 experts in several files and loads it in processes of their own, in
turns: by copying from mapped files, by the library's reads, and by Python's reads, which answer
where the library was not built. `cold` begins with nothing of the files in the system's cache,
`warm` with all of it. Medians; the peak counts what a process holds above what it held before it
loaded, mapped pages of files included. All three must give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch

from engine.experts import store as stores
from engine.experts.store import ExpertStore, plan_layers
from engine.formats.checkpoint import open_checkpoint
from engine.formats.expert_tensors import ExpertTensors
from engine.memory.device import resolve_device
from engine.native.library import library
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.openmp import wait_without_spinning

HIDDEN, INNER, LAYERS = 2048, 768, 12
EXPERT_BYTES = 3 * HIDDEN * INNER * 9 // 16
WAYS = ("mapped", "library", "python")


def write_checkpoint(folder: Path, nbytes: int, files: int) -> None:
    """NVFP4 experts, each layer's in one file, as writers of large checkpoints leave them."""
    from safetensors.torch import save_file

    experts = max(1, nbytes // (LAYERS * EXPERT_BYTES))
    quantisation = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    config = {"model_type": "llama", "quantization_config": quantisation, "experts": experts}
    (folder / "config.json").write_text(json.dumps(config))
    index: dict[str, str] = {}
    for file in range(files):
        tensors: dict[str, torch.Tensor] = {}
        for layer in range(file, LAYERS, files):
            for expert in range(experts):
                for matrix, (rows, columns) in enumerate([(INNER, HIDDEN)] * 2 + [(HIDDEN, INNER)]):
                    base = f"{layer}.{expert}.{matrix}"
                    codes = torch.randint(0, 256, (rows, columns // 2), dtype=torch.uint8)
                    scale = torch.randint(0, 127, (rows, columns // 16), dtype=torch.uint8)
                    tensors[f"{base}.weight"] = codes
                    tensors[f"{base}.weight_scale"] = scale.view(torch.float8_e4m3fn)
                    tensors[f"{base}.weight_scale_2"] = torch.rand(())
        name = f"model-{file + 1:05}-of-{files:05}.safetensors"
        save_file(tensors, folder / name)
        index |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    os.sync()


def load(folder: Path, way: str) -> dict[str, Any]:
    """Load in this process and say what it took."""
    checkpoint = open_checkpoint(folder)
    experts = checkpoint.config["experts"]

    def source(layer: int) -> Sequence[ExpertTensors]:
        return [
            ExpertTensors(
                *(partial(checkpoint.weight, f"{layer}.{expert}.{matrix}") for matrix in range(3))
            )
            for expert in range(experts)
        ]

    if way == "python":
        stores.library = lambda: None
    plans = plan_layers(source, range(LAYERS))
    before = psutil.Process().memory_info().rss
    begin = time.perf_counter()
    store = ExpertStore.load(
        source, plans, file_range=None if way == "mapped" else checkpoint.file_range
    )
    seconds = time.perf_counter() - begin
    peak = peak_bytes()
    digest = hashlib.blake2b()
    for plan in plans:
        digest.update(store.bank(plan.layer).numpy())
    return {
        "seconds": seconds,
        "peak": peak - before,
        "store": store.nbytes,
        "bytes": digest.hexdigest(),
    }


def peak_bytes() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def prepare(folder: Path, *, cold: bool) -> None:
    for file in folder.glob("*.safetensors"):
        with file.open("rb", buffering=0) as opened:
            if cold:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while opened.read(16 << 20):
                    pass


def in_a_process(folder: Path, way: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder)]
    outcome = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(outcome.stdout)
    return result


def measure(folder: Path, rounds: int) -> list[Row]:
    ways = [way for way in WAYS if way != "library" or library() is not None]
    taken: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for state in ("cold", "warm"):
            for way in ways:
                prepare(folder, cold=state == "cold")
                found = in_a_process(folder, way)
                taken.setdefault((way, state), []).append(found)
                print(f"load: round {number + 1}: {way} {state} {found['seconds']:.2f} s",
                      file=sys.stderr)  # fmt: skip
    if len({one["bytes"] for found in taken.values() for one in found}) != 1:
        sys.exit("load: the ways do not give the same bytes")
    rows = []
    for state in ("cold", "warm"):
        rates = {}
        for way in ways:
            found = taken[way, state]
            rates[way] = statistics.median(one["store"] / one["seconds"] for one in found) / 1e9
            rows.append(
                Row(name=f"load {way} {state}", value=rates[way], unit="GB/s", versus="mapped",
                    ratio=rates[way] / rates["mapped"])
            )  # fmt: skip
    for way in ways:
        peaks = [one["peak"] / one["store"] for one in taken[way, "cold"]]
        rows.append(
            Row(name=f"load {way} peak", value=statistics.median(peaks), unit="x the store")
        )
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=1536, help="of experts")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written")
    parser.add_argument("--way", choices=WAYS, help="load what --folder holds, this way, once")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args(arguments)
    if options.way:
        print(json.dumps(load(options.folder, options.way)))
        return 0
    wait_without_spinning()  # in the processes that load, as in the runtime
    with tempfile.TemporaryDirectory(prefix="headrace-load-", dir=options.folder) as name:
        write_checkpoint(Path(name), options.mebibytes << 20, options.files)
        rows = measure(Path(name), options.rounds)
    result = Result(
        bench="load",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"{options.mebibytes} MiB of NVFP4 experts in {options.files} files",
        machine=bench_result.machine(resolve_device("cpu")),
        rows=rows,
        notes=[f"medians of {options.rounds}, in turns"],
    )
    print(bench_result.table(result))
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
