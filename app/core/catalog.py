"""The models that this version runs and a person may want, with what is known of each beforehand.

`resources/catalog/models.json` holds repositories and the shapes that their config.json describes;
every size follows from a shape by arithmetic. What a download takes in all is asked of the hub.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from engine import paths
from engine.memory.model_facts import ModelFacts
from engine.models.facts import facts_of_config, facts_of_gguf

VERSION = 1


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the weights that are read: routed experts as blobs, the rest as stored."""

    experts: int
    other: int

    @property
    def total(self) -> int:
        return self.experts + self.other


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    """For people."""
    repo: str
    """`organisation/name` on the hub. Fetched is the commit that its branch `main` is then."""
    description: str
    licence: str
    family: str
    format: str
    context_tokens: int
    bytes: Sizes
    shape: str
    quantisation: str = ""
    files: tuple[str, ...] = ()
    """Patterns of the files to fetch; empty: what it takes to run the model."""
    file_bytes: int = 0
    """Of a GGUF file, as its repository lists it."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    about: str
    models: tuple[Entry, ...]
    shapes: dict[str, dict[str, Any]]
    """config.json by shape, as far as it is read."""
    quantisations: dict[str, dict[str, Any]]

    def config(self, entry: Entry) -> dict[str, Any]:
        """The part of the repository's config.json that is read."""
        config = dict(self.shapes[entry.shape])
        if entry.quantisation:
            config["quantization_config"] = self.quantisations[entry.quantisation]
        return config

    def facts(self, entry: Entry) -> ModelFacts:
        config, source = self.config(entry), f"catalog, {entry.repo}"
        if entry.file_bytes:
            return facts_of_gguf(config, source, entry.file_bytes)
        return facts_of_config(config, source)

    def find(self, text: str) -> Entry | None:
        """By repository or name, whatever the case."""
        wanted = text.strip().casefold()
        for entry in self.models:
            if wanted in (entry.repo.casefold(), entry.name.casefold()):
                return entry
        return None


@lru_cache(maxsize=1)
def catalog() -> Catalog:
    file = paths.resources() / "catalog" / "models.json"
    return msgspec.json.decode(file.read_bytes(), type=Catalog)
