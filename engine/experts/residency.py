"""The residency table: which expert is in which slot, and which slot goes next.

Plain integers, no memory of its own: `SlotPool` moves the bytes. The GPU's kernel will keep the
same tables in device memory and has to follow the same rule.

The rule for victims. A slot's age is how often its own layer was looked up without it: not how long
ago it was used, since in the middle of a step the layers still to come would look old for no other
reason than that their turn is next. The oldest slot goes; among equals the one whose layer's next
turn is farthest (this layer first, then the one before it, and so on round); then the one touched
first. Slots that are locked, or used by the lookup in progress, stay.

Plain least-recently-used takes what is needed next as soon as a step uses more experts than there
are slots, and then hits nothing: four sequences through 24 layers of 128 experts hit 0 % of 11 % in
slots where this rule hits 38 %; with room (37 % in slots) it is 85.9 against 86.7 %
[benchmarks/expert_cache.py --simulate 4].
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ABSENT = -1


@dataclass(frozen=True)
class Move:
    """A resize keeps a hot blob by copying it from a slot above the cut to one below."""

    source: int
    target: int


@dataclass
class _Slot:
    owner: int = ABSENT
    """layer * experts + expert"""
    visit: int = 0
    """Lookups of the owner's layer up to the last one that used this slot."""
    touch: int = 0
    """Rank among all uses of slots."""
    lookup: int = 0
    """Number of the lookup that used it last."""
    locked: bool = False


