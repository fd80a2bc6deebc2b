"""Plans the space, speed and cost of tables on each storage type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from embstore.options import CacheStrategy, StorageType
from pmemlab.errors import NotPublishedError, PlanError
from pmemlab.model.planning.accesses import (
    CacheParts,
    StepAccesses,
    step_accesses,
    sum_steps,
    touched_bytes,
)
from pmemlab.model.planning.caches import CacheUser, SharedCache
from pmemlab.model.planning.cpu_work import CpuWork
from pmemlab.model.planning.hit_rates import LeastFrequent, LeastRecent, Placement
from pmemlab.model.planning.planned_tables import PlannedTable
from pmemlab.model.planning.popularity import Popularity
from pmemlab.model.planning.prices import Holding, MachineShape, Prices
from pmemlab.model.planning.row_bytes import row_bytes_in_tier
from pmemlab.model.planning.settings import BATCH_IDS, Settings, require
from pmemlab.model.planning.step_time import LookupTime, lookup_time
from pmemlab.model.planning.tiers import PLANNED_TYPES, DeviceAssignment, DevicePool, placements

__all__ = ["ExcludedStorage", "Plan", "Plans", "TierPlan", "Workload", "make_plans"]


@dataclass(frozen=True)
class Workload:
    """The load to plan for. tables: with the rows of all machines together; each machine has a part
        of every table.

    lookups_per_s: ids looked up per second, duplicates included, in all tables and machines
    together; in training each id is applied too. batch_ids: ids of a step on one machine, all
    tables together.
    """

    tables: tuple[PlannedTable, ...]
    lookups_per_s: float
    batch_ids: int = BATCH_IDS
    training: bool = True
    cache_strategy: CacheStrategy = CacheStrategy.LFU

    def __post_init__(self) -> None:
        require(self.batch_ids >= 1, "--batch-size", self.batch_ids, "must be 1 or more")
        is_rate = 0 < self.lookups_per_s < math.inf
        require(is_rate, "--lookups-per-s", self.lookups_per_s, "must be above 0, and finite")
        if not self.tables:
            raise PlanError("--tables: has no table")

    @property
    def shares(self) -> tuple[float, ...]:
        """Each table's share of all look-ups."""
        whole = sum(table.ids_a_sample for table in self.tables)
        return tuple(table.ids_a_sample / whole for table in self.tables)


@dataclass(frozen=True)
class TierPlan:
    """A tier of all tables together. kind: the engine's name. bytes: on the device, in all
    machines. hit_rate: relative to all look-ups.
    """

    kind: str
    device: str
    rows: int
    bytes: int
    hit_rate: float


@dataclass(frozen=True)
class Plan:
    """A storage type on devices, with its speed and cost. All times and rates are modelled.

    first_tier_fraction: None with a single tier. index_bytes: in DRAM beside the rows, all machines
    together. step_ms: of one thread's batch. cpu_ns, device_ns: of one thread, per id. bound_by:
    the reason for the number of machines, "rate" or "bytes on" a device; for one machine, the
    fullest device. lookups_per_s: the most that one machine does. machine, machines and prices:
    None if no machine of the price file holds the devices; why_unpriced tells why.
    usd_per_million_lookups: at the requested rate.
    """

    storage_type: str
    first_tier_fraction: float | None
    tiers: tuple[TierPlan, ...]
    index_device: str
    index_bytes: int
    distinct_rows: float
    moved_rows: float
    step_ms: float
    cpu_ns: float
    device_ns: Mapping[str, float]
    threads: int
    lookups_per_s: float
    machine: str | None = None
    machines: int | None = None
    bound_by: str | None = None
    usd_per_month: float | None = None
    usd_per_million_lookups: float | None = None
    why_unpriced: str | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(tier.device for tier in self.tiers)

    @property
    def hit_rate(self) -> float:
        """Hit rate of the first tier."""
        return self.tiers[0].hit_rate


@dataclass(frozen=True)
class ExcludedStorage:
    """A storage type on devices that can't be planned or fits nowhere, and why."""

    storage_type: str
    devices: tuple[str, ...]
    first_tier_fraction: float | None
    why: str


@dataclass(frozen=True)
class Plans:
    """The result. plans: with a price, cheapest first, then without one, fastest first."""

    workload: Workload
    settings: Settings
    cpu: CpuWork
    plans: tuple[Plan, ...]
    left_out: tuple[ExcludedStorage, ...]


