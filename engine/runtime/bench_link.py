"""`headrace bench link`: the rate at which experts reach the GPU, beside the link's best copy.

A model whose experts do not fit decodes no faster than its misses arrive. What counts is the share
of the best rate of a plain copy, so all rates are taken in one run and in turns.
"""

from __future__ import annotations

import sys
from functools import partial

import msgspec

from engine.errors import InvalidRequest, OutOfMemory
from engine.experts.store import plan_layers, pool_needs
from engine.formats.blob import BLOB_ALIGNMENT, round_up
from engine.formats.checkpoint import open_checkpoint
from engine.memory.budget import free_host_bytes
from engine.memory.device import resolve_device
from engine.models.registry import check_model, describe, expert_tensors
from engine.runtime import bench_result
from engine.runtime.bench_result import Result, Row
from engine.runtime.link_work import CALLS, MOST_BLOBS, Link, Work
from engine.runtime.loading import model_path

COPIES = tuple(1 << size for size in range(18, 27))
"""256 KiB to 64 MiB."""
BLOBS = (1, 2, 4, 8, MOST_BLOBS)
HOST_BYTES = 1 << 30
"""Far more than the CPU's caches, which the GPU's reads find too."""
MOST_OF_FREE = 0.5


def measure_link(model: str, blob_bytes: int, rounds: int) -> Result:
    """With blobs of `blob_bytes`, or of the model's own size if that is 0.

    Raises DeviceUnavailable without a GPU, InvalidRequest for a model without routed experts,
    OutOfMemory, DriverError, and what reading the model raises.
    """
    device = resolve_device("cuda")
    stride = round_up(blob_bytes, BLOB_ALIGNMENT) if blob_bytes else _model_stride(model)
    link = Link(device, stride, _host_bytes(stride), COPIES[-1])
    try:
        copies = [link.copy(size) for size in COPIES]
        filling = [work(blobs) for work in (link.copies, link.gather) for blobs in BLOBS]
        nothing = link.gather(0)
        for number in range(1, rounds + 1):
            print(f"headrace bench: round {number} of {rounds}", file=sys.stderr)
            for each in (*copies, *filling, nothing):
                each.replay()
    finally:
        link.close()
    best = max(copy.rate for copy in copies)
    machine = bench_result.machine(device)
    return Result(
        bench="link",
        commit=bench_result.commit(),
        when=bench_result.now(),
        model=f"blobs of {stride / 1e6:.2f} MB" + ("" if blob_bytes else f" ({model})"),
        machine=msgspec.structs.replace(machine, link=round(best, 1)),
        rows=[
            *(_row(each, best) for each in (*copies, *filling)),
            Row(name=f"link {nothing.name}", value=nothing.median * 1e6, unit="us"),
        ],
        notes=[
            "copy: one by the copy engine; copies: of so many blobs, one each",
            "gather: so many blobs by the kernel that reads pinned host memory",
            f"medians of {rounds} replays of graphs of {CALLS} calls, from random places",
        ],
    )


def _model_stride(model: str) -> int:
    """Bytes of most of the model's blobs."""
    checkpoint = open_checkpoint(model_path(model))
    spec = describe(checkpoint)
    check_model(checkpoint, spec)
    pools = pool_needs(plan_layers(partial(expert_tensors, spec, checkpoint), spec.moe_layers))
    if not pools:
        raise InvalidRequest(
            f"{checkpoint.display_name} has no routed experts.",
            hint="Name the size of a blob with --blob-bytes, or another model.",
            param="model",
        )
    return max(pools, key=lambda pool: pool.blobs).stride


def _host_bytes(stride: int) -> int:
    wanted = max(HOST_BYTES, 2 * MOST_BLOBS * stride)
    most = int(free_host_bytes() * MOST_OF_FREE)
    if wanted > most:
        raise OutOfMemory(
            f"{wanted / 1e9:.1f} GB are wanted for blobs of {stride / 1e6:.1f} MB; half of what is "
            f"free are {most / 1e9:.1f} GB.",
            hint="Close other programs, or lower --blob-bytes.",
        )
    return wanted


def _row(work: Work, best: float) -> Row:
    return Row(
        name=f"link {work.name}",
        value=work.rate,
        unit="GB/s",
        versus="the best copy",
        ratio=work.rate / best,
    )
