"""The residency table: which expert is in which slot, and which slot goes next.

Plain integers, no memory of its own: `SlotPool` moves the bytes. The GPU's kernel will keep the
same tables in device memory and has to choose the same victims.

The rule for victims is exact: the least recently used slot (lowest number among equals) that is
neither locked nor used by the lookup in progress. Slots of layers that this step has computed
already are fair game. The queue is a way to find them without a scan for each: all slots sorted by
last use; an entry whose slot was touched since is skipped, and when the queue runs dry it is filled
again. Whatever was touched since has a later stamp than every entry that was not, so it makes no
difference when the queue was filled; a kernel may do so once a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ABSENT = -1


@dataclass(frozen=True)
class Move:
    """A resize keeps a hot blob by copying it from a slot above the cut to one below."""

    source: int
    target: int


class Residency:
    """Slots of `layers` layers with `experts` experts each, all of one blob stride."""

    def __init__(self, layers: int, experts: int, slots: int) -> None:
        if min(layers, experts, slots) < 1:
            raise ValueError(f"no residency of {slots} slots for {layers} x {experts} experts")
        self.layers = layers
        self.experts = experts
        self.generation = 0
        self._slot_of = [[ABSENT] * experts for _ in range(layers)]
        self._owner = [ABSENT] * slots
        """layer * experts + expert"""
        self._last_use = [0] * slots
        """0 is never; otherwise the number of the lookup that used the slot last."""
        self._locked = [False] * slots
        self._clock = 0
        self._queue: list[tuple[int, int]] = []
        """(last use when queued, slot), ascending; entries before `_head` are spent."""
        self._head = 0

    @property
    def slots(self) -> int:
        return len(self._owner)

    @property
    def used(self) -> int:
        """Slots that hold an expert."""
        return sum(owner != ABSENT for owner in self._owner)

    def slot_of(self, layer: int, expert: int) -> int:
        return self._slot_of[layer][expert]

    def owner_of(self, slot: int) -> tuple[int, int] | None:
        """(layer, expert) in this slot."""
        owner = self._owner[slot]
        return None if owner == ABSENT else divmod(owner, self.experts)

    def last_use(self, slot: int) -> int:
        return self._last_use[slot]

    def resident(self, layer: int) -> list[int]:
        """Experts of this layer that have a slot, ascending."""
        return [expert for expert, slot in enumerate(self._slot_of[layer]) if slot != ABSENT]

    def lookup(self, layer: int, experts: Sequence[int]) -> list[int]:
        """Slots of these distinct experts, ABSENT for misses.

        Every hit is stamped before `fill` can take a victim for any of the misses. Slots of earlier
        lookups are no longer in use.
        """
        self._clock += 1
        row = self._slot_of[layer]
        slots = [row[expert] for expert in experts]
        for slot in slots:
            if slot != ABSENT:
                self._last_use[slot] = self._clock
        return slots

    def fill(self, layer: int, expert: int) -> int:
        """A slot for this absent expert, now its own: the caller copies the blob.

        ABSENT if every slot is locked or used by the lookup in progress.
        """
        if self._slot_of[layer][expert] != ABSENT:
            raise ValueError(f"expert {expert} of layer {layer} has a slot already")
        slot = self._victim()
        if slot == ABSENT:
            return ABSENT
        self._disown(slot)
        self._owner[slot] = layer * self.experts + expert
        self._slot_of[layer][expert] = slot
        self._last_use[slot] = self._clock
        return slot

    def lock(self, slot: int) -> None:
        """Keep this slot from being a victim until it is unlocked."""
        self._locked[slot] = True

    def unlock(self, slot: int) -> None:
        if self._locked[slot]:
            self._locked[slot] = False
            self._drop_queue()

    def release(self, layer: int, expert: int) -> None:
        """Forget this expert, if it is resident: its slot is free and goes first."""
        slot = self._slot_of[layer][expert]
        if slot != ABSENT:
            self._disown(slot)
            self._last_use[slot] = 0
            self._drop_queue()

    def resize(self, slots: int) -> list[Move]:
        """Have this many slots from now on, keeping the most recently used experts.

        The moves are to be copied before memory above the cut is given back; their sources and
        targets never overlap. Only at a safe point. Raises ValueError if a locked slot is in the
        way or `slots` is below 1.
        """
        if slots < 1:
            raise ValueError(f"a pool cannot have {slots} slots")
        if any(self._locked[slots:]):
            raise ValueError("a locked slot is above the cut")
        moves = self._moves(slots)
        for move in moves:
            self._disown(move.target)
            layer, expert = divmod(self._owner[move.source], self.experts)
            self._owner[move.target] = self._owner[move.source]
            self._last_use[move.target] = self._last_use[move.source]
            self._slot_of[layer][expert] = move.target
            self._owner[move.source] = ABSENT
        for slot in range(slots, self.slots):
            self._disown(slot)
        added = max(0, slots - self.slots)
        self._owner = self._owner[:slots] + [ABSENT] * added
        self._last_use = self._last_use[:slots] + [0] * added
        self._locked = self._locked[:slots] + [False] * added
        self._drop_queue()
        self.generation += 1
        return moves

    def _moves(self, slots: int) -> list[Move]:
        above = [slot for slot in range(slots, self.slots) if self._owner[slot] != ABSENT]
        if not above:
            return []
        owned = [slot for slot, owner in enumerate(self._owner) if owner != ABSENT]
        # Locked slots stay where they are, so they take a place whether they are hot or not.
        hottest = sorted(owned, key=lambda slot: (not self._locked[slot], -self._last_use[slot]))
        locked_free = sum(self._locked[s] and self._owner[s] == ABSENT for s in range(slots))
        keep = set(hottest[: slots - locked_free])
        sources = [slot for slot in above if slot in keep]
        targets = [slot for slot in range(slots) if slot not in keep and not self._locked[slot]]
        # Empty slots first: an expert that is not among the hottest may still stay.
        targets.sort(key=lambda slot: (self._owner[slot] != ABSENT, self._last_use[slot], slot))
        return [Move(source, target) for source, target in zip(sources, targets, strict=False)]

    def _victim(self) -> int:
        slot = self._next()
        if slot == ABSENT:
            self._queue = sorted(
                (stamp, slot) for slot, stamp in enumerate(self._last_use) if stamp < self._clock
            )
            self._head = 0
            slot = self._next()
        return slot

    def _next(self) -> int:
        while self._head < len(self._queue):
            stamp, slot = self._queue[self._head]
            self._head += 1
            if self._last_use[slot] == stamp and not self._locked[slot]:
                return slot
        return ABSENT

    def _drop_queue(self) -> None:
        """A slot's stamp went down, or an entry that was skipped counts again: sort anew."""
        self._queue, self._head = [], 0

    def _disown(self, slot: int) -> None:
        owner = self._owner[slot]
        if owner != ABSENT:
            layer, expert = divmod(owner, self.experts)
            self._slot_of[layer][expert] = ABSENT
            self._owner[slot] = ABSENT
