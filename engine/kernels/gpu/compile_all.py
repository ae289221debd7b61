"""Compile every kernel ahead of time and print what it takes, a line of JSON each.

python -m engine.kernels.gpu.compile_all [--once] [86 90 ...]

--once: each kernel in the first of its shapes and formats only.
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module

import engine.kernels.gpu as package
from engine.kernels.gpu.ahead import ARCHITECTURES, Ahead, resources


def cases() -> Iterator[Ahead]:
    """Those of all modules of the package, in the order of their names."""
    for module in pkgutil.iter_modules(package.__path__):
        yield from getattr(import_module(f"{package.__name__}.{module.name}"), "AHEAD", ())


def first_of_each(every: Iterable[Ahead]) -> Iterator[Ahead]:
    seen = set()
    for case in every:
        if case.kernel not in seen:
            seen.add(case.kernel)
            yield case


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architectures", nargs="*", type=int, default=ARCHITECTURES)
    parser.add_argument("--once", action="store_true", help="each kernel in one shape and format")
    options = parser.parse_args(arguments)
    for case in first_of_each(cases()) if options.once else cases():
        for arch in options.architectures:
            if arch in case.architectures:
                took = resources(case, arch)
                line = {"kernel": case.name, "architecture": arch, **vars(took)}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
