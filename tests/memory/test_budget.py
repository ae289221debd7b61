"""The solver: nothing is given twice, floors hold, refusals name both numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import psutil
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from engine.context.batch import SequenceSlice
from engine.context.kv import KvPages
from engine.context.states import StatePool
from engine.errors import InvalidRequest, OutOfMemory
from engine.kernels.attention import paged_attention
from engine.memory.budget import (
    SCORE_BYTES,
    ChunkNeed,
    Need,
    PoolNeed,
    Share,
    buffer_bytes,
    chunk_needs,
    dense_bytes,
    free_host_bytes,
    kv_bytes_per_token,
    slots_for_rate,
    state_bytes,
    workspace_bytes,
    workspace_per_token,
)
from engine.memory.solver import CHUNK_SHARE, solve
from engine.models.spec import (
    AttentionSpec,
    GatedDeltaSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    RopeSpec,
)
from tests.properties import examples

GB = 10**9
QWEN = ModelSpec(
    family="qwen3_5_moe",
    vocab_size=151936,
    hidden=2048,
    layers=tuple(
        LayerSpec("attention" if (layer + 1) % 4 == 0 else "gated_delta", "moe")
        for layer in range(40)
    ),
    attention=AttentionSpec(
        heads=16, kv_heads=2, head_dim=256, rope=RopeSpec(theta=1e7, dim=64), output_gate=True
    ),
    norm_eps=1e-6,
    context_tokens=262144,
    gated_delta=GatedDeltaSpec(
        key_heads=16, value_heads=32, key_dim=128, value_dim=128, conv_kernel=4
    ),
    moe=MoeSpec(
        experts=256, top_k=8, intermediate=512, normalise_top_k=True, shared_intermediate=512
    ),
)
"""Qwen3.6-35B-A3B's shape."""
STRIDE = 1773568
NEED = Need(
    dense=5 * GB,
    pools=(PoolNeed(stride=STRIDE, blobs=10240),),
    kv_per_token=20480,
    state=64_000_000,
    workspace=GB,
    context_tokens=262144,
)


def test_arithmetic_of_a_known_model() -> None:
    # Ten attention layers, two heads of 256 for keys and for values, two bytes each.
    assert kv_bytes_per_token(QWEN, "bfloat16") == 10 * 2 * 2 * 256 * 2
    # 30 x 32 x 128 x 128 float32 (62.9 MB) and three taps of 8,192 channels: "63 MB each".
    assert state_bytes(QWEN, "bfloat16") == 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    # A checkpoint of this shape, experts in NVFP4 and the rest in bf16, is 22 GB.
    assert dense_bytes(QWEN, "bfloat16") + 10240 * STRIDE == pytest.approx(22 * GB, rel=0.02)
    # Routers and convolutions are float32 in any compute dtype.
    single = dense_bytes(QWEN, "float32")
    held_wide = 40 * 256 * 2048 + 30 * 8192 * 4
    assert dense_bytes(QWEN, "bfloat16") == single // 2 + held_wide * 2
    dense_only = replace(QWEN, gated_delta=None, layers=QWEN.layers[3:4])
    assert state_bytes(dense_only, "float32") == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arithmetic_agrees_with_what_the_pools_take(dtype: str) -> None:
    small = replace(
        QWEN,
        gated_delta=GatedDeltaSpec(
            key_heads=1, value_heads=3, key_dim=2, value_dim=3, conv_kernel=4
        ),
    )
    kv = KvPages(small, 3, page_tokens=16, dtype=getattr(torch, dtype))
    states = StatePool(small, 5, dtype=getattr(torch, dtype))
    assert kv.nbytes == 3 * 16 * kv_bytes_per_token(small, dtype)
    assert states.nbytes == 5 * state_bytes(small, dtype)


