"""Decoding while other programs use every core: OpenMP's threads asleep at barriers, or spinning.

python benchmarks/busy_machine.py --json benchmarks/results/<machine>-busy-machine.json

One busy process a CPU runs all the time. Meanwhile the model is decoded by fresh processes, in
turns: with `wait_without_spinning` as the runtime calls it, as torch comes, and with one thread.
Medians of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from engine.memory.device import resolve_device
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.threads import apply_threads

SLEEPING = "from engine.runtime.openmp import wait_without_spinning; wait_without_spinning()"
DECODE = """
import sys
from engine.cli import parser
from engine.runtime import bench_result
options = parser().parse_args(["bench", *sys.argv[1:]])
bench_result.write(options.measure(options), options.json)
"""
BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with this process, however that ends."""
ROOT = Path(__file__).resolve().parents[1]


@contextlib.contextmanager
def every_core_busy() -> Iterator[int]:
    """How many processes compute for nothing, one a CPU."""
    cpus = os.cpu_count() or 1
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cpus)]
    try:
        yield cpus
    finally:
        for process in busy:
            process.kill()
            process.wait()


def decode(options: argparse.Namespace, *, sleeping: bool, threads: int) -> float:
    """Tokens a second of one round in a process of its own. Raises CalledProcessError."""
    program = f"{SLEEPING}\n{DECODE}" if sleeping else DECODE
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "GOMP_"))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "result.json")
        command = [sys.executable, "-c", program, "decode", "--alone", "--device", "cpu"]
        command += ["--rounds", "1"]
        command += ["--model", options.model, "--tokens", str(options.tokens)]
        command += ["--threads", str(threads), "--json", str(file)]
        subprocess.run(command, cwd=ROOT, env=plain, stdout=subprocess.DEVNULL, check=True)
        return msgspec.json.decode(file.read_bytes(), type=Result).rows[0].value


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="demo", help="folder, GGUF file or demo")
    parser.add_argument("--tokens", type=int, default=32, help="to decode in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: one per physical core")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args(arguments)
    threads = apply_threads(options.threads)
    machine = bench_result.machine(resolve_device("cpu"))
    asleep, spinning, alone = [], [], []
    with every_core_busy() as cpus:
        for _ in range(options.rounds):
            asleep.append(decode(options, sleeping=True, threads=threads))
            spinning.append(decode(options, sleeping=False, threads=threads))
            alone.append(decode(options, sleeping=True, threads=1))
    ours, other = statistics.median(asleep), statistics.median(spinning)
    result = Result(
        bench="busy-machine",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=options.model,
        machine=machine,
        rows=[
            Row(name="threads asleep", value=ours, unit="tok/s", versus="as torch comes",
                ratio=ours / other),
            Row(name="as torch comes", value=other, unit="tok/s"),
            Row(name="one thread", value=statistics.median(alone), unit="tok/s"),
        ],
        notes=[f"beside {cpus} processes that use {cpus} CPUs; medians of {options.rounds}"],
    )  # fmt: skip
    print(bench_result.table(result))
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
