"""The runtime's threads sleep while they wait, unless the person said otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROBE = """
import sys
import engine.runtime.process as process
assert "torch" not in sys.modules, "the setting would come too late"
import engine.runtime.openmp as openmp
openmp.wait_without_spinning()
import os
print(os.environ["OMP_WAIT_POLICY"], os.environ["KMP_BLOCKTIME"])
"""


@pytest.mark.parametrize(
    ("own", "expected"), [({}, "passive 0"), ({"OMP_WAIT_POLICY": "active"}, "active 0")]
)
def test_set_before_torch_is_imported(own: dict[str, str], expected: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_WAIT", "KMP_"))}
    answer = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=environment | own,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout.strip() == expected
