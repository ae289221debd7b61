"""The hub's download cache: models--org--name/{blobs,refs,snapshots}. Torch-free."""

from __future__ import annotations

from pathlib import Path

from engine.errors import ModelFilesError, ModelNotFound

_PREFIX = "models--"
UNFINISHED_SUFFIXES = (
    ".incomplete",
    ".part",
    ".partial",
    ".tmp",
    ".crdownload",
    ".aria2",
    ".download",
)


def repository_name(folder_name: str) -> str | None:
    """`org/name` of a cache folder `models--org--name`, None for any other name."""
    if not folder_name.startswith(_PREFIX):
        return None
    return folder_name[len(_PREFIX) :].replace("--", "/")


def display_name(path: Path) -> str:
    """What people call the model in this folder or file: never a snapshot's hash."""
    real = path.resolve()
    for folder in (real, *real.parents):
        name = repository_name(folder.name)
        if name is not None and (folder / "snapshots").is_dir():
            return name
    return path.stem if path.suffix == ".gguf" else path.name or real.name


def snapshot_of(repository: Path) -> Path:
    """The snapshot to load of `models--org--name`: what refs/main names, or the only one."""
    snapshots = repository / "snapshots"
    ref = repository / "refs" / "main"
    if ref.is_file():
        revision = ref.read_text(encoding="utf-8", errors="replace").strip()
        named = snapshots / revision
        if revision and Path(revision).name == revision and named.is_dir():
            return named
        raise ModelFilesError(
            f"{ref} names revision {revision!r}, and {snapshots} has no such folder",
            hint="The download is incomplete: fetch the model again.",
        )
    found = sorted(p for p in snapshots.iterdir() if p.is_dir()) if snapshots.is_dir() else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise ModelFilesError(
            f"{repository} holds no snapshot",
            hint="The download is incomplete: fetch the model again.",
        )
    raise ModelNotFound(
        f"{repository} holds {len(found)} snapshots and no refs/main",
        hint=f"Point at one of: {', '.join(str(p) for p in found)}",
    )


def repositories(folder: Path) -> list[Path]:
    """The model repositories directly in a cache folder."""
    return sorted(p for p in folder.glob(_PREFIX + "*") if p.is_dir())


def unfinished(folder: Path, name: str = "") -> list[str]:
    """Names of partial downloads of `name` (or of any file) and of a hub cache's blobs."""
    found = [
        entry.name
        for entry in sorted(folder.iterdir())
        if entry.name.startswith(name) and entry.name.endswith(UNFINISHED_SUFFIXES)
    ]
    real = folder.resolve()
    if real.parent.name == "snapshots":
        blobs = real.parent.parent / "blobs"
        if blobs.is_dir():
            found += [f"blobs/{p.name}" for p in sorted(blobs.glob("*.incomplete"))]
    return found


def unfinished_notes(folder: Path) -> tuple[str, ...]:
    """What a person should hear of downloads that never ended, beside a model that is complete."""
    dangling = sorted(p.name for p in folder.iterdir() if p.is_symlink() and not p.exists())
    left = [*unfinished(folder), *(f"{name} (a link to nothing)" for name in dangling)]
    return (f"unfinished downloads lie beside the model: {', '.join(left)}",) if left else ()
