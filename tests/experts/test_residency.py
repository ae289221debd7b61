"""The residency table against a model that scans everything every time."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.experts.residency import Counts, Move, Residency
from engine.kernels.expert_scores import HALF_LIVES
from engine.kernels.residency import ABSENT
from tests.properties import examples

LAYERS, EXPERTS = 3, 6
EVERY = [(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)]


class Model:
    """Slots with what is known of each, and a victim by sorting all of them by the rule's words."""

    def __init__(self, slots: int) -> None:
        self.owner: list[tuple[int, int] | None] = [None] * slots
        self.scores = {(h, owner): 0 for h in range(len(HALF_LIVES)) for owner in EVERY}
        self.credits = {(h, layer): 0 for h in range(len(HALF_LIVES)) for layer in range(LAYERS)}
        self.choosers = [0] * len(HALF_LIVES)
        """Credits of all layers: what the next step's choice goes by."""
        self.chosen = 0
        self.before: set[tuple[int, int]] = set()
        """Experts of each layer's last turn that the scores know of."""
        self.turns: dict[int, tuple[dict[int, int], int]] = {}
        """Of each layer that this step has routed: the experts' routes, and the tokens."""
        self.settled = True
        """Whether something else has happened since the step's last layer."""
        self.locked: set[int] = set()
        self.layer = LAYERS - 1
        self.hits = self.misses = self.fills = 0

    def slot_of(self, layer: int, expert: int) -> int:
        return self.owner.index((layer, expert)) if (layer, expert) in self.owner else ABSENT

    def begin(self) -> None:
        values = [
            credit * (256 + len(HALF_LIVES) - 1 - h) for h, credit in enumerate(self.choosers)
        ]
        best = values.index(max(values))
        if values[best] * 256 > values[self.chosen] * 257:
            self.chosen = best
        for layer, (routes, tokens) in self.turns.items():
            if tokens:
                self.learn(layer, routes, tokens)
        self.choosers = [
            sum(self.credits[h, layer] for layer in range(LAYERS)) for h in range(len(HALF_LIVES))
        ]
        self.turns = {}
        self.settled = False

    def learn(self, layer: int, routes: dict[int, int], tokens: int) -> None:
        room = (2 * len(self.owner) + LAYERS) // (2 * LAYERS)
        owners = [(layer, expert) for expert in range(EXPERTS)]
        for h in range(len(HALF_LIVES)):
            ranks = {o: (o in self.before, self.scores[h, o]) for o in owners}
            in_slots = sorted(ranks.values(), reverse=True)[:room]
            hits = sum(
                ranks[layer, expert] >= in_slots[-1] and ranks[layer, expert] != (False, 0)
                for expert in routes
                if in_slots
            )
            kept = self.credits[h, layer] * round(2**16 * 2 ** (-1 / 300)) // 2**16
            self.credits[h, layer] = kept + hits * 2**16
            for expert in range(EXPERTS):
                self.scores[h, (layer, expert)] = self.after_turn(h, (layer, expert))
        self.before = {owner for owner in self.before if owner[0] != layer}
        self.before |= {(layer, expert) for expert in routes}

    def after_turn(self, h: int, owner: tuple[int, int]) -> int:
        """The owner's score with what this step has routed."""
        routes, tokens = self.turns.get(owner[0], ({}, 0))
        score = self.scores[h, owner]
        if not tokens:
            return score
        one = 1 << 30
        halvings, rest = divmod(tokens, HALF_LIVES[h])
        left = round(one * 2 ** (-rest / HALF_LIVES[h])) >> min(halvings, 30)
        frequency = min(routes.get(owner[1], 0), tokens) * ((one - 1) // tokens)
        return (score * left + frequency * (one - left)) // one

    def turns_until(self, layer: int) -> int:
        turns, at = 1, (self.layer + 1) % LAYERS
        while at != layer:
            turns, at = turns + 1, (at + 1) % LAYERS
        return turns

    def order_of_going(self, owners: list[tuple[int, int]]) -> list[tuple[int, int]]:
        def used(owner: tuple[int, int]) -> bool:
            return owner[1] in self.turns.get(owner[0], ({}, 0))[0]

        def score(owner: tuple[int, int]) -> int:
            return self.after_turn(self.chosen, owner)

        owners = sorted(owners, key=self.owner.index)
        owners = sorted(owners, key=lambda o: score(o) if used(o) else self.scores[self.chosen, o])
        owners = sorted(owners, key=used)
        owners = sorted(owners, key=lambda owner: self.turns_until(owner[0]), reverse=True)
        return sorted(owners, key=lambda owner: math.frexp(np.float32(score(owner)))[1])

    def victim(self, wanted: set[tuple[int, int]]) -> int:
        unlocked = [slot for slot in range(len(self.owner)) if slot not in self.locked]
        for slot in unlocked:
            if self.owner[slot] is None:
                return slot
        owners = [self.owner[slot] for slot in unlocked]
        going = self.order_of_going([o for o in owners if o is not None and o not in wanted])
        return self.owner.index(going[0]) if going else ABSENT

    def use(self, layer: int, ids: list[int], tokens: int) -> list[int]:
        """Slots after every hit is safe and every miss filled, as far as slots can be had."""
        if self.settled or layer in self.turns:
            self.begin()
        self.layer = layer
        routes = {expert: ids.count(expert) for expert in ids if expert >= 0}
        self.turns[layer] = routes, tokens
        missing = [expert for expert in sorted(routes) if self.slot_of(layer, expert) == ABSENT]
        for expert in missing:
            slot = self.victim({(layer, expert) for expert in routes})
            if slot != ABSENT:
                self.owner[slot] = (layer, expert)
                self.fills += 1
        self.hits += len(routes) - len(missing)
        self.misses += len(missing)
        return [self.slot_of(layer, expert) for expert in ids]

    def resize(self, slots: int, moves: list[Move]) -> None:
        """Check the moves against what a resize promises, then follow them."""
        self.layer = LAYERS - 1  # steps are whole
        self.settled = True
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
    """Of one token."""
    ids = torch.tensor([experts], dtype=torch.int64)
    return table.route(layer, ids).slots[0].tolist()


def use_counted(table: Residency, layer: int, ids: list[int], tokens: int) -> list[int]:
    counts = torch.tensor([ids.count(expert) for expert in range(EXPERTS)], dtype=torch.int32)
    slots = table.route_counts(layer, counts, tokens).slots.tolist()
    return [slots[expert] if expert >= 0 else ABSENT for expert in ids]


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
        assert use(self.table, layer, experts) == self.model.use(layer, experts, 1)

    @rule(
        layer=st.integers(0, LAYERS - 1),
        ids=st.lists(st.integers(-1, EXPERTS - 1), max_size=2 * EXPERTS),
        tokens=st.integers(0, 400),
    )
    def use_counted(self, layer: int, ids: list[int], tokens: int) -> None:
        assert use_counted(self.table, layer, ids, tokens) == self.model.use(layer, ids, tokens)

    @rule(where=st.floats(0, 1, exclude_max=True))
    def lock(self, where: float) -> None:
        slot = int(where * self.table.slots)
        self.table.lock(slot)
        self.model.locked.add(slot)
        self.model.settled = True

    @rule(where=st.floats(0, 1, exclude_max=True))
    def unlock(self, where: float) -> None:
        slot = int(where * self.table.slots)
        self.table.unlock(slot)
        self.model.locked.discard(slot)
        self.model.settled = True

    @rule(layer=st.integers(0, LAYERS - 1), expert=st.integers(0, EXPERTS - 1))
    def release(self, layer: int, expert: int) -> None:
        self.table.release(layer, expert)
        slot = self.model.slot_of(layer, expert)
        if slot != ABSENT:
            self.model.owner[slot] = None
            self.model.settled = True

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
            assert use(table, layer, wanted) == model.use(layer, wanted, 1)
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
