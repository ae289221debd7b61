"""Where files go, and which of them, on systems without links too."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir, snapshot_download

from app.core.downloads import layout
from app.core.downloads.errors import DownloadError
from app.core.downloads.library import Library
from app.core.downloads.models import Standing
from app.core.downloads.records import Event, Ready, RemoteFile, Request
from app.core.downloads.selection import select, to_load
from tests.app.downloads.checks import left_over, repository
from tests.app.downloads.fake_hub import FakeHub, git_sha1

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Fetcher = Callable[..., list[Event]]


def test_the_hubs_own_client_takes_what_was_fetched(
    hub: FakeHub, root: Path, fetch: Fetcher
) -> None:
    path = fetch()[-1].path  # type: ignore[union-attr]
    wanted = ["*.safetensors", "config.json"]
    found = snapshot_download(
        hub.repo, cache_dir=root, local_files_only=True, allow_patterns=wanted
    )
    assert Path(found) == Path(path)
    scanned = scan_cache_dir(root)
    assert scanned.warnings == []
    (repo,) = scanned.repos
    assert (repo.repo_id, repo.nb_files) == ("org/model", 5)
    Library().delete(Library().scan([root])[0].models[0])
    assert (scan_cache_dir(root).warnings, scan_cache_dir(root).repos) == ([], frozenset())


def test_git_agrees_on_the_digest_of_small_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content\n" * 99)
    said = subprocess.run(
        ["git", "hash-object", "f"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == git_sha1(b"content\n" * 99)


@pytest.mark.parametrize("hard", [True, False], ids=["hard links", "no links"])
def test_where_there_are_no_symbolic_links(
    hub: FakeHub, root: Path, fetch: Fetcher, monkeypatch: pytest.MonkeyPatch, hard: bool
) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise OSError(1, "not supported here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    if not hard:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    hub.files["twin.json"] = hub.promised["twin.json"] = hub.files["config.json"]
    assert isinstance(fetch()[-1], Ready)
    snapshot = repository(root) / "snapshots" / hub.commit
    for path in snapshot.iterdir():
        assert not path.is_symlink()
        assert path.read_bytes() == hub.promised[path.name]
    (folder,) = Library().scan([root])
    assert folder.models[0].standing is Standing.READY
    total = sum(map(len, hub.promised.values())) - len(hub.files["original/weights.pth"])
    twin = len(hub.files["config.json"])
    assert folder.size == total - (twin if hard else 0)
    hub.requests.clear()
    assert isinstance(fetch()[-1], Ready)
    assert not any("/resolve/" in path for _, path, _ in hub.requests)
    assert Library().delete(folder.models[0]).freed >= folder.size
    assert left_over(root) == []


def test_the_hubs_cache_is_where_the_hub_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert layout.hub_cache() == tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    assert layout.hub_cache() == tmp_path / "cache"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert layout.hub_cache() == tmp_path / "xdg" / "huggingface" / "hub"


# --- which files ---


def files(*names: str) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(name=name, size=10, digest=hashlib.sha256(name.encode()).hexdigest())
        for name in names
    )


def chosen(names: tuple[RemoteFile, ...], *patterns: str) -> list[str]:
    return [file.name for file in select(Request(repo="a/b", files=patterns), names)]


def test_by_default_a_model_s_own_files_are_fetched() -> None:
    there = files(
        *("model.safetensors", "consolidated.safetensors", "config.json", "tokenizer.model"),
        *("chat_template.jinja", "LICENSE", "pytorch_model.bin", "onnx/model.onnx", "run.py"),
        "metal/model.safetensors",
    )
    assert chosen(there) == [
        *("LICENSE", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.model")
    ]


def test_a_single_gguf_model_is_chosen_with_all_its_parts() -> None:
    there = files("q/m-00002-of-00002.gguf", "q/m-00001-of-00002.gguf", "mmproj-m.gguf")
    assert chosen(there) == ["q/m-00001-of-00002.gguf", "q/m-00002-of-00002.gguf"]
    assert to_load(select(Request(repo="a/b"), there)) == "q/m-00001-of-00002.gguf"


def test_of_several_gguf_models_the_person_chooses() -> None:
    there = files("m-Q4.gguf", "m-Q8-00001-of-00002.gguf", "m-Q8-00002-of-00002.gguf")
    with pytest.raises(DownloadError) as caught:
        select(Request(repo="a/b"), there)
    assert caught.value.code == "choose_files"
    assert [(c.name, c.size) for c in caught.value.choices] == [
        ("m-Q4.gguf", 10),
        ("m-Q8-*.gguf", 20),
    ]
    for choice in caught.value.choices:
        assert sum(10 for _ in chosen(there, choice.name)) == choice.size


def test_patterns_fit_names_in_any_folder_and_case() -> None:
    there = files("a/M-Q4_K_M.gguf", "b/x.json", "x.json")
    assert chosen(there, "*q4_k_m*") == ["a/M-Q4_K_M.gguf"]
    assert chosen(there, "b/*.json") == ["b/x.json"]
    assert chosen(there, "x.json", "*.gguf") == ["a/M-Q4_K_M.gguf", "b/x.json", "x.json"]


@pytest.mark.parametrize("patterns", [("*.bin",), ()])
def test_nothing_that_fits_is_named(patterns: tuple[str, ...]) -> None:
    with pytest.raises(DownloadError) as caught:
        chosen(files("readme.md"), *patterns)
    assert caught.value.code == "not_found"
