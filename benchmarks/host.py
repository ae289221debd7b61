"""What the host delivers: bytes of stored weights that products consume, beside plain reading.

python benchmarks/host.py --json benchmarks/results/<machine>-host.json

For each format a matrix far larger than the caches is multiplied with one token, and the same
number of bytes is read by the library's own loop, in turns; medians of five. Where other programs
share the machine both sides suffer, so the share says more than either rate.

With --sweep: the rate of plain reading by number of threads (and by where the weights lie, on
machines of several memory nodes), and the smallest number that is within 2 % of the best.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from engine.errors import HeadraceError
from engine.formats.weight import StoredWeight
from engine.kernels.linear import linear
from engine.memory.device import resolve_device
from engine.native.library import FORMATS, Library, library
from engine.native.sweep import sweep_reading
from engine.native.topology import topology
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.threads import apply_threads

COLUMNS = 2048
ROUNDS = 5
GGUF_BYTES = {"q8_0": (32, 34), "q4_0": (32, 18), "q4_1": (32, 20)}
GGUF_BYTES |= {"q4_k": (256, 144), "q6_k": (256, 210)}
"""Columns and bytes of a block."""


def random_weight(storage: str, nbytes: int) -> StoredWeight:
    """About `nbytes` of weights that hold no matter what: rates do not depend on values, as long as
    none is subnormal or no number."""
    fixed = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "fp8_block": 1.0}
    fixed |= {"nvfp4": 0.5625, "mxfp4": 0.53125}
    if storage in GGUF_BYTES:
        columns, size = GGUF_BYTES[storage]
        fixed[storage] = size / columns
    rows = int(nbytes / (fixed[storage] * COLUMNS)) // 128 * 128
    parts: dict[str, torch.Tensor] = {}
    if storage in ("float32", "bfloat16", "float16"):
        parts["weight"] = torch.full((rows, COLUMNS), 0.5, dtype=getattr(torch, storage))
    elif storage == "fp8_block":
        codes = torch.full((rows, COLUMNS), 0x35, dtype=torch.uint8)
        parts["weight"] = codes.view(torch.float8_e4m3fn)
        parts["scale"] = torch.ones(rows // 128, COLUMNS // 128)
    elif storage in GGUF_BYTES:
        parts["weight"] = torch.full((rows, int(COLUMNS * fixed[storage])), 0x35, dtype=torch.uint8)
    else:
        parts["weight"] = torch.full((rows, COLUMNS // 2), 0x35, dtype=torch.uint8)
        if storage == "nvfp4":
            scale = torch.full((rows, COLUMNS // 16), 0x38, dtype=torch.uint8)
            parts["scale"] = scale.view(torch.float8_e4m3fn)
            parts["scale_2"] = torch.tensor(0.01)
        else:
            parts["scale"] = torch.full((rows, COLUMNS // 32), 120, dtype=torch.uint8)
    return StoredWeight(storage, (rows, COLUMNS), parts)


def seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def measure(native: Library, storage: str, nbytes: int) -> tuple[float, float]:
    """(delivered, read) in 10^9 bytes a second."""
    weight = random_weight(storage, nbytes)
    codes = weight.parts["weight"]
    size = codes.nbytes
    x = torch.randn(1, COLUMNS).to(torch.bfloat16)
    delivered, read = [], []
    linear(x, weight, None)
    for _ in range(ROUNDS):
        read.append(size / seconds(lambda: native.read(codes.data_ptr(), size)))
        delivered.append(weight.nbytes / seconds(lambda: linear(x, weight, None)))
    return statistics.median(delivered) / 1e9, statistics.median(read) / 1e9


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=None)
    parser.add_argument("--threads", type=int, default=0, help="0: one per physical core")
    parser.add_argument("--mebibytes", type=int, default=512, help="of each matrix")
    parser.add_argument("--formats", nargs="*", default=list(FORMATS), choices=list(FORMATS))
    parser.add_argument("--tiers", nargs="*", help="instruction sets; the best one by default")
    parser.add_argument("--sweep", action="store_true", help="reading by number of threads")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    native = library()
    if native is None:
        print("host: the native library is not built: python3 dev.py setup", file=sys.stderr)
        return 1
    apply_threads(options.threads)
    if options.sweep:
        rows, note = sweep_rows(native, options.mebibytes << 20)
    else:
        rows, note = format_rows(native, options)
    result = Result(
        bench="host-threads" if options.sweep else "host",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"{options.mebibytes} MiB " + ("read" if options.sweep else "a matrix, one token"),
        machine=bench_result.machine(resolve_device("cpu")),
        rows=rows,
        notes=[note],
    )
    print(bench_result.table(result))
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


def sweep_rows(native: Library, nbytes: int) -> tuple[list[Row], str]:
    found = sweep_reading(native, topology(), nbytes)
    several = len(found) > 1
    rows = [
        Row(name=f"read {threads} threads" + (f" {each.placement.name}" if several else ""),
            value=rate / 1e9, unit="GB/s", versus="the best",
            ratio=rate / max(found[0].rates.values()))
        for each in found for threads, rate in each.rates.items()
    ]  # fmt: skip
    best = found[0]
    where = f", weights {best.placement.name}" if several else ""
    return rows, f"enough: {best.threads} threads{where}; the default is {topology().threads}"


def format_rows(native: Library, options: argparse.Namespace) -> tuple[list[Row], str]:
    rows = []
    for tier in options.tiers or [native.tier]:
        native.set_tier(tier)
        for storage in options.formats:
            delivered, read = measure(native, storage, options.mebibytes << 20)
            name = f"host {storage}" + (f" {tier}" if options.tiers else "")
            row = Row(
                name=name, value=delivered, unit="GB/s", versus="reading", ratio=delivered / read
            )
            rows.append(row)
            print(f"host: {name} {delivered:.1f} of {read:.1f} GB/s", file=sys.stderr)
    return rows, f"instruction set {native.tier}; medians of {ROUNDS}, reading in turns"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HeadraceError as error:
        sys.exit(str(error))
