"""GPU kernels at real shapes: error, time, and the share of what the device could do at best.

python benchmarks/kernels.py [PART OF A NAME ...] --json benchmarks/results/<machine>-kernels.json

A kernel can be no faster than its bytes through device memory and its operations on tensor cores
take; both rates are measured first, in the same run. Times are medians of graph replays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import (
    kernel_cases_attention,
    kernel_cases_delta,
    kernel_cases_moe,
    kernel_cases_residency,
    kernel_cases_weights,
)
from engine.memory.device import resolve_device
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row

MODULES: tuple[Any, ...] = (
    kernel_cases_weights,
    kernel_cases_attention,
    kernel_cases_delta,
    kernel_cases_moe,
    kernel_cases_residency,
)
_REPLAYS = 12


def seconds(run: Callable[[], object], calls: int = 16) -> float:
    """Of one call: the median of replays of a graph of `calls` of them."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    times = []
    for _ in range(_REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / calls)
    return sorted(times)[len(times) // 2]


def copy_rate() -> float:
    """GB/s through device memory, reading and writing."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source), 4) / 1e9


def product_rate() -> float:
    """TFLOP/s of the library's bfloat16 product."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    return 2 * 8192.0**3 / seconds(lambda: a @ a, 2) / 1e12


def measured(parts: list[str], copy: float, product: float) -> Iterator[Row]:
    for module in MODULES:
        for case in module.cases():
            if parts and not any(part in case.name for part in parts):
                continue
            wrong = case.check()
            took = seconds(case.run, 16 if case.flops < 1e11 else 2)
            floor = max(case.nbytes / copy / 1e9, case.flops / product / 1e12)
            print(
                f"{case.name:40} {took * 1e6:9.1f} us  {floor / took:5.2f} of the floor's speed  "
                f"error {wrong:.1e}",
                flush=True,
            )
            yield Row(
                name=case.name, value=took * 1e6, unit="us", versus="floor", ratio=floor / took
            )
            yield Row(name=f"{case.name} error", value=wrong, unit="", versus="", ratio=0.0)
            torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="only cases named so")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    copy, product = copy_rate(), product_rate()
    print(f"copy {copy:.0f} GB/s, bfloat16 products {product:.0f} TFLOP/s", flush=True)
    rows = list(measured(options.parts, copy, product))
    result = Result(
        bench="kernels",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model="shapes of Qwen3.6-35B-A3B",
        machine=bench_result.machine(resolve_device("cuda")),
        rows=rows,
        notes=[f"device memory {copy:.0f} GB/s, bfloat16 products {product:.0f} TFLOP/s"],
    )
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
