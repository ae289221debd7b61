"""Compiles a module's kernels ahead of time, in a process without the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROGRAM = """
import dataclasses, importlib, json, sys
from engine.kernels.gpu.ahead import resources
for name in sys.argv[2:]:
    for case in importlib.import_module("engine.kernels.gpu." + name).AHEAD:
        used = dataclasses.asdict(resources(case, int(sys.argv[1])))
        print(json.dumps([case.name, used]), flush=True)
"""


def compiled_resources(architecture: int, *modules: str) -> dict[str, dict[str, int]]:
    """Case to the fields of `Resources`."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(architecture), *modules]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