def test_workspace_grows_with_the_chunk() -> None:
    small = workspace_bytes(QWEN, 1, 1, 8192)
    assert small < workspace_bytes(QWEN, 512, 1, 8192) < workspace_bytes(QWEN, 512, 8, 8192)
    # Scores of 16 heads for 512 x 65536 would be 2 GiB: the kernel cuts the chunk at SCORE_BYTES.
    long = workspace_bytes(QWEN, 512, 8, 65536)
    assert long - workspace_bytes(QWEN, 512, 8, 1) == pytest.approx(SCORE_BYTES, rel=0.01)


class Gathered(TorchDispatchMode):
    """Counts the bytes of what is gathered by index."""

    nbytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.index.Tensor:
            self.nbytes += out.nbytes
        return out


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_workspace_counts_the_copies_that_attention_makes(dtype: str) -> None:
    kv = KvPages(QWEN, 40, page_tokens=16, dtype=getattr(torch, dtype))
    a = QWEN.attention
    pages = torch.arange(40).flip(0)
    sequence = SequenceSlice(0, 1, 639, pages, 0)
    query = torch.zeros(1, a.heads, a.head_dim, dtype=getattr(torch, dtype))
    layer = QWEN.attention_layers[0]
    with Gathered() as gathered:
        paged_attention.reference(query, *kv.layer(layer), [sequence], 1.0)
    assert gathered.nbytes == 640 * workspace_per_token(QWEN, dtype)


def test_the_longest_context_has_its_workspace() -> None:
    need = replace(NEED, workspace_per_token=2048, context_is_asked=True)
    budget = solve(need, has_slots=False, host_free=64 * GB)
    assert budget.host.workspace == GB + 262144 * 2048
    lowered = solve(
        replace(need, context_is_asked=False), has_slots=True, host_free=64 * GB, device_free=8 * GB
    )
    assert lowered.device is not None and lowered.context_tokens < 262144
    assert lowered.device.workspace == GB + lowered.context_tokens * 2048


def test_a_context_beyond_the_kv_that_is_asked_for_is_refused() -> None:
    need = replace(NEED, context_tokens=4096, context_is_asked=True, kv_tokens=1024)
    with pytest.raises(InvalidRequest, match=r"4096.*--context.*1024.*--kv-tokens") as error:
        solve(need, has_slots=False, host_free=64 * GB)
    assert error.value.param == "kv_tokens"
    exact = solve(replace(need, kv_tokens=4090), has_slots=False, host_free=64 * GB)
    assert (exact.kv_tokens, exact.context_tokens) == (4096, 4096)


def test_cpu_holds_everything_in_host_memory() -> None:
    budget = solve(NEED, has_slots=False, host_free=64 * GB)
    assert budget.device is None and budget.slots == ()
    assert budget.host.store == 10240 * STRIDE
    assert budget.host.dense == 5 * GB
    assert budget.context_tokens == 262144
    assert budget.kv_tokens * 20480 == budget.host.kv
    assert budget.notes == ()


def test_sim_plays_its_device_in_host_memory() -> None:
    need = replace(NEED, moe_cache_rate=0.37)
    budget = solve(need, has_slots=True, host_free=64 * GB)
    assert budget.device is not None
    assert budget.slots == (3788,)
    assert budget.device.slots == 3788 * STRIDE
    assert budget.host.device == budget.device.taken
    assert budget.host.dense == 0
    assert budget.host.left >= 0


def test_cuda_divides_two_memories() -> None:
    need = replace(NEED, context_tokens=32768)
    budget = solve(need, has_slots=True, host_free=64 * GB, device_free=16 * GB)
    assert budget.device is not None
    assert budget.host.taken == budget.host.store == 10240 * STRIDE
    assert 1 < budget.slots[0] < 10240
    assert budget.kv_tokens == 8192
    assert "expert slots" in budget.notes[0] and "8192 tokens instead of 32768" in budget.notes[1]


