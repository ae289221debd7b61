"""Where pages lie on machines with several memory nodes. Linux only: elsewhere there is one node.

Calls the kernel itself (mbind(2)): libnuma need not be installed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections.abc import Iterable

_MBIND = {"x86_64": 237, "aarch64": 235}
"""The system call's number."""
_BIND, _INTERLEAVE = 2, 3
_MOVE = 2
"""MPOL_MF_MOVE: pages that are there already move too."""


def interleave(address: int, nbytes: int, nodes: Iterable[int]) -> None:
    """Spread these pages over the nodes in turns. With one node there is nothing to do.

    `address` is on a page's boundary. Raises OSError if the kernel refuses.
    """
    _policy(_INTERLEAVE, address, nbytes, nodes)


def keep_on(address: int, nbytes: int, node: int) -> None:
    """Let these pages lie on one node. Raises OSError if the kernel refuses."""
    _policy(_BIND, address, nbytes, [node])


def _policy(mode: int, address: int, nbytes: int, nodes: Iterable[int]) -> None:
    wanted = sorted(set(nodes))
    if mode == _INTERLEAVE and len(wanted) < 2:
        return
    number = _MBIND.get(platform.machine())
    if sys.platform != "linux" or number is None:
        raise OSError(f"memory cannot be placed on nodes of {sys.platform} {platform.machine()}")
    if address % mmap.PAGESIZE:
        raise ValueError(f"{address:#x} is not the begin of a page")
    words = wanted[-1] // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    for node in wanted:
        mask[node // 64] |= 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    bits = ctypes.c_ulong(words * 64 + 1)
    place = (ctypes.c_void_p(address), ctypes.c_ulong(nbytes), ctypes.c_int(mode))
    if libc.syscall(ctypes.c_long(number), *place, mask, bits, ctypes.c_uint(_MOVE)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"nodes {wanted}: {os.strerror(code)}")
