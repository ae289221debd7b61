"""Compile every kernel ahead of time and print what it takes, a line of JSON each.

python -m engine.kernels.gpu.compile_all 86 90
"""

from __future__ import annotations

import json
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module

import engine.kernels.gpu as package
from engine.kernels.gpu.ahead import ARCHITECTURES, Ahead, resources


def cases() -> Iterator[Ahead]:
    """Those of all modules of the package, in the order of their names."""
    for module in pkgutil.iter_modules(package.__path__):
        yield from getattr(import_module(f"{package.__name__}.{module.name}"), "AHEAD", ())


def main(architectures: list[int]) -> None:
    for case in cases():
        for arch in architectures:
            if arch in case.architectures:
                took = resources(case, arch)
                line = {"kernel": case.name, "architecture": arch, **vars(took)}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or list(ARCHITECTURES))
