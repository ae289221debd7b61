"""Which grid and tile of the gather kernel fill the link, beside the link's best copy.

python benchmarks/gather.py --blob-bytes 1769472

Grids are tried from small to large: the smallest that fills the link leaves most of the GPU to what
computes meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.formats.blob import BLOB_ALIGNMENT, round_up
from engine.kernels.gpu import gather
from engine.memory.device import resolve_device
from engine.runtime.link_work import Link

BLOCKS = (8, 16, 24, 32, 48, 64, 132)
TILE_WORDS = (2048, 4096, 8192)
WARPS = (4, 8)
BLOBS = (1, 4, 16)
REPLAYS = 7
COPY_BYTES = 64 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blob-bytes", type=int, default=1769472, metavar="N")
    stride = round_up(parser.parse_args().blob_bytes, BLOB_ALIGNMENT)
    link = Link(resolve_device("cuda"), stride, 1 << 30, COPY_BYTES)
    copy = link.copy(COPY_BYTES)
    for _ in range(REPLAYS):
        copy.replay()
    print(f"best copy {copy.rate:.1f} GB/s; gathers of {BLOBS} blobs of {stride / 1e6:.2f} MB")
    for warps, words, blocks in itertools.product(WARPS, TILE_WORDS, BLOCKS):
        gather.BLOCKS, gather.TILE_WORDS, gather.WARPS = blocks, words, warps
        rates = []
        for blobs in BLOBS:
            work = link.gather(blobs)
            for _ in range(REPLAYS):
                work.replay()
            rates.append(work.rate)
        shown = "  ".join(f"{rate:5.1f}" for rate in rates)
        print(f"{warps} warps, tiles of {4 * words // 1024:2} KiB, {blocks:3} blocks: {shown} GB/s")
    link.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
