"""Which of a repository's files a request means."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from app.core.downloads.errors import DownloadError
from app.core.downloads.records import RemoteFile, Request

_BESIDE = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
"""What lies beside safetensors and is read, or tells of the model."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)


def select(request: Request, files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
    """Raises DownloadError where nothing fits, or where the person has to choose."""
    if request.files:
        return _matching(request, files)
    top = [file for file in files if "/" not in file.name]
    weights = [file for file in top if file.name.endswith(".safetensors")]
    # Some repositories hold the weights a second time in another program's layout.
    usual = [file for file in weights if not file.name.startswith("consolidated")]
    if weights:
        beside = [f for f in top if f.name.endswith(_BESIDE) or f.name.startswith("LICENSE")]
        return tuple(sorted([*(usual or weights), *beside], key=lambda file: file.name))
    models = gguf_models(files)
    if len(models) == 1:
        return next(iter(models.values()))
    if models:
        choices = tuple(
            RemoteFile(
                name=name,
                size=sum(file.size for file in parts),
                digest=parts[0].digest,
                sha256=parts[0].sha256,
            )
            for name, parts in models.items()
        )
        raise DownloadError(
            "choose_files",
            f"{request.repo} holds {len(models)} models; one has to be chosen.",
            hint=f"Name one by a pattern: {', '.join(models)}",
            choices=choices,
        )
    raise DownloadError(
        "not_found", f"{request.repo} holds neither safetensors nor GGUF files: no model to run."
    )


def gguf_models(files: tuple[RemoteFile, ...]) -> dict[str, tuple[RemoteFile, ...]]:
    """The parts of each GGUF model, by a pattern that `Request.files` takes for it.

    Vision projectors are no models.
    """
    found: dict[str, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        name = file.name
        if name.lower().endswith(".gguf") and "mmproj" not in PurePosixPath(name).name.lower():
            found.setdefault(_PART.sub("-*.gguf", name), []).append(file)
    return {pattern: tuple(parts) for pattern, parts in found.items()}


def to_load(files: tuple[RemoteFile, ...]) -> str:
    """What of a snapshot with these files one loads: a GGUF file's name, or "" for the folder."""
    models = gguf_models(files)
    if len(models) == 1 and not any(file.name.endswith(".safetensors") for file in files):
        return next(iter(models.values()))[0].name
    return ""


def _matching(request: Request, files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
    chosen: dict[str, RemoteFile] = {}
    for pattern in request.files:
        fits = [file for file in files if _fits(file.name, pattern)]
        if not fits:
            raise DownloadError(
                "not_found",
                f"{request.repo} has no file that fits {pattern!r} at {request.revision}.",
                hint=f"It has {', '.join(sorted(file.name for file in files)[:20])}.",
            )
        chosen |= {file.name: file for file in fits}
    return tuple(chosen[name] for name in sorted(chosen))


def _fits(name: str, pattern: str) -> bool:
    """A name as it is, or a pattern in any case; a pattern without `/` fits in any folder."""
    if name == pattern:
        return True
    name, pattern = name.lower(), pattern.lower()
    return fnmatchcase(name if "/" in pattern else PurePosixPath(name).name, pattern)
