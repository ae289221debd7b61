"""Whatever bytes and values a model's files hold, the answer is a typed error or a model."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import HeadraceError, ModelFilesError
from engine.formats.checkpoint import open_checkpoint
from engine.formats.safetensors_header import read_header
from engine.models.registry import describe
from tests.formats.checkpoints import write_json, write_single
from tests.models.test_describe import ALL
from tests.properties import examples

HEADER = json.dumps(
    {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [16, 24]},
    }
).encode()
WHOLE = len(HEADER).to_bytes(8, "little") + HEADER + bytes(24)

edits = st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=6)


@settings(max_examples=examples(300))
@given(edits, st.integers(0, len(WHOLE)))
def test_damaged_weights_are_refused_or_still_sound(
    changes: list[tuple[int, int]], length: int
) -> None:
    content = bytearray(WHOLE)
    for at, value in changes:
        content[at] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.safetensors"
        path.write_bytes(content[:length] if length % 3 == 0 else content)
        size = path.stat().st_size
        with contextlib.suppress(ModelFilesError):
            for info in read_header(path).values():
                assert 8 <= info.offset <= info.offset + info.nbytes <= size


strange = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
OPTIONAL = ["rope_parameters", "rope_scaling", "eos_token_id", "layer_types", "head_dim"]
OPTIONAL += ["quantization_config", "text_config", "tie_word_embeddings", "attention_bias"]
OPTIONAL += ["mlp_only_layers", "decoder_sparse_step", "partial_rotary_factor"]


@settings(max_examples=examples(300))
@given(st.data())
def test_strange_configs_are_refused_or_described(data: st.DataObject) -> None:
    config: dict[str, Any] = dict(ALL[data.draw(st.sampled_from(sorted(ALL)))])
    fields = st.sampled_from(sorted({*config, *OPTIONAL}))
    for field in data.draw(st.lists(fields, min_size=1, max_size=3)):
        config[field] = data.draw(strange)
    with tempfile.TemporaryDirectory() as name:
        folder = write_single(Path(name), {}, {})
        write_json(folder / "config.json", config)
        with contextlib.suppress(HeadraceError):
            describe(open_checkpoint(folder))
