"""The routed experts of a model: store, slots and residency behind one call a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.errors import OutOfMemory
from engine.experts.residency import ABSENT, Residency
from engine.experts.resident import AllResident
from engine.experts.slots import SlotPool
from engine.experts.store import (
    BytesProgress,
    ExpertSource,
    ExpertStore,
    FileRanges,
    LayerPlan,
    layers_by_stride,
    pool_needs,
)
from engine.kernels.moe import moe_combine, moe_expert_rows, moe_experts
from engine.memory.budget import slots_for_rate
from engine.memory.device import Device
from engine.memory.pinned import Pinned
from engine.messages import LayerResidency
from engine.messages import Residency as ResidencyReport


@dataclass(frozen=True)
class ExpertCounters:
    """Since the start. An expert counts once for each layer and step that routes a token to it."""

    hits: int = 0
    """It was in a slot."""
    misses: int = 0
    """It was not. On `cpu` there are neither hits nor misses."""
    fills: int = 0
    """Blobs copied into slots."""
    link_bytes: int = 0
    """Bytes of those blobs."""
    host_experts: int = 0
    """Computed in place, in the store."""
    host_bytes: int = 0
    """Bytes of their blobs."""


@dataclass(frozen=True)
class _Pool:
    """Layers of one stride share slots; `rows` are their places in the residency table."""

    slots: SlotPool
    residency: Residency
    rows: dict[int, int]
    blobs: int
    """Experts of its layers."""

    @property
    def complete(self) -> bool:
        """Every expert has a slot."""
        return self.residency.used == self.blobs


class ExpertRuntime:
    """What a MoE layer calls (ExpertsForward): `experts(layer, x, ids, weights)`.

    On `cpu` experts are computed in place in the store. On `sim` and `cuda` every routed expert is
    read from a slot, filled from the store first where it is absent. Once every expert has one, no
    call waits for the device. What is resident changes the time a call takes and not one bit of its
    result.
    """

    def __init__(self, store: ExpertStore, device: Device, slots: Sequence[int] = ()) -> None:
        """`slots` of each pool, in the order of `pool_needs`; none on `cpu`."""
        self.store = store
        self.device = device
        self._hits = self._misses = self._fills = self._link_bytes = 0
        self._host_experts = self._host_bytes = 0
        self._in_step = False
        self.on_routing: Callable[[int, list[int]], None] | None = None
        """For traces: told the layer and the distinct experts of every call."""
        self._experts = max((plan.experts for plan in store.plans), default=0)
        self._pools: list[_Pool] = []
        self._pool_of: dict[int, _Pool] = {}
        self._all_resident: AllResident | None = None
        if not device.has_slots:
            return
        groups = layers_by_stride(store.plans)
        for group, need, count in zip(groups, pool_needs(store.plans), slots, strict=True):
            pool = _Pool(
                SlotPool(device, need.stride, count, need.blobs),
                Residency(len(group), self._experts, count),
                {plan.layer: row for row, plan in enumerate(group)},
                need.blobs,
            )
            self._pools.append(pool)
            self._pool_of.update(dict.fromkeys(pool.rows, pool))

    @staticmethod
    def load(
        source: ExpertSource,
        plans: Sequence[LayerPlan],
        device: Device,
        *,
        slots: Sequence[int] = (),
        cache_rate: float = 1.0,
        progress: BytesProgress | None = None,
        file_range: FileRanges | None = None,
        lock: bool = False,
    ) -> ExpertRuntime:
        """Read the experts of these layers (`plan_layers`) and make room for some on the device.

        `slots` are what the solver gave each pool; without them `cache_rate` says how many.
        `file_range` and `lock` are ExpertStore.load's. For cuda the store is pinned, and slots are
        filled where there is one for each expert.
        Raises InvalidRequest for a rate outside 0 < rate <= 1, and what ExpertStore.load raises.
        """
        if device.has_slots and not slots:
            slots = [slots_for_rate(cache_rate, need.blobs) for need in pool_needs(plans)]
        pin = partial(Pinned, device=device.torch) if device.kind == "cuda" else None
        store = ExpertStore.load(source, plans, progress, file_range=file_range, pin=pin, lock=lock)
        runtime = ExpertRuntime(store, device, slots)
        if device.kind == "cuda":
            runtime.fill_all()
        return runtime

    def fill_all(self) -> None:
        """Fill every slot, if there is one for each expert: nothing is missed from then on."""
        if any(pool.slots.slots < pool.blobs for pool in self._pools):
            return
        for layer, pool in self._pool_of.items():
            everyone = list(range(self.store.plan(layer).experts))
            found = pool.residency.lookup(pool.rows[layer], everyone)
            self._fill(pool, layer, everyone, found)

    def __call__(
        self, layer: int, x: Tensor, ids: Tensor, weights: Tensor, singles: int = 0
    ) -> Tensor:
        """x [T, H], ids int64 [T, k], weights float32 [T, k] -> [T, H] in x's dtype. The first
        `singles` rows are sequences of one token.

        Raises OutOfMemory if every slot is locked, and ValueError for an id that is no expert, but
        not where every expert has a slot: ids are not read back there.
        """
        if ids.numel() == 0:
            return torch.zeros_like(x)
        plan = self.store.plan(layer)
        resident = self._resident()
        if resident is not None:
            bank, slots = self._pool_of[layer].slots.bank, resident.slots_of(layer, ids)
            return moe_experts(bank, plan.spec, x, slots, weights, singles)
        distinct = sorted(set(ids.reshape(-1).tolist()))
        if distinct[0] < 0 or distinct[-1] >= plan.experts:
            raise ValueError(f"ids {distinct[0]} to {distinct[-1]} are not all experts of {layer}")
        if self.on_routing is not None:
            self.on_routing(plan.layer, distinct)
        if not self.device.has_slots:
            self._host_experts += len(distinct)
            self._host_bytes += len(distinct) * plan.spec.nbytes
            return moe_experts(self.store.bank(layer), plan.spec, x, ids, weights, singles)
        return self._from_slots(plan, distinct, x, ids, weights, singles)

    def _resident(self) -> AllResident | None:
        """The tables to use if every expert has a slot; none for a trace, which reads ids."""
        complete = bool(self._pools) and all(pool.complete for pool in self._pools)
        if not complete or self.on_routing is not None:
            self._forget_resident()
        elif self._all_resident is None:
            slots = {
                plan.layer: [
                    pool.residency.slot_of(pool.rows[plan.layer], expert)
                    for expert in range(plan.experts)
                ]
                for plan in self.store.plans
                for pool in (self._pool_of[plan.layer],)
            }
            self._all_resident = AllResident(slots, self.device.torch)
        return self._all_resident

    def _forget_resident(self) -> None:
        """Before anything moves: what was used becomes the residency's own knowledge."""
        resident, self._all_resident = self._all_resident, None
        if resident is None:
            return
        self._hits += resident.hits()
        for layer, pool in self._pool_of.items():
            for experts in resident.uses(layer):
                pool.residency.lookup(pool.rows[layer], experts)

    def _from_slots(
        self,
        plan: LayerPlan,
        experts: list[int],
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        singles: int,
    ) -> Tensor:
        """Resident experts first, with as many fills as find a slot; the rest in further groups.

        A prefill chunk goes the same way: it fetches the experts it routes to, one layer at a time,
        and nothing arrives ahead of its layer. Streaming through a ring belongs to the GPU's
        prefill and changes how bytes arrive, not what is computed here.
        """
        pool = self._pool_of[plan.layer]
        rows = torch.empty((*ids.shape, x.shape[1]), dtype=torch.float32, device=x.device)
        waiting = experts
        found = pool.residency.lookup(pool.rows[plan.layer], waiting)
        hits = sum(slot != ABSENT for slot in found)
        self._hits += hits
        self._misses += len(experts) - hits
        while True:
            slots = self._fill(pool, plan.layer, waiting, found)
            # Rows of experts that are not in this group stay untouched: their slot is ABSENT.
            table = torch.full((self._experts,), ABSENT, dtype=torch.int64)
            table[torch.tensor(waiting)] = torch.tensor(slots)
            of_route = table.to(ids.device)[ids]
            moe_expert_rows(pool.slots.bank, plan.spec, x, of_route, rows, singles)
            waiting = [e for e, slot in zip(waiting, slots, strict=True) if slot == ABSENT]
            if not waiting:
                return moe_combine(rows, weights, x.dtype)
            if all(slot == ABSENT for slot in slots):
                raise OutOfMemory(
                    f"All {pool.slots.slots} slots are locked; layer {plan.layer} needs one."
                )
            pool.residency.computed()
            found = [ABSENT] * len(waiting)

    def _fill(self, pool: _Pool, layer: int, experts: list[int], found: list[int]) -> list[int]:
        """Slots of these experts, misses filled as far as slots go; ABSENT for the rest."""
        slots = list(found)
        fills: list[tuple[int, int]] = []
        for index, (expert, slot) in enumerate(zip(experts, found, strict=True)):
            if slot != ABSENT:
                continue
            slots[index] = pool.residency.fill(pool.rows[layer], expert)
            if slots[index] == ABSENT:
                break
            fills.append((expert, slots[index]))
        try:
            pool.slots.fill(self.store.bank(layer), fills)
        except BaseException:
            # The engine may go on after a failed step: no slot may claim what it lacks.
            for expert, _ in fills:
                pool.residency.release(pool.rows[layer], expert)
            raise
        self._fills += len(fills)
        self._link_bytes += len(fills) * pool.slots.stride
        return slots

    def begin_step(self) -> None:
        self._in_step = True

    def end_step(self) -> None:
        """A safe point begins: no kernel reads what a resize is about to move."""
        self._in_step = False
        if self._all_resident is not None:
            self._all_resident.end_step()

    def resize(self, slots: Sequence[int]) -> None:
        """Have these many slots in each pool, keeping the hot ones. Only between steps.

        Raises OutOfMemory, and changes nothing in that pool, if a pool cannot grow so far.
        """
        if self._in_step:
            raise RuntimeError("slots are resized between steps only")
        self._forget_resident()
        for pool, count in zip(self._pools, slots, strict=True):
            if count > pool.slots.slots:
                pool.slots.resize(count)
                pool.residency.resize(count)
            else:
                pool.slots.move(pool.residency.resize(count))
                pool.slots.resize(count)

    @property
    def pools(self) -> tuple[tuple[SlotPool, Residency], ...]:
        return tuple((pool.slots, pool.residency) for pool in self._pools)

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of each pool."""
        return tuple(pool.slots.slots for pool in self._pools)

    @property
    def slots_used(self) -> int:
        return sum(pool.residency.used for pool in self._pools)

    @property
    def experts_total(self) -> int:
        """Experts of all layers together."""
        return sum(plan.experts for plan in self.store.plans)

    @property
    def store_bytes(self) -> int:
        """Host memory of the store."""
        return self.store.nbytes

    @property
    def pinned_bytes(self) -> int:
        """Of the store, what a GPU reads by itself."""
        return self.store.pinned_bytes

    @property
    def locked_bytes(self) -> int:
        """Of the rest of the store, what is never swapped out."""
        return self.store.locked_bytes

    @property
    def slot_bytes(self) -> int:
        """Memory of the device (emulated on `sim`) that the slot pools hold."""
        return sum(pool.slots.nbytes for pool in self._pools)

    def counters(self) -> ExpertCounters:
        resident = self._all_resident
        return ExpertCounters(
            hits=self._hits + (0 if resident is None else resident.hits()),
            misses=self._misses,
            fills=self._fills,
            link_bytes=self._link_bytes,
            host_experts=self._host_experts,
            host_bytes=self._host_bytes,
        )

    def residency(self) -> ResidencyReport:
        """Experts that have a slot, by layer. No layers on `cpu`, where nothing has one."""
        layers = [
            LayerResidency(layer=layer, resident=pool.residency.resident(pool.rows[layer]))
            for layer, pool in sorted(self._pool_of.items())
        ]
        generation = sum(pool.residency.generation for pool in self._pools)
        return ResidencyReport(experts=self._experts, layers=layers, generation=generation)

    def close(self) -> None:
        """Nothing is computed any more: the store is unpinned."""
        self.store.close()
