"""What the engine says of its options is said in the app of the fields that set them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core import advice
from app.core.health import Health, HealthError
from app.core.supervisor import Supervisor
from app.ui.application import Headrace
from app.ui.pages.settings import SettingsPage
from tests.app.conftest import Opener

ROOT = Path(__file__).parents[2]
NOT_THE_APPS = {"--host", "--allow-host", "--cors-origin", "--kv-tokens", "--record"}
"""The app's own server never complains of them: it is never given them."""


def raised() -> Iterator[str]:
    """Every sentence with an option that the engine has in a call: what it raises or returns."""
    for path in (ROOT / "engine").rglob("*.py"):
        if "cli" in path.parts or path.name.startswith(("bench", "verify")):
            continue  # options' declarations, and what no app starts
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            texts = [*call.args, *(word.value for word in call.keywords if word.arg == "hint")]
            for text in texts:
                parts = text.values if isinstance(text, ast.JoinedStr) else [text]
                for part in parts:
                    said = part.value if isinstance(part, ast.Constant) else None
                    if isinstance(said, str) and re.search(r"--[a-z]", said) and " " in said:
                        yield said


def test_no_sentence_sends_to_the_command_line() -> None:
    sentences = set(raised())
    assert len(sentences) > 4
    for sentence in sentences:
        left = set(re.findall(r"--[a-z-]+", advice.in_settings(sentence)))
        assert left <= NOT_THE_APPS, sentence


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("choose another port with --port.", "choose another port with “Port” in Settings."),
        ("Lower --moe-cache-rate or --context.", "Lower “Expert cache” or “Context” in Settings."),
        (
            "Use --device cpu, or --device auto.",
            "Use “Device: cpu”, or “Device: auto” in Settings.",
        ),
        ("lower --max-sequences", "lower the number of requests at once"),
        ("shard 2 -- of 3 -- is missing", "shard 2 -- of 3 -- is missing"),
    ],
)
def test_options_become_fields(said: str, wanted: str) -> None:
    assert advice.in_settings(said) == wanted
    assert advice.names_settings(wanted) == ("Settings" in wanted)


def test_the_fields_are_called_so_on_the_page(open_app: Opener) -> None:
    headrace: Headrace = open_app()
    page: SettingsPage = headrace.window.settings
    for editor, field in ((page.port, "Port"), (page.cache_rate, "Expert cache")):
        assert editor.accessibleName() == field


def test_only_the_apps_own_engine_has_fields() -> None:
    """Who has started a server by hand has the command line."""
    error = HealthError(code="out_of_memory", message="m", hint="Lower --context.")
    hints = []
    for found in (False, True):
        supervisor = Supervisor(lambda: 0.0)
        supervisor.start(found=found)
        supervisor.health(Health(status="failed", error=error))
        hints.append(supervisor.view.hint)
    assert hints == ["Lower “Context” in Settings.", "Lower --context."]
