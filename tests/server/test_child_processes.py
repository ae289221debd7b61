"""Child processes import nothing from the current folder, which may be a model that was fetched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.chat.render_frames import Outcome
from engine.chat.rendering import Renderer
from engine.server.runtime_process import RuntimeProcess


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Is there once a module of the current folder has run."""
    marker = tmp_path / "ran"
    for name in ("jinja2", "queue", "json", "logging", "msgspec", "engine"):
        (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()")
    monkeypatch.chdir(tmp_path)
    return marker


def test_rendering(ran: Path) -> None:
    renderer = Renderer()
    try:
        assert renderer.ask("a{{ x }}", {"x": 1}) == (Outcome.RENDERED, "a1")
    finally:
        renderer.close()
    assert not ran.exists()


def test_the_runtime(ran: Path) -> None:
    async def run() -> None:
        process = await RuntimeProcess.spawn()
        await process.close()

    asyncio.run(run())
    assert not ran.exists()
