"""The residency table against a model that scans everything every time."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.experts.residency import Counts, Move, Residency
from engine.kernels.residency import ABSENT
from tests.properties import examples

LAYERS, EXPERTS = 3, 6


class Model:
    """Slots with what is known of each, and a victim by sorting all of them by the rule's words."""

    def __init__(self, slots: int) -> None:
        self.owner: list[tuple[int, int] | None] = [None] * slots
        self.uses: dict[tuple[int, int], int] = {}
        """Of each resident expert: its layer's visits when it was used last."""
        self.visits = [0] * LAYERS
        self.locked: set[int] = set()
        self.in_use: set[tuple[int, int]] = set()
        self.layer = LAYERS - 1
        self.hits = self.misses = self.fills = 0

    def slot_of(self, layer: int, expert: int) -> int:
        return self.owner.index((layer, expert)) if (layer, expert) in self.owner else ABSENT

    def touch(self, layer: int, expert: int) -> None:
        self.uses[layer, expert] = self.visits[layer]
        self.in_use.add((layer, expert))

    def turns_until(self, layer: int) -> int:
        turns, at = 1, (self.layer + 1) % LAYERS
        while at != layer:
            turns, at = turns + 1, (at + 1) % LAYERS
        return turns

    def order_of_going(self, owners: list[tuple[int, int]]) -> list[tuple[int, int]]:
        owners = sorted(owners, key=self.owner.index)
        owners = sorted(owners, key=lambda owner: self.turns_until(owner[0]), reverse=True)
        return sorted(
            owners, key=lambda owner: self.visits[owner[0]] - self.uses[owner], reverse=True
        )

    def victim(self) -> int:
        unlocked = [slot for slot in range(len(self.owner)) if slot not in self.locked]
        for slot in unlocked:
            if self.owner[slot] is None:
                return slot
        owners = [self.owner[slot] for slot in unlocked]
        going = self.order_of_going([o for o in owners if o is not None and o not in self.in_use])
        return self.owner.index(going[0]) if going else ABSENT

    def use(self, layer: int, experts: list[int]) -> list[int]:
        """Slots after every hit is marked and every miss filled, as far as slots can be had."""
        self.layer = layer
        self.visits[layer] += 1
        self.in_use = set()
        distinct = sorted({expert for expert in experts if expert >= 0})
        missing = [expert for expert in distinct if self.slot_of(layer, expert) == ABSENT]
        for expert in distinct:
            if expert not in missing:
                self.touch(layer, expert)
        for expert in missing:
            slot = self.victim()
            if slot != ABSENT:
                self.owner[slot] = (layer, expert)
                self.touch(layer, expert)
                self.fills += 1
        self.hits += len(distinct) - len(missing)
        self.misses += len(missing)
        return [self.slot_of(layer, expert) for expert in experts]

    def resize(self, slots: int, moves: list[Move]) -> None:
        """Check the moves against what a resize promises, then follow them."""
        self.layer = LAYERS - 1  # steps are whole
        before = [owner for owner in self.owner if owner]
        stay_locked = {self.owner[slot] for slot in self.locked}
        going = self.order_of_going([owner for owner in before if owner not in stay_locked])
        for move in moves:
            assert move.target < slots <= move.source
            assert self.owner[move.source] is not None
            assert move.target not in self.locked
            self.owner[move.target] = self.owner[move.source]
        assert len({move.target for move in moves}) == len(moves)
        self.owner = self.owner[:slots] + [None] * (slots - len(self.owner))
        kept = [owner for owner in self.owner if owner]
        lost = len(before) - len(kept)
        if lost:
            # No slot is left empty, and those that would have gone anyway are those that went.
            assert all(self.owner[slot] or slot in self.locked for slot in range(slots))
            assert set(going[:lost]).isdisjoint(kept)


def use(table: Residency, layer: int, experts: list[int]) -> list[int]:
    return table.route(layer, torch.tensor(experts, dtype=torch.int64)).slots.tolist()


def assert_same(table: Residency, model: Model) -> None:
    assert table.slots == len(model.owner)
    used = sum(owner is not None for owner in model.owner)
    assert table.counts() == Counts(model.hits, model.misses, model.fills, used)
    for layer in range(LAYERS):
        slots = [table.slot_of(layer, expert) for expert in range(EXPERTS)]
        assert slots == [model.slot_of(layer, expert) for expert in range(EXPERTS)]
        assert table.resident(layer) == [e for e in range(EXPERTS) if slots[e] != ABSENT]


