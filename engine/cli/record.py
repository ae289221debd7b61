"""The record of a measurement: the option that names its file, and whether it can be written."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine.cli.values import given
from engine.errors import InvalidRequest


def file(text: str) -> Path:
    return Path(given(text))


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=file, metavar="FILE", help="write the record to this file")


def check_writable(path: Path) -> None:
    """Opens the file as writing it will; one that was not there is not left behind.

    Raises InvalidRequest.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = not path.exists()
        path.open("ab").close()
        if made:
            path.unlink()
    except OSError as error:
        raise InvalidRequest(
            f"--json {path} cannot be written: {error.strerror}.", param="json"
        ) from error
