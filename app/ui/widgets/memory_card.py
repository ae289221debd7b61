"""Whose the GPU's and the host's memory is."""

from __future__ import annotations

from collections.abc import Sequence

from app.core import memory_view
from app.core.governor.evidence import Program
from app.ui import theme
from app.ui.widgets.basics import Card
from app.ui.widgets.fitting import SideBySide
from app.ui.widgets.memory_panel import MemoryPanel
from engine.messages import Stats

_TURN = 640
_ON_CPU = "Not in use: this device computes in host memory."


class MemoryCard(Card):
    def __init__(self) -> None:
        super().__init__("MEMORY BY OWNER")
        self.vram, self.ram = MemoryPanel("VRAM"), MemoryPanel("RAM")
        self.body.addWidget(SideBySide([self.vram, self.ram], _TURN, theme.GRID * 5))

    def show_programs(self, programs: Sequence[Program]) -> None:
        """Who else holds VRAM, as the governor sees it."""
        self.vram.show_others(memory_view.name_others(programs))

    def show_stats(self, stats: Stats, *, loading: bool) -> None:
        nothing = "The model is loading." if loading else "No model is loaded."
        self.vram.rename(memory_view.device_memory_name(stats))
        self.vram.show_owners(
            memory_view.device_memory(stats),
            stats.vram_total_bytes,
            _ON_CPU if stats.device == "cpu" else nothing,
        )
        self.ram.show_owners(memory_view.host_memory(stats), stats.ram_total_bytes, nothing)
