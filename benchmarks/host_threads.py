"""How fast this machine's memory is read by so many threads, and where weights had best lie.

python benchmarks/host_threads.py --json benchmarks/results/<machine>-host-threads.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.memory.device import resolve_device
from engine.native.library import NativeError, library, remedy
from engine.native.sweep import sweep_reading
from engine.native.topology import topology
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, usage=None)
    parser.add_argument("--mebibytes", type=int, default=2048, help="to read in turn")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args(arguments)
    native = library()
    if native is None:
        raise NativeError(f"The native library is not there. {remedy()}")
    found = sweep_reading(native, topology(), options.mebibytes << 20)
    several = len(found) > 1
    best = found[0]
    highest = max(best.rates.values())
    rows = [
        Row(
            name=f"read {threads} threads" + (f" {each.placement.name}" if several else ""),
            value=rate / 1e9,
            unit="GB/s",
            versus="the best",
            ratio=rate / highest,
        )
        for each in found
        for threads, rate in each.rates.items()
    ]
    where = f", weights {best.placement.name}" if several else ""
    result = Result(
        bench="host-threads",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"{options.mebibytes} MiB read",
        machine=bench_result.machine(resolve_device("cpu")),
        rows=rows,
        notes=[f"enough: {best.threads} threads{where}; the default is {topology().threads}"],
    )
    print(bench_result.table(result))
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except NativeError as error:
        sys.exit(str(error))
