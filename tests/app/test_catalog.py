"""The catalog: its form, and that every size in it follows from a configuration."""

from __future__ import annotations

import re

import pytest

from app.core.catalog import VERSION, Entry, catalog
from engine.formats.blob import FORMATS
from engine.formats.gguf_parts import GGUF_BLOCKS
from engine.models.families import FAMILIES

ENTRIES = catalog().models
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.repo)


def test_it_has_the_form_that_is_read() -> None:
    assert catalog().version == VERSION
    assert len({entry.repo for entry in ENTRIES}) == len(ENTRIES)
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    assert {entry.shape for entry in ENTRIES} == set(catalog().shapes)
    used = {entry.quantisation for entry in ENTRIES if entry.quantisation}
    assert used == set(catalog().quantisations)


@every_entry
def test_an_entry_is_what_its_shape_says(entry: Entry) -> None:
    facts = catalog().facts(entry)
    assert entry.family == facts.spec.family and entry.format == facts.format
    assert entry.context_tokens == facts.spec.context_tokens
    assert entry.bytes.experts == facts.store
    assert entry.bytes.total == facts.weight_bytes
    assert entry.family in {family.name for family in FAMILIES}
    assert entry.format in (*FORMATS, *GGUF_BLOCKS)


@every_entry
def test_an_entry_is_told_plainly(entry: Entry) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", entry.repo)
    assert 10 < len(entry.description) < 100 and entry.description.endswith(".")
    assert entry.licence and bool(entry.files) == bool(entry.file_bytes)


@every_entry
def test_the_sizes_agree_with_the_names_that_models_are_published_under(entry: Entry) -> None:
    """`30B A3B`: thousand million weights in all, and those that a token is multiplied with."""
    sizes = re.search(r"(\d+(?:\.\d+)?)([BM])(?: A(\d+(?:\.\d+)?)B)?", entry.name)
    assert sizes is not None
    unit = 1e9 if sizes[2] == "B" else 1e6
    facts = catalog().facts(entry)
    spec = facts.spec
    embedding = spec.vocab_size * spec.hidden
    experts = 0
    if spec.moe is not None:
        experts = len(spec.moe_layers) * spec.moe.experts * 3 * spec.hidden * spec.moe.intermediate
        routed = experts * spec.moe.top_k // spec.moe.experts
        # A name counts the embedding among the active weights.
        active = facts.active_weights + embedding
        assert active == pytest.approx(float(sizes[3]) * unit, rel=0.16)
        whole = facts.active_weights - routed + experts + embedding
    else:
        whole = facts.active_weights
    # Names are rounded, and some count a vision tower that is not read.
    assert whole == pytest.approx(float(sizes[1]) * unit, rel=0.025)


def test_models_are_found_by_repository_and_by_name() -> None:
    entry = ENTRIES[0]
    assert catalog().find(entry.repo.upper()) is entry
    assert catalog().find(f" {entry.name} ") is entry
    assert catalog().find("nobody/nothing") is None
