"""How much memory a step takes: measured, for the solver's estimate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass
class Peak:
    nbytes: int = 0
    """Most that torch's allocator held at once beside `held`."""


@contextmanager
def peak_memory(device: torch.device, held: int = 0) -> Iterator[Peak]:
    """Of what is computed meanwhile, also if that fails.

    On a GPU by the allocator's own books, `held` of which are not the step's; memory that it keeps
    for later counts. In host memory by the tensors that operations make, without those inside
    native kernels.
    """
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        try:
            yield peak
        finally:
            peak.nbytes = max(0, torch.cuda.max_memory_reserved(device) - held)
    else:
        with _LiveTensors(peak):
            yield peak


class _LiveTensors(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, peak: Peak) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._peak = peak
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        # A view's storage is that of an argument.
        known = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(out):
            if storage._cdata not in known:
                seen = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._live[storage._cdata] = seen, storage.nbytes()
        gone = [key for key, (seen, _) in self._live.items() if seen.expired()]  # type: ignore[no-untyped-call]
        for key in gone:
            del self._live[key]
        self._peak.nbytes = max(self._peak.nbytes, sum(nbytes for _, nbytes in self._live.values()))
        return out


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [
        leaf.untyped_storage()
        for leaf in tree_leaves(tree)
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    ]