def test_a_model_larger_than_memory_is_refused_with_both_numbers() -> None:
    with pytest.raises(OutOfMemory, match=r"needs 24\.84 GB of host memory; 15\.20 GB can be had"):
        solve(NEED, has_slots=False, host_free=16 * GB)
    with pytest.raises(OutOfMemory, match=r"GB of host memory; 15\.20 GB can be had"):
        solve(NEED, has_slots=True, host_free=16 * GB, device_free=80 * GB)
    with pytest.raises(OutOfMemory, match=r"needs 6.68 GB of device memory; 5\.70 GB can be had"):
        solve(NEED, has_slots=True, host_free=64 * GB, device_free=6 * GB)


def test_an_asked_context_is_kept_or_refused_but_never_lowered() -> None:
    asked = replace(NEED, context_is_asked=True)
    with pytest.raises(OutOfMemory, match=r"context 5\.37 GB"):
        solve(asked, has_slots=True, host_free=64 * GB, device_free=10 * GB)
    budget = solve(asked, has_slots=True, host_free=64 * GB, device_free=14 * GB)
    assert budget.context_tokens == 262144 <= budget.kv_tokens
    lowered = solve(NEED, has_slots=True, host_free=64 * GB, device_free=10 * GB)
    assert lowered.context_tokens == lowered.kv_tokens < 262144


def test_kv_tokens_that_were_asked_for_are_given() -> None:
    budget = solve(replace(NEED, kv_tokens=1000), has_slots=False, host_free=64 * GB)
    assert (budget.kv_tokens, budget.context_tokens) == (1008, 1008)


def test_a_short_context_needs_no_more_than_itself() -> None:
    need = replace(NEED, context_tokens=100, max_sequences=2)
    assert solve(need, has_slots=False, host_free=64 * GB).kv_tokens == 2 * 112


@pytest.mark.parametrize(("rate", "blobs", "slots"), [
    (1.0, 10, 10), (0.29, 100, 29), (0.1, 30, 3), (0.0001, 100, 1), (0.37, 10240, 3788),
])  # fmt: skip
def test_slots_of_a_rate(rate: float, blobs: int, slots: int) -> None:
    assert slots_for_rate(rate, blobs) == slots


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, float("inf"), float("nan")])
def test_rates_out_of_range(rate: float) -> None:
    with pytest.raises(InvalidRequest, match="moe_cache_rate"):
        solve(replace(NEED, moe_cache_rate=rate), has_slots=False, host_free=64 * GB)


CHUNKS = replace(
    NEED,
    workspace=50_000_000,
    chunk_tokens=128,
    larger_chunks=tuple(ChunkNeed(128 << n, 50_000_000 << n) for n in range(1, 7)),
)
"""128 to 8,192 tokens, 3.2 GB for the largest."""


def test_chunks_are_halves_of_the_largest() -> None:
    needs = chunk_needs(QWEN, 8192, 8, 65536)
    assert [each.tokens for each in needs] == [128, 256, 512, 1024, 2048, 4096, 8192]
    assert [each.workspace for each in needs] == [
        workspace_bytes(QWEN, each.tokens, 8, 65536) for each in needs
    ]
    assert [each.tokens for each in chunk_needs(QWEN, 200, 8, 65536)] == [200]


@pytest.mark.parametrize(("free", "tokens"), [(40, 8192), (20, 4096), (10, 2048), (7, 2048)])
def test_a_smaller_gpu_reads_prompts_in_smaller_chunks(free: int, tokens: int) -> None:
    budget = solve(CHUNKS, has_slots=True, host_free=64 * GB, device_free=free * GB)
    assert budget.chunk_tokens == tokens and budget.device is not None
    assert budget.device.workspace == 50_000_000 * tokens // 128 <= free * GB * CHUNK_SHARE
    told = [note for note in budget.notes if f"{tokens} tokens at a time instead of 8192" in note]
    assert bool(told) == (tokens < 8192)


