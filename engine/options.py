"""What a runtime is started with. Torch-free: app and server make it, the runtime obeys it."""

from __future__ import annotations

from typing import Literal

import msgspec

DEFAULT_PORT = 11711
"""Of the server, where nobody names another."""

DeviceName = Literal["auto", "cpu", "sim", "cuda"]
DtypeName = Literal["auto", "float32", "bfloat16"]


API_KEY_RULE = "a key has letters without accents, digits and signs, and no spaces"


def is_api_key(text: str) -> bool:
    """Whether clients can send it: of a header's value, they all know visible ASCII only."""
    return bool(text) and all("!" <= letter <= "~" for letter in text)


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one runtime. Sizes are in the unit that the name ends with.

    `device` is `cpu` (experts computed in place in the store, no cache), `sim` (a CPU that plays a
    GPU: slots, residency, budget), `cuda`, or `auto` (cuda where there is one, else cpu).
    """

    model: str
    """Folder, GGUF file, or the name of a bundled model (`demo`)."""
    device: DeviceName = "auto"
    dtype: DtypeName = "auto"
    moe_cache_rate: float = 1.0
    """Share of all experts that have a slot, 0 < rate <= 1. Only `sim` and `cuda` have slots."""
    max_sequences: int = 8
    """Sequences that run at once; further requests wait."""
    max_waiting: int = 256
    """Requests that may wait; one more is refused as overloaded."""
    context_tokens: int = 0
    """Longest prompt plus output of one request; 0 means the model's own limit."""
    kv_tokens: int = 0
    """Tokens that all sequences together can hold; 0 means the solver decides."""
    kv_reserve_tokens: int = 8192
    """Tokens of context that keep room before experts take the rest of the device's memory."""
    prefill_chunk_tokens: int | None = None
    """Most tokens of a prompt in one step; the solver may choose fewer. None: what the device gains
    from."""
    threads: int = 0
    """CPU threads of the runtime; 0 means one per physical core, less one where there are more than
    four (engine.native.topology)."""
    emulate_ram_bytes: int = 0
    """Pretend that the machine has only so much free host memory; 0 means the real figure."""
    emulate_vram_bytes: int = 0
    """Play a device (cuda, sim) that has so much memory in total, other programs included; 0 means
    the real figure, on `sim` as much as its contents take."""
    emulate_link_bytes_per_s: int = 0
    """Let experts reach the device (cuda, sim) no faster than this; 0 means as fast as they do."""
    layers: int = 0
    """Load only so many of the first layers, for checks and measurements; 0 means all."""
    lock_memory: bool = False
    """Keep the experts from being swapped out, as far as the system permits it."""
