"""Finding a model and telling what is wrong with it, before any tensor is placed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import HeadraceError, ModelFilesError, ModelNotFound, UnsupportedModel
from engine.formats import gguf_parts
from engine.formats.checkpoint import open_checkpoint
from engine.formats.gguf_blocks import TENSOR_TYPES, Floats
from engine.formats.model_files import inspect_model
from engine.models.families import describe
from tests.formats.checkpoints import (
    LLAMA,
    REVISION,
    llama_tensors,
    write_hub_cache,
    write_json,
    write_sharded,
    write_single,
)
from tests.formats.gguf_writer import write_gguf


def refusal(path: Path) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        open_checkpoint(path)
    return caught.value


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_sharded(tmp_path / "tiny")


def test_a_sharded_model_reads_as_it_was_written(sharded: Path) -> None:
    checkpoint = open_checkpoint(sharded)
    assert checkpoint.display_name == "tiny"
    for name, tensor in llama_tensors().items():
        assert torch.equal(checkpoint.read(name), tensor)
        assert checkpoint.info(name).nbytes == tensor.nbytes


def test_the_app_can_look_at_models_without_torch_and_numpy(sharded: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from engine.formats.model_files import inspect_model;"
        f"inspect_model(Path({str(sharded)!r}));"
        "sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


# --- case c73: a shard is missing, cut short or still arriving ------------------------------------


SHARD = "model-00002-of-00003.safetensors"


def test_a_missing_shard_is_named_as_an_incomplete_download(sharded: Path) -> None:
    (sharded / SHARD).unlink()
    error = refusal(sharded)
    assert isinstance(error, ModelFilesError)
    assert SHARD in error.message and "incomplete" in error.message


def test_a_shard_cut_short_is_found_when_the_model_is_opened(sharded: Path) -> None:
    content = (sharded / SHARD).read_bytes()
    (sharded / SHARD).write_bytes(content[:-1000])
    error = refusal(sharded)
    assert SHARD in error.message and "truncated" in error.message
    assert "incomplete" in error.hint


@pytest.mark.parametrize("suffix", [".part", ".incomplete"])
def test_a_shard_that_still_arrives_is_named(sharded: Path, suffix: str) -> None:
    (sharded / SHARD).rename(sharded / (SHARD + suffix))
    error = refusal(sharded)
    assert SHARD in error.message
    assert SHARD + suffix in error.message
    assert "incomplete" in error.message


def test_a_shard_without_a_tensor_of_the_index_is_named(sharded: Path) -> None:
    shutil.copy(sharded / "model-00001-of-00003.safetensors", sharded / SHARD)
    assert "and again in" in refusal(sharded).message
    index = sharded / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    first = "model-00001-of-00003.safetensors"
    write_json(index, {"weight_map": dict.fromkeys(weight_map, first)})
    assert "has no tensor" in refusal(sharded).message


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "a/b", "a\\b", "", 7])
def test_an_index_cannot_lead_out_of_its_folder(sharded: Path, file: object) -> None:
    write_json(sharded / "model.safetensors.index.json", {"weight_map": {"x": file}})
    assert "no file name" in refusal(sharded).message


# --- case c75: nothing, or something else, where the weights should be ----------------------------


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    write_json(tmp_path / "tokenizer.json", {})
    error = refusal(tmp_path)
    assert isinstance(error, ModelFilesError)
    assert "holds no weights" in error.message


def test_a_folder_named_like_the_weights_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    (tmp_path / "model.safetensors").mkdir()
    assert "is a folder" in refusal(tmp_path).message


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is empty"), (b"\xff" * 8, "header of 18446744073709551615 bytes")]
)
def test_empty_and_garbage_weights_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    (tmp_path / "model.safetensors").write_bytes(content)
    assert says in refusal(tmp_path).message


def test_other_weights_are_named(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", LLAMA)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "pytorch_model.bin" in refusal(tmp_path).message
    write_gguf(tmp_path / "model.gguf", {}, {})
    assert "Point at the .gguf file" in refusal(tmp_path).hint


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_a_config_that_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    write_single(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert "config.json" in refusal(tmp_path).message


def test_paths_that_lead_nowhere_are_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        assert isinstance(refusal(path), ModelNotFound)
    (tmp_path / "weights.bin").write_bytes(b"x")
    assert isinstance(refusal(tmp_path / "weights.bin"), ModelNotFound)
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "gone" in refusal(tmp_path / "link").message


# --- case c83: the hub's cache, where every file is a link ----------------------------------------


def test_a_snapshot_its_repository_and_a_link_to_it_all_load(tmp_path: Path) -> None:
    repository = write_hub_cache(tmp_path)
    snapshot = repository / "snapshots" / REVISION
    (tmp_path / "my-link").symlink_to(snapshot)
    for path in (snapshot, repository, tmp_path / "my-link"):
        files = inspect_model(path)
        assert files.display_name == "acme/tiny"
        assert files.tensors.keys() == llama_tensors().keys()


def test_the_cache_itself_says_what_to_point_at(tmp_path: Path) -> None:
    repository = write_hub_cache(tmp_path)
    error = refusal(repository.parent)
    assert isinstance(error, ModelNotFound)
    assert str(repository) in error.hint


def test_a_dangling_link_is_an_unfinished_download(tmp_path: Path) -> None:
    repository = write_hub_cache(tmp_path)
    link = repository / "snapshots" / REVISION / SHARD
    blob = link.resolve()
    blob.rename(blob.with_name(blob.name + ".incomplete"))
    error = refusal(repository)
    assert SHARD in error.message and "unfinished" in error.message


def test_a_missing_file_names_the_blob_that_still_arrives(tmp_path: Path) -> None:
    repository = write_hub_cache(tmp_path)
    (repository / "blobs" / "abc.incomplete").write_bytes(b"")
    (repository / "snapshots" / REVISION / SHARD).unlink()
    error = refusal(repository)
    assert "blobs/abc.incomplete" in error.message and "incomplete" in error.message


def test_what_never_arrived_beside_a_complete_model_is_noted(tmp_path: Path) -> None:
    repository = write_hub_cache(tmp_path)
    assert inspect_model(repository).notes == ()
    (repository / "blobs" / "abc.incomplete").write_bytes(b"")
    (repository / "snapshots" / REVISION / "README.md").symlink_to("../../blobs/abc")
    files = inspect_model(repository)
    left = "blobs/abc.incomplete, README.md (a link to nothing)"
    assert files.notes == (f"unfinished downloads lie beside the model: {left}",)
    assert describe(files).notes == files.notes


def test_a_ref_without_its_snapshot_is_unfinished(tmp_path: Path) -> None:
    repository = write_hub_cache(tmp_path)
    (repository / "refs" / "main").write_text("f" * 40)
    assert "incomplete" in refusal(repository).hint
    (repository / "refs" / "main").unlink()
    assert inspect_model(repository).display_name == "acme/tiny"


# --- case c85: split GGUF and projectors ----------------------------------------------------------


def write_split(folder: Path, parts: int = 3) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for part in range(parts):
        path = folder / f"big-{part + 1:05d}-of-{parts:05d}.gguf"
        meta: dict[str, str | int | float | list[str]] = {"split.no": part, "split.count": parts}
        if part == 0:
            meta |= {"general.architecture": "llama", "split.tensors.count": parts}
        raw = np.full(4, part, dtype=np.float32).tobytes()
        write_gguf(path, meta, {f"tensor.{part}": ("F32", (4,), raw)})
        paths.append(path)
    return paths


def test_a_split_gguf_is_one_model_whichever_part_is_named(tmp_path: Path) -> None:
    parts = write_split(tmp_path / "model")
    assert [e.name for e in gguf_parts.entries(tmp_path / "model")] == ["big"]
    for path in (*parts, tmp_path / "model"):
        checkpoint = open_checkpoint(path)
        assert checkpoint.path == parts[0]
        assert checkpoint.display_name == "big"
        assert checkpoint.config["general.architecture"] == "llama"
        for part in range(3):
            assert checkpoint.read(f"tensor.{part}").tolist() == [part] * 4


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = write_split(tmp_path / "model")
    parts[1].unlink()
    for path in (parts[0], parts[2], tmp_path / "model"):
        error = refusal(path)
        assert isinstance(error, ModelFilesError)
        assert parts[1].name in error.message and "incomplete" in error.message
    parts[0].unlink()
    assert parts[0].name in refusal(tmp_path / "model").message


def test_parts_of_another_model_are_noticed(tmp_path: Path) -> None:
    parts = write_split(tmp_path / "model")
    shutil.copy(parts[1], parts[2])
    assert "and again in" in refusal(parts[0]).message


def test_a_projector_is_no_chat_model(tmp_path: Path) -> None:
    parts = write_split(tmp_path, 1)
    projector = tmp_path / "mmproj-big-f16.gguf"
    write_gguf(projector, {"general.architecture": "clip"}, {})
    assert [e.parts[0] for e in gguf_parts.entries(tmp_path)] == [parts[0]]
    assert open_checkpoint(tmp_path).path == parts[0]
    assert isinstance(refusal(projector), UnsupportedModel)
    renamed = tmp_path / "text.gguf"
    projector.rename(renamed)
    assert "projector" in refusal(renamed).message


def test_several_gguf_models_ask_for_one(tmp_path: Path) -> None:
    write_split(tmp_path, 1)
    shutil.copy(tmp_path / "big-00001-of-00001.gguf", tmp_path / "other.gguf")
    error = refusal(tmp_path)
    assert isinstance(error, ModelNotFound)
    assert "other.gguf" in error.hint


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path, 1)[0]
    path.write_bytes(path.read_bytes()[:-20])
    error = refusal(path)
    assert isinstance(error, ModelFilesError)
    assert path.name in error.message


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q5_0", "Q5_1", "Q5_K", "Q8_1", "Q8_K", "I32"])
def test_gguf_types_that_are_not_read_are_refused_before_anything_is_placed(
    tmp_path: Path, kind: str
) -> None:
    _, block, size, _ = next(each for each in TENSOR_TYPES.values() if each.name == kind)
    path = tmp_path / "odd.gguf"
    plain = ("F32", (4,), bytes(16))
    tensors = {"good": plain, "blk.0.ffn_up.weight": (kind, (2, block), bytes(2 * size))}
    write_gguf(path, {"general.architecture": "llama"}, tensors)
    error = refusal(path)
    assert isinstance(error, UnsupportedModel)
    for part in (str(path), "blk.0.ffn_up.weight", kind):
        assert part in error.message
    assert "Q4_K" in error.hint


@pytest.mark.parametrize(
    ("divisors", "theta"),
    [
        (np.zeros(16), 1e4),
        (-np.ones(16), 1e4),
        (np.full(16, np.nan), 1e4),
        (np.full(16, np.inf), 1e4),
        (np.array([0.0, *np.ones(15)]), 1e4),
        (np.ones(15), 1e4),
        (np.ones(16), 1e-30),
    ],
)
def test_strange_divisors_of_the_rotation_are_refused(
    tmp_path: Path, divisors: Floats, theta: float
) -> None:
    meta: dict[str, str | int | float | list[str]] = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": theta,
    }
    path = tmp_path / "rope.gguf"
    tensors = {
        "token_embd.weight": ("F32", (8, 64), bytes(2048)),
        "rope_freqs.weight": ("F32", divisors.shape, divisors.astype("<f4").tobytes()),
    }
    write_gguf(path, meta, tensors)
    with pytest.raises(HeadraceError) as error:
        describe(inspect_model(path))
    assert str(path) in error.value.message
