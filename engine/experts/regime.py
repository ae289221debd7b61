"""How a step's absent experts come to the device, chosen by predicted time. Torch-free.

Fetched: each layer routes first, and what it lacks comes before it is computed. Streamed: whatever
is absent comes ahead of its layer, while earlier layers are computed. What the step computes takes
the same time either way and is left out, although a stream hides behind it: so a choice to stream
is right on any GPU, and near the border a fetch may be a little slower than a stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

StreamMode = Literal["auto", "always", "never", "serial"]
"""`auto` is what is predicted to be faster; the others are for tests and measurements. `serial`
streams without overlap: a layer's experts are sent when it is computed."""

RARITY = 0.5
"""How often an absent expert is routed to, as a share of the average: those that slots hold are
those that are routed to more."""
FETCH_SHARE = 0.92
"""Of the copy engine's rate, what the kernel that fetches reaches [headrace bench link]."""
SETUP_SECONDS = 2e-3
"""To read the residency back and to plan, while the GPU waits."""
LINK_BYTES_PER_S = 16e9
"""Until the link is measured: about half of what PCIe 4.0 x16 gives."""


@dataclass(frozen=True)
class Absence:
    """What a pool's layers lack when a step begins."""

    routes: int
    """Of the step, in each layer."""
    experts: int
    """Of a layer."""
    layers: int
    absent_bytes: int
    """Of all layers together."""


def seconds_fetched(absence: Absence, link_bytes_per_s: float) -> float:
    """For the experts that routes are expected to ask for."""
    asked = 1 - math.exp(-RARITY * absence.routes / absence.experts)
    return asked * absence.absent_bytes / (FETCH_SHARE * link_bytes_per_s)


def seconds_streamed(absence: Absence, link_bytes_per_s: float) -> float:
    """For all of them; nothing is computed while the first layer's are awaited."""
    nbytes = absence.absent_bytes * (1 + 1 / absence.layers)
    return SETUP_SECONDS + nbytes / link_bytes_per_s


def streams(absence: Absence, link_bytes_per_s: float) -> bool:
    """Whether the step's experts are streamed."""
    if not absence.absent_bytes:
        return False
    return seconds_streamed(absence, link_bytes_per_s) < seconds_fetched(absence, link_bytes_per_s)
