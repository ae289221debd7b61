"""The routed experts of a model: store, slots and residency behind one call a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from engine.errors import OutOfMemory
from engine.experts import regime
from engine.experts.copies import Copies
from engine.experts.holding import Hold
from engine.experts.regime import Absence, StreamMode
from engine.experts.residency import Residency
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
from engine.experts.stream import PoolStream
from engine.kernels.gather import BYTES, NANOSECONDS, Banks, Gauge, gather_blobs, read_gauge
from engine.kernels.moe import moe_combine, moe_expert_rows, moe_experts
from engine.kernels.pacing import LinkPace
from engine.kernels.residency import ABSENT, Route, count_routes
from engine.memory.budget import slots_for_rate
from engine.memory.device import Device
from engine.memory.pinned import Pinned
from engine.messages import LayerResidency
from engine.messages import Residency as ResidencyReport


@dataclass(frozen=True)
class ExpertCounters:
    """Since the start. An expert counts once for each layer and step that routes a token to it."""

    hits: int = 0
    """It was in a slot; of a streamed step, and was not sent."""
    misses: int = 0
    """It was not, or was sent. On `cpu` there are neither hits nor misses."""
    fills: int = 0
    """Blobs copied into slots. A streamed step sends experts before it is known whether any token
    is routed to them, so there may be more of them than misses."""
    link_bytes: int = 0
    """Bytes of those blobs."""
    gather_ns: int = 0
    """What filling took while it was timed: on a GPU by its own clock, where a kernel fills, on
    `sim` by the host's."""
    gather_bytes: int = 0
    """Bytes that were filled meanwhile."""
    host_experts: int = 0
    """Computed in place, in the store."""
    host_bytes: int = 0
    """Bytes of their blobs."""


@dataclass
class _Pool:
    """Layers of one stride share slots; `rows` are their places in the residency table."""

    slots: SlotPool
    residency: Residency
    rows: dict[int, int]
    experts: int
    """Of the layer that has most."""
    blobs: int
    """Experts of its layers."""
    banks: Banks | None
    """What a GPU reads its layers from by itself: None unless all of them are pinned."""
    stream: PoolStream
    complete: bool = False
    """Every expert has a slot, so nothing is missed."""

    @property
    def gauge(self) -> Gauge | None:
        """Of the kernel that fills slots; without it the slots' own figures count."""
        return self.banks.gauge if self.banks is not None else None

    @property
    def gathered(self) -> tuple[int, int]:
        """Nanoseconds and bytes."""
        if self.gauge is None:
            return self.slots.filled_ns, self.slots.filled_bytes
        return int(self.gauge.told[NANOSECONDS]), int(self.gauge.told[BYTES])


MANY_ROUTES = 128
"""More are counted before they are routed: 128 are 8 tokens of 16 each."""