def test_the_smallest_chunk_is_taken_before_anything_is_refused() -> None:
    # Nothing is left beside the floor of the KV and one slot.
    tight = replace(CHUNKS, dense=int(19.0 * GB) - 8 * 64_000_000 - 8192 * 20480 - 60_000_000)
    budget = solve(tight, has_slots=True, host_free=64 * GB, device_free=20 * GB)
    assert budget.chunk_tokens == 128
    with pytest.raises(OutOfMemory):
        solve(
            replace(tight, dense=tight.dense + 10_000_000),
            has_slots=True,
            host_free=64 * GB,
            device_free=20 * GB,
        )


def test_what_a_step_took_corrects_every_estimate() -> None:
    """Half of it, of 2,048 tokens: so for the context, and as much a token for other chunks."""
    need = replace(CHUNKS, workspace_per_token=1000)
    half = need.with_workspace(measured=1, estimated=2, chunk_tokens=2048)
    assert half.workspace_per_token == 500
    assert half.chunks[4] == ChunkNeed(2048, 400_000_000)
    assert half.chunks[-1] == ChunkNeed(8192, 1_600_000_000)
    assert half.workspace == 25_000_000
    odd = replace(CHUNKS, workspace_per_token=3).with_workspace(7, 9, 8192)
    assert odd.workspace_per_token * 9 >= 3 * 7


def test_a_played_device_lies_in_host_memory() -> None:
    """`--emulate-vram`: as large as asked for, and the host holds it beside the store."""
    budget = solve(
        NEED, has_slots=True, host_free=64 * GB, device_free=12 * GB, device_in_host=True
    )
    alone = solve(NEED, has_slots=True, host_free=64 * GB, device_free=12 * GB)
    assert budget.device == alone.device and budget.slots == alone.slots
    assert budget.device is not None and budget.host.device == budget.device.taken
    with pytest.raises(OutOfMemory, match="the device that is played") as error:
        solve(NEED, has_slots=True, host_free=28 * GB, device_free=12 * GB, device_in_host=True)
    assert "--emulate-vram" in error.value.hint


def test_graphs_tables_and_buffers_have_their_share() -> None:
    graphs = buffer_bytes(QWEN, 8, captured=True)
    assert graphs > 3 * 4 * 8 * QWEN.vocab_size
    assert buffer_bytes(QWEN, 8, captured=False) == 7 * 4 * 10240
    budget = solve(
        replace(NEED, buffers=graphs, staging=1 << 28),
        has_slots=True,
        host_free=64 * GB,
        device_free=16 * GB,
    )
    assert budget.device is not None and budget.device.buffers == graphs
    assert budget.host.buffers == 1 << 28


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"context_is_asked": True}, "--context"),
        ({"kv_tokens": 262144}, "--kv-tokens"),
        ({"kv_reserve_tokens": 262144}, "--kv-reserve-tokens"),
        ({"max_sequences": 100}, "--max-sequences"),
    ],
)
def test_a_refusal_names_the_option_that_mends_it(change: dict[str, Any], option: str) -> None:
    with pytest.raises(OutOfMemory) as error:
        solve(replace(NEED, **change), has_slots=True, host_free=64 * GB, device_free=8 * GB)
    assert f"Lower {option}, choose" in error.value.hint


def test_the_reserve_of_the_context_comes_before_slots() -> None:
    slots = []
    for tokens in (1024, 8192, 65536):
        need = replace(NEED, kv_reserve_tokens=tokens)
        budget = solve(need, has_slots=True, host_free=64 * GB, device_free=12 * GB)
        assert budget.kv_tokens == tokens
        slots.append(budget.slots[0])
    assert slots == sorted(slots, reverse=True) and slots[0] > slots[-1]


def test_free_host_bytes_is_real_unless_emulated() -> None:
    assert free_host_bytes(12345) == 12345
    assert 0 < free_host_bytes() <= psutil.virtual_memory().total


