"""The program that takes the README's screenshots takes them. `full`: it asks a model a lot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtGui import QImage

from tests.project.checkout import ROOT

TOOLS = ("Xvfb", "openbox", "trayer", "xsetroot")
MISSING = [name for name in TOOLS if shutil.which(name) is None]

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


def colours(image: QImage) -> set[int]:
    """Those of every third pixel each way."""
    return {
        image.pixel(x, y) for x in range(0, image.width(), 3) for y in range(0, image.height(), 3)
    }


def test_both_pictures_show_the_window(tmp_path: Path) -> None:
    program = ROOT / "docs" / "make_screenshots.py"
    done = subprocess.run(
        [sys.executable, str(program), "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    taken = {path.name: QImage(str(path)) for path in tmp_path.glob("*.png")}
    assert len(taken) == 2
    for name, image in taken.items():
        assert f"docs/{name}" in readme
        kept = QImage(str(ROOT / "docs" / name))
        assert image.size() == kept.size() and not image.isNull()
        # An X server without the window has one colour, and a window without its contents few.
        assert len(colours(image)) > len(colours(kept)) / 2 > 100, name
    first, second = taken.values()
    assert first != second
