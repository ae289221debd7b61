"""Where there is no GPU, Triton's interpreter runs the kernels on tensors in host memory.

Triton decides when a kernel is defined, its own library's among them. So it is imported here, with
the variable set for no longer than that, and told once more for the kernels that tests import.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest
import torch

if find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]  # there is no Triton for macOS
elif not torch.cuda.is_available():
    assert "triton" not in sys.modules, "something imported triton before the interpreter was on"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        import triton
        import triton.language
    triton.knobs.runtime.interpret = True


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
