"""Operations by name and device type.

An operation is its torch reference, which runs on every device, plus the kernels registered for
one device type. Layers call the operation; which kernel answers is decided here and nowhere else.
The first argument of an operation is a tensor: its device decides. Kernels for CUDA lie in modules
that are imported at their first call, since Triton is not everywhere and takes long to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[P, R]):
    references_only = False
    """No kernel answers: see `references_only`."""

    def __init__(self, name: str, reference: Callable[P, R], cuda: str | None = None) -> None:
        """`cuda` is the module whose function `name` answers for tensors on a GPU."""
        self.name = name
        self.reference = reference
        self._cuda = cuda
        self._kernels: dict[str, Callable[P, R]] = {}
        self.__doc__ = reference.__doc__

    def register(self, device_type: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: this kernel answers for tensors on `device_type` ("cuda", "cpu")."""

        def add(kernel: Callable[P, R]) -> Callable[P, R]:
            if device_type in self._kernels:
                raise ValueError(f"{self.name} has a kernel for {device_type} already")
            self._kernels[device_type] = kernel
            return kernel

        return add

    def kernel(self, device_type: str) -> Callable[P, R]:
        """What answers on `device_type`: its kernel, or the reference where none is registered."""
        if Operation.references_only:
            return self.reference
        if device_type == "cuda" and self._cuda and device_type not in self._kernels:
            self._kernels[device_type] = getattr(import_module(self._cuda), self.name)
        return self._kernels.get(device_type, self.reference)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        if not isinstance(first, torch.Tensor):
            raise TypeError(f"{self.name} takes a tensor first, not {type(first).__name__}")
        return self.kernel(first.device.type)(*args, **kwargs)


@contextmanager
def references_only() -> Iterator[None]:
    """Meanwhile every operation of this process is answered by its torch reference."""
    before, Operation.references_only = Operation.references_only, True
    try:
        yield
    finally:
        Operation.references_only = before


_OPERATIONS: dict[str, Operation[..., Any]] = {}


def operation(name: str, cuda: str | None = None) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Decorator: the function is the torch reference of a new operation `name`.

    The function `name` of the module `cuda` answers for tensors on a GPU.
    """

    def define(reference: Callable[P, R]) -> Operation[P, R]:
        if name in _OPERATIONS:
            raise ValueError(f"operation {name} is defined twice")
        defined = Operation(name, reference, cuda)
        _OPERATIONS[name] = defined
        return defined

    return define


def lookup(name: str) -> Operation[..., Any]:
    """The operation called `name`; KeyError if its module was never imported."""
    return _OPERATIONS[name]
