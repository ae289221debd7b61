"""The checkout as the project's tests see it: its files, its modules, what imports what."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

ROOT = Path(__file__).resolve().parents[2]


def tracked_files() -> list[Path]:
    """Files of the project: those git knows, or all where this is no clone."""
    # The clone may belong to another user than the one who tests it.
    git = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    try:
        listing = subprocess.run(git, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return files_not_ignored(ROOT)
    names = [name for name in listing.decode().split("\0") if name]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def files_not_ignored(root: Path) -> list[Path]:
    """Every file below `root` but those that its .gitignore names and git's own."""
    lines = (root / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = GitIgnoreSpec.from_lines([".git", *lines])
    found = (path for path in root.rglob("*") if path.is_file())
    return [path for path in found if not ignored.match_file(path.relative_to(root))]


def modules(*packages: str) -> dict[str, Path]:
    """Every module of these packages by its dotted name; a package stands for its __init__."""
    found: dict[str, Path] = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, also those inside functions and type checks.

    `from a import b` names a.b where that is one of the known modules, else a.
    """
    package = path.parent.relative_to(ROOT).parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *([node.module] if node.module else ())))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in known else base