def make_plans(
    workload: Workload,
    pool: DevicePool,
    prices: Prices,
    cpu: CpuWork,
    settings: Settings | None = None,
    storage_types: Sequence[StorageType] | None = None,
    on_plan: Callable[[str], None] = lambda _: None,
) -> Plans:
    """Plans every storage type on every combination of devices, each on the cheapest machines.

    pool: devices by tier, as `named_devices` returns them. storage_types: None: all types that have
    devices. on_plan: called with a description before each candidate.

    Raises PlanError if a requested storage type has no device, or if nothing fits.
    """
    settings = settings or Settings()
    is_requested = storage_types is not None
    kinds = PLANNED_TYPES if storage_types is None else tuple(dict.fromkeys(storage_types))
    plans: list[Plan] = []
    left_out: list[ExcludedStorage] = []
    candidates = list(placements(kinds, pool, is_requested=is_requested))
    if not candidates:
        device_names = ", ".join(device.name for devices in pool.values() for device in devices)
        raise PlanError(
            f"--devices: none of the storage types can be had on {device_names or 'nothing'}; the "
            "index needs DRAM or memory mode, so name such a device too, for example ddr5-snc"
        )
    split: dict[tuple[float, ...], tuple[Placement, ...]] = {}
    cache = SharedCache(
        [
            CacheUser(table.popularity, share, touched_bytes(table.shape))
            for table, share in zip(workload.tables, workload.shares, strict=True)
        ]
    )
    for placed in candidates:
        on_plan(f"{placed.storage_type.name} on {', '.join(placed.names)}")
        for upper in _splits(placed, settings):
            if upper not in split:
                split[upper] = tuple(
                    _placement(workload.cache_strategy, table.popularity, upper)
                    for table in workload.tables
                )
            candidate = _Candidate(workload, settings, cpu, placed, upper, split[upper], cache)
            best = candidate.best(prices)
            if isinstance(best, Plan):
                plans.append(best)
            else:
                left_out.append(best)
    if not plans:
        raise PlanError(_nothing_fits(left_out))
    plans.sort(key=_rank)
    return Plans(workload, settings, cpu, tuple(plans), tuple(left_out))


def _rank(plan: Plan) -> tuple[bool, float, float]:
    price = plan.usd_per_month
    return (price is None, 0.0 if price is None else price, -plan.lookups_per_s)


def _splits(placed: DeviceAssignment, settings: Settings) -> Iterator[tuple[float, ...]]:
    """Yields the fractions of a table's rows in each tier but the last, for each setting."""
    tiers = len(placed.kinds)
    if tiers == 1:
        yield ()
        return
    for fraction in settings.first_tier_fractions:
        if tiers > 2 and fraction + (tiers - 2) * settings.middle_tier_fraction >= 1:
            raise PlanError(
                f"--first-tier-fraction {fraction:g}: leaves the last of "
                f"{('three', 'four')[tiers - 3]} tiers nothing, beside "
                f"--middle-tier-fraction {settings.middle_tier_fraction:g}"
            )
        yield fraction, *[settings.middle_tier_fraction] * (tiers - 2)


def _placement(
    strategy: CacheStrategy, popularity: Popularity, upper: Sequence[float]
) -> Placement:
    kind = LeastFrequent if strategy is CacheStrategy.LFU else LeastRecent
    return kind(popularity, [max(1, round(part * popularity.rows)) for part in upper])


class _DoesNotFitError(Exception):
    """A kind of machine doesn't fit. machines: the number that would fit; None if no number
    does.
    """

    def __init__(self, why: str, machines: int | None = None) -> None:
        super().__init__(why)
        self.machines = machines


