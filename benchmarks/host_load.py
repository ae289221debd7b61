"""Layer steps of CPU experts beside a load on every core: they must lose no more than their share.

python benchmarks/host_load.py --json benchmarks/results/<machine>-host-load.json

One-token steps through random experts of an NVFP4 bank larger than the caches, alone and beside one
busy process a CPU, in turns. A fair system gives each of `load` processes and `threads` threads an
equal part of all CPUs' time: beside them a thread has cpus / (threads + load) of a CPU. One second
after the last step the CPU time of the process is counted: threads that wait must sleep.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import torch

from engine.errors import HeadraceError
from engine.formats.blob import BlobSpec, blob_spec
from engine.kernels.moe import moe_expert_rows
from engine.memory.device import resolve_device
from engine.native.library import Library, library
from engine.native.topology import topology
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.threads import apply_threads

HIDDEN, INTERMEDIATE, ROUTES = 2048, 512, 8
"""Of Qwen3.6-35B-A3B: 1.77 MB an expert."""
TURNS = 3
IDLE_SECONDS = 5.0


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes compute for nothing."""
    started = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        time.sleep(1.0)
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@dataclass
class Counted:
    """Steps, the seconds that they took, the CPU seconds, the seconds of the slowest."""

    steps: int = 0
    seconds: float = 0.0
    used: float = 0.0
    slowest: float = 0.0

    def add(self, other: Counted) -> None:
        self.steps += other.steps
        self.seconds += other.seconds
        self.used += other.used
        self.slowest = max(self.slowest, other.slowest)

    @property
    def rate(self) -> float:
        return self.steps / self.seconds


class Steps:
    """Layer steps without end over one bank."""

    def __init__(self, mebibytes: int) -> None:
        self.spec: BlobSpec = blob_spec("nvfp4", HIDDEN, INTERMEDIATE)
        blobs = max(ROUTES, (mebibytes << 20) // self.spec.stride)
        # Codes, scales and globals that are plain numbers: rates do not depend on which.
        self.bank = torch.full((blobs, self.spec.stride), 0x35, dtype=torch.uint8)
        self.x = torch.randn(1, HIDDEN).to(torch.bfloat16)
        self.rows = torch.empty(1, ROUTES, HIDDEN)
        generator = torch.Generator().manual_seed(1)
        self.routes = [
            torch.randperm(blobs, generator=generator)[:ROUTES].unsqueeze(0) for _ in range(256)
        ]

    def run(self, seconds: float) -> Counted:
        """Of about so long."""
        begin = last = time.perf_counter()
        used = time.process_time()
        steps, slowest = 0, 0.0
        while last - begin < seconds:
            moe_expert_rows(self.bank, self.spec, self.x, self.routes[steps % 256], self.rows)
            now = time.perf_counter()
            slowest = max(slowest, now - last)
            last = now
            steps += 1
        return Counted(steps, last - begin, time.process_time() - used, slowest)


def place(native: Library, how: str, threads: int) -> None:
    """`cores`: as the runtime does; `each`: every thread on a core of its own, the caller on the
    first, as with a coordinator; `anywhere`: the system decides."""
    cpus = topology().cpus(threads)
    if how == "anywhere":
        native.set_cpus([])
    elif how == "each":
        native.set_cpus(cpus, each=True)
        if cpus and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cpus[:1])


def idle_share() -> float:
    """CPU time that the process uses a second, from one second after its last step on."""
    time.sleep(1.0)
    process = psutil.Process()
    before, begin = sum(process.cpu_times()[:2]), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    return (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - begin)


def measure(steps: Steps, seconds: float, load: int) -> tuple[Counted, Counted]:
    """Alone, for a third of `seconds`, and beside load."""
    steps.run(0.5)
    alone, beside = Counted(), Counted()
    for _ in range(TURNS):
        alone.add(steps.run(seconds / TURNS / 3))
        with busy(load):
            beside.add(steps.run(seconds / TURNS))
    return alone, beside


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="beside the load")
    parser.add_argument("--threads", type=int, default=0, help="0: the default")
    parser.add_argument("--load", type=int, default=0, help="busy processes; 0: one a CPU")
    parser.add_argument("--mebibytes", type=int, default=1024, help="of expert blobs")
    parser.add_argument("--place", choices=("cores", "each", "anywhere"), default="cores")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    options = parser.parse_args(arguments)
    native = library()
    if native is None:
        print("host_load: the library is not built: python3 dev.py setup", file=sys.stderr)
        return 1
    threads = apply_threads(options.threads)
    place(native, options.place, threads)
    machine = bench_result.machine(resolve_device("cpu"))
    cpus = len(psutil.Process().cpu_affinity()) if options.place != "each" else psutil.cpu_count()
    load = options.load or cpus
    steps = Steps(options.mebibytes)
    alone, beside = measure(steps, options.seconds, load)
    idle = idle_share()
    kept = beside.rate / alone.rate
    work = (beside.steps / beside.used) / (alone.steps / alone.used)
    share = min(1.0, cpus / (threads + load) / min(1.0, cpus / threads))
    gigabytes = ROUTES * steps.spec.nbytes / 1e9
    result = Result(
        bench="host-load",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"one-token steps, {ROUTES} NVFP4 experts of {HIDDEN} x {INTERMEDIATE}",
        machine=machine,
        rows=[
            Row(name="alone", value=alone.rate, unit="steps/s"),
            Row(name="alone, weights", value=alone.rate * gigabytes, unit="GB/s",
                versus="reading", ratio=alone.rate * gigabytes / machine.stream),
            Row(name="beside load", value=beside.rate, unit="steps/s", versus="alone", ratio=kept),
            Row(name="fair share", value=alone.rate * share, unit="steps/s", versus="alone",
                ratio=share),
            Row(name="kept of the share", value=kept / share * 100, unit="%"),
            Row(name="CPUs used alone", value=alone.used / alone.seconds, unit="CPUs"),
            Row(name="CPUs used beside load", value=beside.used / beside.seconds, unit="CPUs"),
            Row(name="work for CPU time beside load", value=work * 100, unit="%"),
            Row(name="slowest step beside load", value=beside.slowest * 1000, unit="ms"),
            Row(name="CPU one second after the last step", value=idle * 100, unit="%"),
        ],
        notes=[
            f"{threads} threads ({options.place}), {load} busy processes, {cpus} CPUs",
            f"{options.seconds:.0f} s beside the load in {TURNS} turns, a third of that alone",
        ],
    )  # fmt: skip
    print(bench_result.table(result))
    if options.json is not None:
        bench_result.write(result, options.json)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HeadraceError as error:
        sys.exit(str(error))
