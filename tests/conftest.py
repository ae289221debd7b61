"""What every suite shares: the environment they run in, and which tests are left out.

Nothing here imports torch or Qt, so that the suites that need neither stay fast.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path

# Before any test module is imported, since torch, Qt and the hub client read these at import.
# One thread each: the suites run side by side, and sums then do not depend on the machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost,::1"

import pytest
from hypothesis import settings

_home = tempfile.TemporaryDirectory(prefix="headrace-tests-")
os.environ["HEADRACE_HOME"] = _home.name  # no test, nor a program it starts, sees the user's files


FULL_TIMEOUT = 1200
"""Seconds for a test that asks for no others: in a full run, properties try many more examples."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the slow suites (marker full) too")
    parser.addoption(
        "--left-out",
        type=Path,
        metavar="PATH",
        help="write there, as JSON, how many tests of each suite are left out, by their marker",
    )


def pytest_configure(config: pytest.Config) -> None:
    """How property tests search. A busy machine is slow at any example: none has a deadline."""
    settings.register_profile("plain", deadline=None)
    settings.register_profile("full", deadline=None, max_examples=1000)
    settings.load_profile("full" if config.getoption("--full") else "plain")


def _has_cuda() -> bool:
    if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
        return os.name == "nt" and Path(os.environ["SYSTEMROOT"], "System32/nvcuda.dll").exists()
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out, visibly as deselected, what this run or this machine is not for."""
    absent = set() if _has_cuda() else {"gpu"}
    if not config.getoption("--full"):
        absent.add("full")
    else:
        for item in items:
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(FULL_TIMEOUT))
    reasons = {
        item: name for item in items for name in sorted(absent) if item.get_closest_marker(name)
    }
    if reasons:
        config.hook.pytest_deselected(items=list(reasons))
        items[:] = [item for item in items if item not in reasons]
    if table := config.getoption("--left-out"):
        counts = Counter((_suite(item), name) for item, name in reasons.items())
        rows = [[suite, name, count] for (suite, name), count in sorted(counts.items())]
        table.write_text(json.dumps(rows), encoding="utf-8")


def _suite(item: pytest.Item) -> str:
    """The folder of tests/ that it is in, or its file's name where that lies in tests/ itself."""
    return item.path.relative_to(Path(__file__).parent).with_suffix("").parts[0]


def pytest_unconfigure(config: pytest.Config) -> None:
    _home.cleanup()
