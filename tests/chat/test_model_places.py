"""From what a person writes to the model's files and its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import paths
from engine.chat.model_files import locate
from engine.errors import HeadraceError, ModelFilesError, ModelNotFound


def test_a_folder_a_file_and_the_demo(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert (locate(str(folder)).path, locate(str(folder)).name) == (folder, "My-Model")
    file = tmp_path / "small.Q4_1.gguf"
    file.write_bytes(b"GGUF")
    assert (locate(str(file)).name, locate(str(file)).is_gguf) == ("small.Q4_1", True)
    assert (locate("demo").path, locate("demo").name) == (paths.demo_model(), "demo")


def test_only_the_bare_word_is_the_bundled_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the runtime is given must not be the word again: `str(Path("./demo")) == "demo"`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "config.json").write_text("{}")
    for spelling in ("./demo", "demo/", "../" + tmp_path.name + "/demo"):
        place = locate(spelling)
        assert place.path.is_absolute() and place.path.samefile(tmp_path / "demo")
        assert place.name == "demo"
    assert locate("demo").path == paths.demo_model()


def test_the_hubs_cache_shows_the_models_name_not_a_hash(tmp_path: Path) -> None:
    repository = tmp_path / "models--Org--Some-Model"
    snapshot = repository / "snapshots" / ("0123456789" * 4)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    (snapshot / "config.json").write_text("{}")
    link = tmp_path / "link"
    link.symlink_to(snapshot)
    for place in (repository, snapshot, link):
        assert locate(str(place)).name == "Org/Some-Model"
        assert locate(str(place)).path.samefile(snapshot)


def test_what_leads_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        locate(str(tmp_path / "nowhere"))
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(HeadraceError) as raised:
            locate(str(path))
        assert isinstance(raised.value, ModelNotFound | ModelFilesError)
        assert str(path) in raised.value.message