class _Candidate:
    """One storage type on given devices, with given fractions of rows in its upper tiers."""

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        cpu: CpuWork,
        placed: DeviceAssignment,
        upper: tuple[float, ...],
        placements: Sequence[Placement],
        cache: SharedCache,
    ) -> None:
        """upper: fractions of the rows, for each tier but the last. placements: of each table."""
        self._workload = workload
        self._settings = settings
        self._cpu = cpu
        self._placed = placed
        self._fraction = upper[0] if upper else None
        self._placements = placements
        self._cache = cache
        self._devices = {each.name: each for each in (placed.index_device, *placed.devices)}
        tiers = range(len(placed.kinds))
        self._tier_rows = [sum(of.tier_rows[tier] for of in placements) for tier in tiers]
        self._tier_bytes = [0] * len(tiers)
        self._index_bytes = 0
        for table, placement in zip(workload.tables, placements, strict=True):
            each_row = [row_bytes_in_tier(table.shape, placed.kinds, tier) for tier in tiers]
            rows = placement.tier_rows
            for tier in tiers:
                self._tier_bytes[tier] += math.ceil(rows[tier] * each_row[tier].tier)
            dram_bytes = sum(rows[tier] * each_row[tier].dram for tier in tiers)
            self._index_bytes += math.ceil(dram_bytes)
        self._known_step: dict[tuple[int, int, float], StepAccesses] = {}  # the last one

    def best(self, prices: Prices) -> Plan | ExcludedStorage:
        """Returns the plan on the cheapest machines; without a price if none holds the devices."""
        able = prices.machines_with(self._devices)
        try:
            if not able:
                return self._unpriced(prices)
            plans, refusals = [], []
            for machine in able:
                try:
                    plans.append(self._plan_on(machine, prices.hours_a_month))
                except _DoesNotFitError as error:
                    refusals.append(error)
        except NotPublishedError as error:  # a device lacks figures that this plan needs
            return self._left_out(str(error))
        if plans:
            return min(plans, key=_rank)
        nearest = min(refusals, key=lambda e: math.inf if e.machines is None else e.machines)
        return self._left_out(str(nearest))

    def _plan_on(self, machine: MachineShape, hours_a_month: float) -> Plan:
        workload = self._workload
        threads = min(self._settings.threads, machine.cpu_threads)
        units = {name: _holding(machine, name).units for name in self._devices}
        by_bytes, fullest = self._machines_for_bytes(machine)
        machines, bound_by = machine.rented_count(by_bytes), fullest
        while True:
            plan = self._plan(machines, threads, units)
            for_rate = self._machines_for_rate(plan.lookups_per_s, machine)
            if for_rate <= machines:
                break
            # More machines have more caches, so each may be faster.
            machines, bound_by = machine.rented_count(for_rate), "rate"
        if machines > self._settings.max_machines:
            raise _DoesNotFitError(
                f"needs {machines} of {machine.name}, for its {bound_by}; "
                f"--max-machines {machines} would let it",
                machines,
            )
        price = machines * machine.usd_per_hour
        return replace(
            plan,
            machine=machine.name,
            machines=machines,
            bound_by=bound_by,
            usd_per_month=price * hours_a_month,
            usd_per_million_lookups=price / 3600 / workload.lookups_per_s * 1e6,
        )

    def _unpriced(self, prices: Prices) -> Plan:
        available = {
            d for machine in prices.machines for each in machine.holds for d in each.devices
        }
        missing = [name for name in self._devices if name not in available]
        why = (
            f"no machine in {prices.path} holds {', '.join(missing)}"
            if missing
            else f"no machine in {prices.path} holds {' and '.join(self._devices)} together"
        )
        return replace(self._plan(1, self._settings.threads, {}), why_unpriced=why)

    def _plan(self, machines: int, threads: int, units: Mapping[str, float]) -> Plan:
        """Returns the plan without a price. units: of each device in a machine."""
        # Threads on one socket don't hit in another socket's cache.
        sockets = min(1.0, units.get(self._placed.names[0], 1.0))
        step = self._step(machines, threads, sockets)
        time = self._time(step, threads, units)
        tiers = tuple(
            TierPlan(
                kind=kind.value,
                device=self._placed.names[tier],
                rows=self._tier_rows[tier],
                bytes=self._tier_bytes[tier],
                hit_rate=step.hit_rates[tier],
            )
            for tier, kind in enumerate(self._placed.kinds)
        )
        return Plan(
            storage_type=self._placed.storage_type.name,
            first_tier_fraction=self._fraction,
            tiers=tiers,
            index_device=self._placed.index_device.name,
            index_bytes=self._index_bytes,
            distinct_rows=step.distinct_rows,
            moved_rows=step.moved_rows,
            step_ms=time.total_ns * self._workload.batch_ids / 1e6,
            cpu_ns=time.cpu_ns,
            device_ns=dict(time.by_device),
            threads=threads,
            lookups_per_s=threads * 1e9 / time.total_ns,
        )

    def _left_out(self, why: str) -> ExcludedStorage:
        return ExcludedStorage(
            self._placed.storage_type.name, self._placed.names, self._fraction, why
        )

    def _time(self, step: StepAccesses, threads: int, units: Mapping[str, float]) -> LookupTime:
        gpu = self._placed.devices[0]
        # Rows in a GPU's memory cost the CPU nothing; it looks up each missing row once.
        looked_up = 1.0 if gpu.bus is None else step.missed_rows
        cpu_ns = looked_up * self._cpu.ns_per_lookup + step.moved_rows * self._cpu.ns_per_moved_row
        devices = dict(self._devices)
        if gpu.bus is not None:
            devices[gpu.bus.name] = gpu.bus
            units = {**units, gpu.bus.name: units.get(gpu.name, 1.0)}
        return lookup_time(cpu_ns, step.accesses, devices, units, threads, self._workload.batch_ids)

    def _step(self, machines: int, threads: int, sockets: float) -> StepAccesses:
        case = (machines, threads, sockets)
        if case in self._known_step:
            return self._known_step[case]
        workload, index = self._workload, self._placed.index_device
        cpu_bytes = self._placed.devices[0].cpu_cache_bytes
        memory_bytes = 0 if index.cache is None else index.cache.size_bytes
        cpu_parts, memory_parts = (
            self._cache.byte_shares(int(size * sockets * machines))
            for size in (cpu_bytes, memory_bytes)
        )
        steps = [
            step_accesses(
                self._placed,
                placement,
                table.shape,
                batch_ids=max(1, round(workload.batch_ids * share)),
                threads=threads,
                training=workload.training,
                machines=machines,
                sockets=sockets,
                cache_parts=CacheParts(cpu, memory),
            )
            for table, placement, share, cpu, memory in zip(
                workload.tables,
                self._placements,
                workload.shares,
                cpu_parts,
                memory_parts,
                strict=True,
            )
        ]
        self._known_step = {case: sum_steps(steps, workload.shares)}
        return self._known_step[case]

    def _machines_for_bytes(self, machine: MachineShape) -> tuple[int, str]:
        """Returns the number of machines that give every memory and disk room, and the fullest of
        them.
        """
        needed_bytes: dict[str, int] = {self._placed.index_device.name: self._index_bytes}
        for name, size in zip(self._placed.names, self._tier_bytes, strict=True):
            needed_bytes[name] = needed_bytes.get(name, 0) + size
        fullest = (0.0, "")
        for name, size in needed_bytes.items():
            capacity = _holding(machine, name).capacity_bytes * self._settings.usable_fraction
            if name == self._placed.index_device.name and self._settings.dram_bytes is not None:
                capacity = min(capacity, self._settings.dram_bytes)
            fullest = max(fullest, (size / capacity, f"bytes on {name}"))
        return math.ceil(fullest[0]), fullest[1]

    def _machines_for_rate(self, rate: float, machine: MachineShape) -> int:
        """Returns the number of machines for the requested rate. The machine with the most popular
        row gets all of that row's look-ups, and its share of all others.
        """
        wanted_rate = self._workload.lookups_per_s
        hottest = max(
            share * table.popularity.hottest_share
            for table, share in zip(self._workload.tables, self._workload.shares, strict=True)
        )
        if wanted_rate <= rate:
            return 1
        if wanted_rate * hottest >= rate:
            raise _DoesNotFitError(
                f"the row that is asked for most is in one machine, and of {wanted_rate:g} "
                "look-ups a "
                f"second {hottest:.1%} are its; {machine.name} does {rate:.3g}"
            )
        return math.ceil(wanted_rate * (1 - hottest) / (rate - wanted_rate * hottest))


def _holding(machine: MachineShape, device: str) -> Holding:
    """Returns a machine's holding of a device. REQUIRES: the machine holds the device."""
    holding = machine.holding_of(device)
    assert holding is not None
    return holding


def _nothing_fits(left_out: Sequence[ExcludedStorage]) -> str:
    lines = [
        f"  {each.storage_type} on {', '.join(each.devices)}: {each.why}" for each in left_out[:8]
    ]
    omitted = len(left_out) - len(lines)
    if omitted > 0:
        lines.append(f"  and {omitted} more")
    return "\n".join(["nothing fits:", *lines])