class ResidencyMachine(RuleBasedStateMachine):
    @initialize(slots=st.integers(1, LAYERS * EXPERTS))
    def begin(self, slots: int) -> None:
        self.table = Residency(LAYERS, EXPERTS, slots, most=LAYERS * EXPERTS)
        self.model = Model(slots)
        self.resizes = 0

    @rule(
        layer=st.integers(0, LAYERS - 1),
        experts=st.lists(st.integers(-1, EXPERTS - 1), max_size=EXPERTS + 2),
    )
    def use(self, layer: int, experts: list[int]) -> None:
        assert use(self.table, layer, experts) == self.model.use(layer, experts)

    @rule(where=st.floats(0, 1, exclude_max=True))
    def lock(self, where: float) -> None:
        slot = int(where * self.table.slots)
        self.table.lock(slot)
        self.model.locked.add(slot)

    @rule(where=st.floats(0, 1, exclude_max=True))
    def unlock(self, where: float) -> None:
        slot = int(where * self.table.slots)
        self.table.unlock(slot)
        self.model.locked.discard(slot)

    @rule(layer=st.integers(0, LAYERS - 1), expert=st.integers(0, EXPERTS - 1))
    def release(self, layer: int, expert: int) -> None:
        self.table.release(layer, expert)
        slot = self.model.slot_of(layer, expert)
        if slot != ABSENT:
            self.model.owner[slot] = None

    @rule(slots=st.integers(1, LAYERS * EXPERTS))
    def resize(self, slots: int) -> None:
        if any(slot >= slots for slot in self.model.locked):
            with pytest.raises(ValueError, match="locked"):
                self.table.resize(slots)
            return
        self.model.resize(slots, self.table.resize(slots))
        self.resizes += 1
        assert self.table.generation == self.resizes

    @invariant()
    def same(self) -> None:
        if hasattr(self, "table"):
            assert_same(self.table, self.model)


TestResidencyMachine = ResidencyMachine.TestCase
TestResidencyMachine.settings = settings(max_examples=examples(40), stateful_step_count=40)


@pytest.mark.parametrize("seed", range(4))
def test_five_hundred_steps_choose_as_the_model_does(seed: int) -> None:
    """Steps as a model makes them: layer after layer, skewed routing, a resize now and then."""
    chance = random.Random(seed)
    slots = chance.randint(1, LAYERS * EXPERTS)
    table, model = Residency(LAYERS, EXPERTS, slots, most=LAYERS * EXPERTS), Model(slots)
    for step in range(500):
        for layer in range(LAYERS):
            wanted = [e for e in range(EXPERTS) if chance.random() < 1 / (1 + (e + step // 50) % 6)]
            assert use(table, layer, wanted) == model.use(layer, wanted)
        if chance.random() < 0.05:
            slots = chance.randint(1, LAYERS * EXPERTS)
            model.resize(slots, table.resize(slots))
        assert_same(table, model)


def test_hits_are_safe_from_the_fills_of_their_own_layer() -> None:
    table = Residency(2, 4, 2)
    use(table, 0, [0])
    use(table, 0, [1])
    # Expert 0 is the oldest, but it is wanted now: 1 has to go.
    assert use(table, 0, [3, 0]) == [1, 0]
    assert table.resident(0) == [0, 3]


def test_earlier_layers_of_the_step_are_fair_game() -> None:
    table = Residency(2, 4, 2)
    use(table, 0, [0, 1])
    assert ABSENT not in use(table, 1, [2, 3])
    assert table.resident(0) == []


def test_layers_whose_turn_comes_are_not_old_for_that() -> None:
    """Four layers of one expert each in three slots: least-recently-used would miss for ever."""
    table = Residency(4, 2, 3)
    for _ in range(20):
        for layer in range(4):
            use(table, layer, [0])
    # Four things round and round through three places: the best there is, hits two in three.
    assert table.counts().hits >= 50


def test_a_layer_with_more_experts_than_slots_gets_what_there_is() -> None:
    table = Residency(1, 4, 2)
    assert use(table, 0, [0, 1, 2, 3]) == [0, 1, ABSENT, ABSENT]


def test_locked_slots_never_go() -> None:
    table = Residency(1, 4, 1)
    use(table, 0, [0])
    table.lock(0)
    assert use(table, 0, [1]) == [ABSENT]
    table.unlock(0)
    assert use(table, 0, [1]) == [0]


def test_a_shrink_keeps_the_hot_and_moves_them_down() -> None:
    table = Residency(1, 6, 6)
    for expert in (5, 4, 3, 2, 1, 0):
        use(table, 0, [expert])
    moves = table.resize(2)
    assert moves == [Move(source=4, target=0), Move(source=5, target=1)]
    assert table.resident(0) == [0, 1]
    assert table.resize(3) == []
    assert use(table, 0, [4]) == [2]


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="0 slots"):
        Residency(1, 1, 0)
    table = Residency(1, 2, 1)
    with pytest.raises(ValueError, match="0 slots"):
        table.resize(0)
    with pytest.raises(ValueError, match="2 slots"):
        table.resize(2)
    with pytest.raises(ValueError, match="not one of 1"):
        table.lock(1)
    with pytest.raises(ValueError, match="2 is not one of 2 experts"):
        use(table, 0, [2])


def test_locked_slots_are_counted() -> None:
    residency = Residency(2, 4, 6)
    residency.lock(3)
    residency.lock(3)
    residency.lock(0)
    assert residency.locked == 2
    residency.unlock(3)
    residency.unlock(5)
    assert residency.locked == 1