class Residency:
    """Slots of `layers` layers with `experts` experts each, all of one blob stride.

    Layers are numbered in the order in which a step looks them up.
    """

    def __init__(self, layers: int, experts: int, slots: int) -> None:
        if min(layers, experts, slots) < 1:
            raise ValueError(f"no residency of {slots} slots for {layers} x {experts} experts")
        self.layers = layers
        self.experts = experts
        self.generation = 0
        self._slots = [_Slot() for _ in range(slots)]
        self._free = list(range(slots))
        """Slots without an owner, ascending."""
        self._slot_of = [[ABSENT] * experts for _ in range(layers)]
        self._touched: list[dict[int, None]] = [{} for _ in range(layers)]
        """Slots of each layer's experts, in the order of their last use."""
        self._visits = [0] * layers
        self._layer = layers - 1
        """Of the last lookup."""
        self._lookups = 0
        self._touches = 0

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def used(self) -> int:
        """Slots that hold an expert."""
        return len(self._slots) - len(self._free)

    def slot_of(self, layer: int, expert: int) -> int:
        """Where this expert lies, ABSENT for nowhere; to ask is no use of it, as `lookup` is."""
        return self._slot_of[layer][expert]

    def resident(self, layer: int) -> list[int]:
        """Experts of this layer that have a slot, ascending."""
        return [expert for expert, slot in enumerate(self._slot_of[layer]) if slot != ABSENT]

    def lookup(self, layer: int, experts: Sequence[int]) -> list[int]:
        """Slots of these distinct experts, ABSENT for misses: once for each layer and step.

        Every hit is stamped before `fill` can take a victim for any of the misses.
        """
        self._layer = layer
        self._lookups += 1
        self._visits[layer] += 1
        row = self._slot_of[layer]
        slots = [row[expert] for expert in experts]
        for slot in slots:
            if slot != ABSENT:
                self._touch(slot, layer)
        return slots

    def fill(self, layer: int, expert: int) -> int:
        """A slot for this absent expert of the layer looked up last: the caller copies the blob.

        ABSENT if every slot is locked or used by the lookup in progress.
        """
        if self.slot_of(layer, expert) != ABSENT:
            raise ValueError(f"expert {expert} of layer {layer} has a slot already")
        slot = self._victim()
        if slot != ABSENT:
            self._disown(slot)
            self._free.remove(slot)
            self._slots[slot].owner = layer * self.experts + expert
            self._slot_of[layer][expert] = slot
            self._touch(slot, layer)
        return slot

    def computed(self) -> None:
        """What the last lookup found and filled is computed: further fills may take its slots."""
        self._lookups += 1

    def lock(self, slot: int) -> None:
        """Keep this slot from being a victim until it is unlocked."""
        self._slots[slot].locked = True

    def unlock(self, slot: int) -> None:
        self._slots[slot].locked = False

    def release(self, layer: int, expert: int) -> None:
        """Forget this expert, if it is resident: its slot is free and goes first."""
        slot = self.slot_of(layer, expert)
        if slot != ABSENT:
            self._disown(slot)

    def resize(self, slots: int) -> list[Move]:
        """Have this many slots from now on; a shrink drops what would be the next victims.

        The moves are to be copied before memory above the cut is given back; no source is another
        one's target. Only at a safe point. Raises ValueError if a locked slot is above the cut or
        `slots` is below 1.
        """
        if slots < 1:
            raise ValueError(f"a pool cannot have {slots} slots")
        if any(slot.locked for slot in self._slots[slots:]):
            raise ValueError("a locked slot is above the cut")
        moves = self._moves(slots)
        for move in moves:
            self._disown(move.target)
            self._move(move)
        for slot in range(slots, self.slots):
            self._disown(slot)
        self._free = [slot for slot in self._free if slot < slots]
        self._free += range(self.slots, slots)
        self._slots = self._slots[:slots] + [_Slot() for _ in range(slots - self.slots)]
        self.generation += 1
        self.computed()
        return moves

    def _moves(self, slots: int) -> list[Move]:
        above = [n for n in range(slots, self.slots) if self._slots[n].owner != ABSENT]
        if not above:
            return []
        owned = [n for n, slot in enumerate(self._slots) if slot.owner != ABSENT]
        # Locked slots stay where they are, so they take a place whether they are hot or not.
        coldest = sorted(owned, key=lambda n: (self._slots[n].locked, self._coldness(n)))
        blocked = sum(self._slots[n].locked for n in self._free if n < slots)
        keep = set(coldest[max(0, len(coldest) - (slots - blocked)) :])
        sources = [n for n in above if n in keep]
        free = [n for n in self._free if n < slots and not self._slots[n].locked]
        # Empty slots first: an expert that is not among the hottest may still stay.
        targets = free + [n for n in coldest if n < slots and n not in keep]
        return [Move(source, target) for source, target in zip(sources, targets, strict=False)]

    def _move(self, move: Move) -> None:
        source, target = self._slots[move.source], self._slots[move.target]
        layer, expert = divmod(source.owner, self.experts)
        target.owner, target.visit, target.touch = source.owner, source.visit, source.touch
        self._slot_of[layer][expert] = move.target
        self._free.remove(move.target)
        # Same place in the order of touches, other slot.
        order = self._touched[layer]
        self._touched[layer] = {move.target if n == move.source else n: None for n in order}
        source.owner = ABSENT
        insort(self._free, move.source)

    def _victim(self) -> int:
        for slot in self._free:
            if not self._slots[slot].locked:
                return slot
        # Within a layer the first one touched is the oldest: one candidate for each layer.
        candidates = (
            next((slot for slot in order if self._can_go(slot)), ABSENT) for order in self._touched
        )
        return min(
            (slot for slot in candidates if slot != ABSENT), key=self._coldness, default=ABSENT
        )

    def _can_go(self, slot: int) -> bool:
        return not self._slots[slot].locked and self._slots[slot].lookup != self._lookups

    def _coldness(self, number: int) -> tuple[int, int, int]:
        """Sorts slots with an owner in the order in which they go."""
        slot = self._slots[number]
        layer = slot.owner // self.experts
        turns_away = (layer - self._layer - 1) % self.layers
        return slot.visit - self._visits[layer], -turns_away, slot.touch

    def _touch(self, number: int, layer: int) -> None:
        self._touches += 1
        slot = self._slots[number]
        slot.visit, slot.touch, slot.lookup = self._visits[layer], self._touches, self._lookups
        order = self._touched[layer]
        order.pop(number, None)
        order[number] = None

    def _disown(self, number: int) -> None:
        slot = self._slots[number]
        if slot.owner != ABSENT:
            layer, expert = divmod(slot.owner, self.experts)
            self._slot_of[layer][expert] = ABSENT
            del self._touched[layer][number]
            slot.owner = ABSENT
            insort(self._free, number)
