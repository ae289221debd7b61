"""Every scene in scenes/, played through the real loop and arbiter with a fake clock."""

from itertools import pairwise
from pathlib import Path

import pytest

from app.core.governor.arbiter import QUIET_S, STEP_S
from tests.app.core_governor.scene import Frame, Scene, load, play

SCENES = sorted(Path(__file__).with_name("scenes").glob("*.yaml"))


def test_there_are_scenes_enough() -> None:
    assert len(SCENES) >= 40


@pytest.mark.parametrize("path", SCENES, ids=lambda path: path.stem)
def test_scene(path: Path) -> None:
    scene = load(path)
    frames, stage = play(scene)
    wrong = [why for one in scene.expect for why in differences(scene, frames, one.at)]
    assert not wrong, "\n".join(wrong)
    if not scene.does and len(scene.engine.runs) == 1:
        calm(stage.asked)


def differences(scene: Scene, frames: list[Frame], at: float) -> list[str]:
    (expected,) = [one for one in scene.expect if one.at == at]
    frame = min(frames, key=lambda one: abs(one.at - at))
    view = frame.view
    budget = None if view.budget_bytes is None else view.budget_bytes / (1 << 30)
    told = " | ".join((view.title, view.cause, view.trouble, str(view.missing)))
    found = []
    if expected.state and view.state.value != expected.state:
        found.append(f"state {view.state.value}, not {expected.state}")
    if expected.budget is not None and (
        budget is None or abs(budget - expected.budget) > expected.within
    ):
        found.append(f"budget {budget}, not {expected.budget} ± {expected.within}")
    if expected.held is not None and abs(frame.held - expected.held) > expected.within:
        found.append(f"held {frame.held}, not {expected.held} ± {expected.within}")
    if expected.free is not None and frame.free < expected.free:
        found.append(f"free {frame.free}, not {expected.free}")
    if expected.says not in told:
        found.append(f"says “{told}”, not “{expected.says}”")
    if expected.asked is not None and frame.asked != expected.asked:
        found.append(f"asked {frame.asked} times, not {expected.asked}")
    return [f"at {at:g}: {why}" for why in found]


def calm(asked: list[tuple[float, float]]) -> None:
    """Up only long after down, and in steps with pauses."""
    for (before, had), (now, gets) in pairwise(asked):
        if gets > had:
            assert now - before >= STEP_S
    falls = [now for (_, had), (now, gets) in pairwise(asked) if gets < had]
    rises = [now for (_, had), (now, gets) in pairwise(asked) if gets > had]
    for rise in rises:
        assert not [fall for fall in falls if rise - QUIET_S < fall < rise]