class ExpertRuntime:
    """What a MoE layer calls (ExpertsForward): `experts(layer, x, ids, weights)`.

    On `cpu` experts are computed in place in the store. On `sim` and `cuda` every routed expert is
    read from a slot, filled from the store first where it is absent. On `cuda`, where the store is
    pinned and a pool has slots enough for a layer, no call waits for the device, and a captured
    graph can hold it. What is resident changes the time a call takes and not one bit of its result.
    """

    def __init__(
        self,
        store: ExpertStore,
        device: Device,
        slots: Sequence[int] = (),
        link_bytes_per_s: int = 0,
    ) -> None:
        """`slots` of each pool, in the order of `pool_needs`; none on `cpu`. Slots are filled no
        faster than `link_bytes_per_s`, unless that is 0."""
        self.store = store
        self.device = device
        self._host_experts = self._host_bytes = 0
        self._pace = LinkPace(link_bytes_per_s, device.torch) if link_bytes_per_s else None
        self._in_step = False
        self.streamed_steps = 0
        """Steps so far in which a pool's experts were streamed."""
        self.on_routing: Callable[[int, list[list[int]]], None] | None = None
        """For traces: told the layer of every call and its ids, a row a token."""
        self._experts = max((plan.experts for plan in store.plans), default=0)
        self._pools: list[_Pool] = []
        self._pool_of: dict[int, _Pool] = {}
        if not device.has_slots:
            return
        self._copies = Copies(device)
        groups = layers_by_stride(store.plans)
        for group, need, count in zip(groups, pool_needs(store.plans), slots, strict=True):
            layers = [plan.layer for plan in group]
            pool_slots = SlotPool(device, need.stride, count, need.blobs, self._pace)
            residency = Residency(
                len(group), self._experts, count, most=need.blobs, device=device.torch
            )
            pool = _Pool(
                pool_slots,
                residency,
                {layer: row for row, layer in enumerate(layers)},
                max(plan.experts for plan in group),
                need.blobs,
                self._banks(layers),
                PoolStream(store, pool_slots, residency, layers, self._copies),
            )
            self._pools.append(pool)
            self._pool_of.update(dict.fromkeys(pool.rows, pool))

    def _banks(self, layers: list[int]) -> Banks | None:
        pinned = all(self.store.hold(layer) is Hold.PINNED for layer in layers)
        if self.device.kind != "cuda" or not pinned:
            return None
        return replace(
            self.store.banks(layers, self.device.torch),
            gauge=Gauge.empty(len(layers), self.device.torch),
            pace=self._pace.nanoseconds if self._pace is not None else None,
        )

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
        link_bytes_per_s: int = 0,
    ) -> ExpertRuntime:
        """Read the experts of these layers (`plan_layers`) and make room for some on the device.

        `slots` are what the solver gave each pool; without them `cache_rate` says how many.
        `file_range` and `lock` are ExpertStore.load's, `link_bytes_per_s` is the constructor's. For
        cuda the store is pinned, and slots are filled where there is one for each expert.
        Raises InvalidRequest for a rate outside 0 < rate <= 1, and what ExpertStore.load raises.
        """
        if device.has_slots and not slots:
            slots = [slots_for_rate(cache_rate, need.blobs) for need in pool_needs(plans)]
        pin = partial(Pinned, device=device.torch) if device.kind == "cuda" else None
        store = ExpertStore.load(source, plans, progress, file_range=file_range, pin=pin, lock=lock)
        runtime = ExpertRuntime(store, device, slots, link_bytes_per_s)
        if device.kind == "cuda":
            runtime.fill_all()
        return runtime

    def fill_all(self) -> None:
        """Fill every slot, if there is one for each expert: nothing is missed from then on."""
        for pool in self._pools:
            if pool.complete or pool.slots.slots < pool.blobs:
                continue
            pool.residency.begin_step()
            for layer in pool.rows:
                everyone = torch.zeros(self._experts, dtype=torch.int32, device=self.device.torch)
                everyone[: self.store.plan(layer).experts] = 1
                route = pool.residency.route_counts(pool.rows[layer], everyone, 0)
                self._fill(pool, layer, route)
                pool.residency.forgive(int(route.count))
            pool.complete = True

    def __call__(
        self, layer: int, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int = 0
    ) -> Tensor:
        """x [T, H], ids int64 [T, k], weights float32 [T, k] -> [T, H] in x's dtype; without
        weights the row of each route, float32 [T, k, H]. The first `singles` rows are sequences of
        one token.

        Raises OutOfMemory if every slot is locked, and ValueError for an id that is no expert, but
        not where ids are not read back.
        """
        if ids.numel() == 0:
            return torch.zeros_like(x)
        plan = self.store.plan(layer)
        pool = self._pool_of.get(layer)
        if pool is not None and pool.stream.active:
            return pool.stream(pool.rows[layer], plan.spec, x, ids, weights, singles)
        if self.never_waits(layer, ids.numel()):
            return self._at_once(plan, x, ids, weights, singles)
        distinct = sorted(set(ids.reshape(-1).tolist()))
        if distinct[0] < 0 or distinct[-1] >= plan.experts:
            raise ValueError(f"ids {distinct[0]} to {distinct[-1]} are not all experts of {layer}")
        if self.on_routing is not None:
            self.on_routing(plan.layer, ids.tolist())
        if not self.device.has_slots:
            self._host_experts += len(distinct)
            self._host_bytes += len(distinct) * plan.spec.nbytes
            return moe_experts(self.store.bank(layer), plan.spec, x, ids, weights, singles)
        return self._from_slots(plan, x, ids, weights, singles)

    def never_waits(self, layer: int, routes: int) -> bool:
        """Whether a call of so many routes reads nothing back from the device."""
        if self.on_routing is not None or not self.device.has_slots:
            return False
        return self._has_room(self._pool_of[layer], min(routes, self.store.plan(layer).experts))

    def step_never_waits(self, routes: int) -> bool:
        """Whether that is so of every layer of a step that has so many routes in each."""
        if self.on_routing is not None or not self.device.has_slots:
            return False
        return all(self._has_room(pool, min(routes, pool.experts)) for pool in self._pools)

    def _has_room(self, pool: _Pool, experts: int) -> bool:
        """Whether the pool finds slots for so many experts of a layer without the host."""
        readable = pool.banks is not None or (pool.complete and self.device.kind == "cuda")
        return readable and experts <= pool.slots.slots - pool.residency.locked

    def _at_once(
        self, plan: LayerPlan, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int
    ) -> Tensor:
        """All misses are filled before anything is computed, and the host knows of none."""
        pool = self._pool_of[plan.layer]
        row, bank = pool.rows[plan.layer], pool.slots.bank
        if ids.numel() <= MANY_ROUTES:
            route = pool.residency.route(row, ids)
            slots = route.slots
        else:
            route = pool.residency.route_counts(row, count_routes(ids, self._experts), len(ids))
            slots = route.slots[ids]
        if pool.banks is not None and not pool.complete:
            gather_blobs(bank, pool.banks, row, route.fills, route.count)
        return moe_experts(bank, plan.spec, x, slots, weights, singles, plan.experts)

    def _from_slots(
        self, plan: LayerPlan, x: Tensor, ids: Tensor, weights: Tensor | None, singles: int
    ) -> Tensor:
        """Resident experts first, with as many fills as find a slot; the rest in further groups."""
        pool = self._pool_of[plan.layer]
        rows = torch.empty((*ids.shape, x.shape[1]), dtype=torch.float32, device=x.device)
        waiting, tokens = count_routes(ids, self._experts), len(ids)
        while True:
            route = pool.residency.route_counts(pool.rows[plan.layer], waiting, tokens)
            self._fill(pool, plan.layer, route)
            # Rows of experts that are not in this group stay untouched: their slot is ABSENT.
            bank, slots = pool.slots.bank, route.slots.long()[ids]
            moe_expert_rows(bank, plan.spec, x, slots, rows, singles, plan.experts)
            found = route.slots != ABSENT
            left = torch.where(found, 0, waiting)
            count = int((left > 0).sum())
            if count == 0:
                return moe_combine(rows, weights, x.dtype)
            if not bool(found.any()):
                raise OutOfMemory(
                    f"All {pool.slots.slots} slots are locked; layer {plan.layer} needs one."
                )
            pool.residency.forgive(count)
            waiting, tokens = left, 0

    def _fill(self, pool: _Pool, layer: int, route: Route) -> None:
        fills = [(expert, slot) for expert, slot in route.fills[: int(route.count)].tolist()]
        try:
            pool.slots.fill(self.store.bank(layer), fills)
        except BaseException:
            # The engine may go on after a failed step: no slot may claim what it lacks.
            for expert, _ in fills:
                pool.residency.release(pool.rows[layer], expert)
            raise

    def begin_step(
        self, routes: int = 0, mode: StreamMode = "auto", *, seeds: bool = False
    ) -> None:
        """A step of so many routes in each layer begins. Where streaming its experts is predicted
        to be faster than fetching what is routed to, the host waits for the residency and streams
        them; 0 routes, as in a captured graph, wait for nothing. `seeds`: a prompt ends with this
        step, see `seed`. `end_step` follows in any case, also where this raises."""
        self._in_step = True
        streamed = False
        for pool in self._pools:
            if self._is_streamed(pool, routes, mode) and self._stream(pool, mode, seeds):
                streamed = True
            else:
                pool.residency.begin_step()
        self.streamed_steps += streamed

    def _is_streamed(self, pool: _Pool, routes: int, mode: StreamMode) -> bool:
        readable = pool.banks is not None or self.device.in_host_memory
        if not routes or mode == "never" or self.on_routing is not None:
            return False
        if pool.complete or not readable:
            return False
        absent = pool.blobs - pool.residency.counts().used
        if mode != "auto":
            return absent > 0
        absence = Absence(routes, self._experts, len(pool.rows), absent * pool.slots.stride)
        return regime.streams(absence, self.link_bytes_per_s)

    def _stream(self, pool: _Pool, mode: StreamMode, seeds: bool) -> bool:
        return pool.stream.begin(seeds=seeds, overlaps=mode != "serial")

    def end_step(self) -> None:
        """A safe point begins: no kernel reads what a resize is about to move."""
        self._in_step = False
        for pool in self._pools:
            pool.stream.end()
            pool.residency.publish()
            if pool.gauge is not None and not pool.complete:
                read_gauge(pool.gauge.spans, pool.gauge)

    def seed(self) -> None:
        """Once a prompt's last step has ended and its results are out: have in slots what the
        prompt used most. Nothing happens after other steps."""
        for pool in self._pools:
            if pool.stream.seed():
                pool.residency.publish()

    def resize(self, slots: Sequence[int]) -> None:
        """Have these many slots in each pool, keeping the hot ones. Only between steps.

        Raises OutOfMemory, and changes nothing in that pool, if a pool cannot grow so far.
        """
        if self._in_step:
            raise RuntimeError("slots are resized between steps only")
        for pool, count in zip(self._pools, slots, strict=True):
            pool.complete = pool.complete and count == pool.blobs
            if count > pool.slots.slots:
                pool.slots.resize(count)
                pool.residency.resize(count)
            else:
                pool.slots.move(pool.residency.resize(count))
                pool.slots.resize(count)

    @property
    def link_bytes_per_s(self) -> float:
        """As measured by the last streamed step, or what is assumed before."""
        return self._copies.rate() or regime.LINK_BYTES_PER_S

    @property
    def pools(self) -> tuple[tuple[SlotPool, Residency], ...]:
        return tuple((pool.slots, pool.residency) for pool in self._pools)

    @property
    def slots(self) -> tuple[int, ...]:
        """Slots of each pool."""
        return tuple(pool.slots.slots for pool in self._pools)

    @property
    def complete(self) -> tuple[bool, ...]:
        """Of each pool, whether every expert is in a slot and so none is ever filled. What a step
        asks of the device depends on it."""
        return tuple(pool.complete for pool in self._pools)

    @property
    def slots_used(self) -> int:
        return sum(pool.residency.counts().used for pool in self._pools)

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
        """On a GPU as of the last step that ended, which its copy may not have reached yet."""
        counts = [pool.residency.counts() for pool in self._pools]
        strides = [pool.slots.stride for pool in self._pools]
        return ExpertCounters(
            hits=sum(each.hits for each in counts),
            misses=sum(each.misses for each in counts),
            fills=sum(each.fills for each in counts),
            link_bytes=sum(each.fills * n for each, n in zip(counts, strides, strict=True)),
            gather_ns=sum(pool.gathered[0] for pool in self._pools),
            gather_bytes=sum(pool.gathered[1] for pool in self._pools),
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