def test_the_solver_needs_no_torch() -> None:
    code = "import sys, engine.memory.solver; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def assert_sound(share: Share) -> None:
    parts = [getattr(share, name) for name in share.__dataclass_fields__]
    assert min(parts) >= 0
    assert share.left >= 0


pools = st.lists(
    st.builds(PoolNeed, st.integers(1, 500).map(lambda n: n * 4096), st.integers(1, 3000)),
    max_size=3,
)


@settings(max_examples=examples(300))
@given(
    need=st.builds(
        Need,
        dense=st.integers(0, 4 * GB),
        pools=pools.map(tuple),
        kv_per_token=st.integers(1, 200_000),
        state=st.integers(0, 100_000_000),
        workspace=st.integers(0, GB),
        workspace_per_token=st.integers(0, 20_000),
        context_tokens=st.integers(1, 300_000),
        context_is_asked=st.booleans(),
        kv_tokens=st.sampled_from([0, 0, 1, 5000, 100_000]),
        max_sequences=st.integers(1, 16),
        moe_cache_rate=st.floats(1e-4, 1.0),
    ),
    has_slots=st.booleans(),
    host_free=st.integers(0, 30 * GB),
    device_free=st.none() | st.integers(0, 20 * GB),
)
def test_what_is_given_fits_and_floors_hold(
    need: Need, has_slots: bool, host_free: int, device_free: int | None
) -> None:
    if not has_slots:
        device_free = None
    try:
        budget = solve(need, has_slots=has_slots, host_free=host_free, device_free=device_free)
    except OutOfMemory as error:
        assert len(re.findall(r"\d (?:GB|MB|kB|bytes)\b", error.message)) >= 2
        return
    except InvalidRequest:
        assert need.context_is_asked and 0 < need.kv_tokens < need.context_tokens
        return
    assert_sound(budget.host)
    assert budget.kv_tokens % 16 == 0
    assert 1 <= budget.context_tokens <= min(need.context_tokens, budget.kv_tokens)
    floor = need.kv_tokens or min(need.context_tokens, 8192)
    assert budget.kv_tokens >= floor
    if need.context_is_asked:
        assert budget.context_tokens == need.context_tokens
    assert (budget.device is None) == (not has_slots)
    holder = budget.host if budget.device is None else budget.device
    assert_sound(holder)
    assert holder.kv == budget.kv_tokens * need.kv_per_token
    context = min(-(-need.context_tokens // 16) * 16, budget.kv_tokens)
    assert holder.workspace == need.workspace + context * need.workspace_per_token
    assert holder.states == need.max_sequences * need.state
    if has_slots:
        for count, pool in zip(budget.slots, need.pools, strict=True):
            assert 1 <= count <= slots_for_rate(need.moe_cache_rate, pool.blobs)
        assert holder.slots == sum(
            n * p.stride for n, p in zip(budget.slots, need.pools, strict=True)
        )
        lowered = any("expert slots" in note for note in budget.notes)
        wanted = tuple(slots_for_rate(need.moe_cache_rate, p.blobs) for p in need.pools)
        assert lowered == (budget.slots != wanted)


@settings(max_examples=examples(100))
@example(host_free=29_680_462_848, more=178_802_688)  # room for one more slot
@given(st.integers(0, 60 * GB), st.integers(0, 20 * GB))
def test_more_memory_never_gives_less(host_free: int, more: int) -> None:
    try:
        small = solve(NEED, has_slots=True, host_free=host_free)
    except OutOfMemory:
        return
    large = solve(NEED, has_slots=True, host_free=host_free + more)
    assert large.slots[0] >= small.slots[0]
    assert large.context_tokens >= small.context_tokens


@pytest.mark.parametrize(
    ("free", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (64_000, "64.00 kB"), (1 << 20, "1.05 MB")],
)
def test_a_refusal_tells_little_memory_in_a_unit_that_fits(free: int, words: str) -> None:
    with pytest.raises(OutOfMemory, match=rf"\({words} are free"):
        solve(NEED, has_slots=False, host_free=free)
