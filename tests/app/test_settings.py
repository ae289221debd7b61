import json
import logging
from pathlib import Path

import msgspec
import pytest

from app.core import settings
from app.core.settings import Settings


def test_defaults_where_nothing_is_stored() -> None:
    assert settings.load() == Settings()


def test_what_is_saved_is_loaded(home: Path) -> None:
    chosen = Settings(model="/models/x", device="sim", moe_cache_rate=0.37, port=9, theme="dark")
    settings.save(chosen)
    assert settings.load() == chosen
    assert [path.name for path in home.iterdir()] == ["settings.json"]


def test_a_corrupt_file_is_set_aside(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "settings.json").write_text('{"model": "dem')
    with caplog.at_level(logging.WARNING):
        assert settings.load() == Settings()
    kept = [path for path in home.iterdir() if "corrupt" in path.name]
    assert [path.read_text() for path in kept] == ['{"model": "dem']
    assert "damaged" in caplog.text and kept[0].name in caplog.text


@pytest.mark.parametrize(
    ("field", "value"),
    [("device", "toaster"), ("moe_cache_rate", 1.5), ("port", 70000), ("on_close", 3)],
)
def test_one_wrong_field_costs_no_other(
    home: Path, caplog: pytest.LogCaptureFixture, field: str, value: object
) -> None:
    (home / "settings.json").write_text(json.dumps({"model": "/m", field: value, "later": 1}))
    with caplog.at_level(logging.WARNING):
        loaded = settings.load()
    assert loaded == Settings(model="/m")
    assert field in caplog.text


def test_a_failed_save_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.save(Settings(port=1))

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        settings.save(Settings(port=2))
    monkeypatch.undo()
    monkeypatch.setenv("HEADRACE_HOME", str(home))
    assert settings.load().port == 1
    assert len(list(home.iterdir())) == 1


def test_problems_name_the_field() -> None:
    wrong = Settings(model="/nowhere/at/all", moe_cache_rate=0.0, context_tokens=-1, port=99999)
    assert set(settings.problems(wrong)) == {"model", "moe_cache_rate", "context_tokens", "port"}
    assert settings.problems(Settings()) == {}


@pytest.mark.parametrize("field", settings.ENGINE_FIELDS)
def test_engine_fields_need_a_restart(field: str) -> None:
    other = Settings(
        model="x", device="sim", moe_cache_rate=0.5, context_tokens=7, port=8, api_key="k"
    )
    changed = msgspec.structs.replace(Settings(), **{field: getattr(other, field)})
    assert settings.needs_restart(Settings(), changed)
    assert not settings.needs_restart(Settings(), Settings(theme="dark", on_close="quit"))


@pytest.mark.parametrize("model", ["./demo", "some-folder", "~nobody-of-this-name/x", "x.gguf"])
def test_every_model_but_demo_must_exist(model: str) -> None:
    assert "model" in settings.problems(Settings(model=model))


@pytest.mark.parametrize("key", ["Schlüssel", "two words", "鍵", "a\tb"])
def test_a_key_that_clients_cannot_send_is_no_key(key: str) -> None:
    assert set(settings.problems(Settings(api_key=key))) == {"api_key"}
    assert settings.problems(Settings(api_key="K3y-of_mine!")) == {}


def test_what_is_lost_with_the_settings_is_told(home: Path) -> None:
    file = home / "settings.json"
    file.write_text('{"api_key": "secret", ')
    _, (sentence,) = settings.read()
    (kept,) = home.iterdir()
    assert str(kept) in sentence and "No API key is set" in sentence
    file.write_text('{"api_key": "Schlüssel", "port": -1}')
    _, lost = settings.read()
    assert len(lost) == 2
    assert all(words in " ".join(lost) for words in ("port", "api_key", "No API key is set"))
    settings.save(Settings())
    assert settings.read() == (Settings(), [])
