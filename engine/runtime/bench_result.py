"""What a benchmark leaves behind: a table for people, a JSON record for the project."""

from __future__ import annotations

import datetime
import platform
import subprocess
import time
from pathlib import Path

import msgspec
import psutil
import torch

from engine import __version__
from engine.memory.device import Device
from engine.options import EngineOptions

SCHEMA = 1
_STREAM_BYTES = 256 << 20


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where a result was taken. Rates are of that run, in 10^9 bytes a second."""

    gpu: str
    driver: str
    link: float
    """Pinned host memory to the GPU; 0 without one."""
    host: str
    stream: float
    """Reading host memory with the run's threads."""
    threads: int
    ram_bytes: int
    emulated: bool
    """The device was `sim`, or its memory or its link were played."""
    emulated_vram_bytes: int = 0
    emulated_link: float = 0.0
    """In 10^9 bytes a second, as `link`, which is the real one."""
    torch: str
    system: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    unit: str
    versus: str = ""
    """What `ratio` compares with."""
    ratio: float | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark's file under benchmarks/results/."""

    schema: int = SCHEMA
    bench: str
    commit: str
    when: str
    model: str
    machine: Machine
    rows: list[Row]
    notes: list[str] = []


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def commit() -> str:
    """The checkout's commit (`-dirty` if files differ from it), or the installed version."""
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        try:
            return subprocess.run(
                ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
                cwd=root,
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return f"unknown ({__version__})"
    return __version__


def machine(device: Device, options: EngineOptions | None = None) -> Machine:
    """`options` of the engine that was measured, if there was one."""
    vram = options.emulate_vram_bytes if options is not None else 0
    link = options.emulate_link_bytes_per_s / 1e9 if options is not None else 0.0
    cuda = device.kind == "cuda"
    return Machine(
        gpu=torch.cuda.get_device_name(device.torch) if cuda else "",
        driver=_driver() if cuda else "",
        link=_link_rate(device.torch) if cuda else 0.0,
        host=_processor(),
        stream=_stream_rate(),
        threads=torch.get_num_threads(),
        ram_bytes=psutil.virtual_memory().total,
        emulated=device.kind == "sim" or vram > 0 or link > 0,
        emulated_vram_bytes=vram,
        emulated_link=link,
        torch=str(torch.__version__),
        system=f"{platform.system()} {platform.machine()}",
    )


def table(result: Result) -> str:
    """The rows, aligned, under a line about the machine."""
    facts = result.machine
    head = f"{result.bench}: {result.model}, {facts.gpu or facts.host}, {facts.threads} threads"
    lines = [f"{head}, emulated" if facts.emulated else head]
    width = max(len(row.name) for row in result.rows)
    for row in result.rows:
        ratio = f"   {row.ratio:.2f} x {row.versus}" if row.ratio is not None else ""
        lines.append(f"  {row.name:<{width}}  {row.value:10.2f} {row.unit}{ratio}")
    lines += [f"  {note}" for note in result.notes]
    return "\n".join(lines)


def write(result: Result, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")


def _processor() -> str:
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()


def _stream_rate() -> float:
    """Best of five sums over more than the caches hold."""
    data = torch.ones(_STREAM_BYTES // 4)
    data.sum()
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        data.sum()
        seconds.append(time.perf_counter() - begin)
    return round(_STREAM_BYTES / min(seconds) / 1e9, 1)


def _link_rate(device: torch.device) -> float:
    """Best of five copies from pinned memory."""
    source = torch.empty(_STREAM_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty_like(source, device=device)
    seconds = []
    for _ in range(6):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return round(_STREAM_BYTES / min(seconds) / 1e9, 1)
