"""The accesses of a step to each device, per id that the step looks up.

The model follows the engine's steps (engine/core/README.md): a look-up reads the index and the
row's weights, also for duplicates; an apply updates each distinct row once. A row that is found
below the first tier is read whole and promoted to the first tier, and another row is demoted in its
place: in steady state tiers are full, so promotions and demotions are equal in number. Under LFU,
once frequencies rank all rows, rows stay in their tier: in serving, their accesses are counted
there; in training, they are updated there if the tier is memory. Rows of LEVELDB always come up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embstore.devices import Access
from embstore.options import TierKind
from pmemlab.model.planning.caches import CpuCache, direct_mapped_misses
from pmemlab.model.planning.hit_rates import LeastFrequent, Placement
from pmemlab.model.planning.popularity import Floats
from pmemlab.model.planning.row_bytes import ON_SSD, RowShape, row_bytes_in_tier
from pmemlab.model.planning.tiers import DeviceAssignment

__all__ = [
    "INDEX_LINE_BYTES",
    "CacheParts",
    "DeviceAccess",
    "StepAccesses",
    "step_accesses",
    "sum_steps",
    "touched_bytes",
]

INDEX_LINE_BYTES = (
    64  # a bucket of the index fills a cache line (engine/PERFORMANCE.md, "Look-ups", 1)
)
DISK_BLOCK_BYTES = 4096
# SSDHASH gathers up to an eighth of its buffer of 4 MiB before it writes (embstore.SSDHashOption),
# and compacts the files with the fewest live rows, in which a little less than half of the rows are
# live: each written row causes copies of 0.9 more (counted; tests/lab/test_plan_accesses.py).
SSDHASH_WRITE_BYTES = (4 << 20) // 8
SSDHASH_WRITE_AMPLIFICATION = 1.9
# LevelDB: the bytes written per byte until it reaches the last level, as measured with 100 GB (Lu
# et al.: WiscKey, FAST'16, figure 2); all but the first write are preceded by a read. The size of a
# write is that of its environment's buffer (util/env_posix.cc).
LEVELDB_WRITE_AMPLIFICATION = 14.0
LEVELDB_WRITE_BYTES = 64 << 10
# LevelDB keeps 990 tables open (its max_open_files of 1000 less 10). To read any other table it
# first reads the index (a key, 8 bytes and a handle per block) and the filter (10 bits per row).
LEVELDB_TABLE_BYTES = 16 << 20  # tiers/leveldb/leveldb_open_options.h, also for the bits
LEVELDB_OPEN_TABLES = 990
_LEVELDB_INDEX_ENTRY_BYTES = 40
_LEVELDB_FILTER_BYTES_A_ROW = 10 / 8


@dataclass(frozen=True)
class DeviceAccess:
    """A kind of access to a device. rate: accesses per id looked up. memory_miss: in memory mode,
    the share of them that miss the DRAM cache; else 0.
    """

    tier: int | None  # None: the index
    device: str
    access: Access
    size_bytes: int
    rate: float
    memory_miss: float = 0.0


@dataclass(frozen=True)
class StepAccesses:
    """The accesses of a step. hit_rates: of each tier. Per id looked up: distinct_rows;
    missed_rows: distinct rows below the first tier; moved_rows: missed rows that are promoted, as
    many as are demoted.
    """

    hit_rates: tuple[float, ...]
    distinct_rows: float
    missed_rows: float
    moved_rows: float
    accesses: tuple[DeviceAccess, ...]


@dataclass(frozen=True)
class CacheParts:
    """A table's shares of the CPU's cache and of memory mode's DRAM cache."""

    cpu: float = 1.0
    memory: float = 1.0


def touched_bytes(shape: RowShape) -> int:
    """Returns the bytes of a row and its index entry that a step touches."""
    return shape.row_bytes + INDEX_LINE_BYTES


def sum_steps(steps: Sequence[StepAccesses], shares: Sequence[float]) -> StepAccesses:
    """Adds up the steps of several tables. shares: each table's share of the ids."""
    of_each = list(zip(steps, shares, strict=True))
    return StepAccesses(
        hit_rates=tuple(
            sum(step.hit_rates[tier] * share for step, share in of_each)
            for tier in range(len(steps[0].hit_rates))
        ),
        distinct_rows=sum(step.distinct_rows * share for step, share in of_each),
        missed_rows=sum(step.missed_rows * share for step, share in of_each),
        moved_rows=sum(step.moved_rows * share for step, share in of_each),
        accesses=tuple(
            replace(each, rate=each.rate * share)
            for step, share in of_each
            for each in step.accesses
        ),
    )


def step_accesses(
    placed: DeviceAssignment,
    placement: Placement,
    shape: RowShape,
    *,
    batch_ids: int,
    threads: int,
    training: bool,
    machines: int = 1,
    sockets: float = 1.0,
    cache_parts: CacheParts | None = None,
) -> StepAccesses:
    """Returns a step's accesses, averaged over machines that each hold a part of the rows by hash.

    sockets: sockets whose caches a machine has; below 1 if other programs use the rest of a socket.
    cache_parts: the table's shares of the caches; None: it has all of them.

    batch_ids: per thread of a machine. As many batches of the whole table are in flight as all
    machines have threads, and there are as many caches as machines.
    """
    kinds, whole_batch = placed.kinds, batch_ids * machines
    first, parts = placed.devices[0], cache_parts or CacheParts()
    cpu_cache_bytes = int(first.cpu_cache_bytes * sockets * parts.cpu)  # per machine
    touched = touched_bytes(shape)
    cpu = CpuCache(placement.popularity, cpu_cache_bytes * machines, touched)

    def distinct(p: Floats) -> Floats:
        """Returns how many distinct rows of probability `p` a batch has, per id of the batch."""
        return np.asarray(-np.expm1(whole_batch * _log_other_row_probability(p)) / whole_batch)

    def in_tier(tier: int, function: Callable[[Floats], Floats]) -> float:
        return placement.total(tier, function)

    # The rows that all threads' batches touch between a look-up and its apply.
    between = whole_batch * threads
    different_between = placement.popularity.total(
        lambda p: np.asarray(-np.expm1(between * _log_other_row_probability(p)))
    )
    again_cached = different_between * touched <= cpu_cache_bytes * machines

    tiers = range(len(kinds))
    bus = first.bus
    distinct_rows = [in_tier(tier, distinct) for tier in tiers]
    missed = sum(distinct_rows[1:])
    stays = [tier > 0 and _rows_stay(kinds, tier, placement, training) for tier in tiers]
    promoted = [0.0 if stays[tier] else distinct_rows[tier] for tier in tiers]
    all_promoted = sum(promoted[1:])
    all_accesses: list[DeviceAccess] = []

    def demoted_into(tier: int) -> float:
        """Returns the rows that are demoted into a tier: as many as are promoted from it and lower
        tiers.
        """
        return sum(promoted[tier:])

    def cross(access: Access, size_bytes: int, rate: float) -> None:
        """Adds transfers over a GPU's bus: a store goes to the GPU, a load comes from it."""
        if bus is not None and rate > 0:
            all_accesses.append(DeviceAccess(0, bus.name, access, size_bytes, rate))

    def count(tier: int | None, access: Access, size_bytes: int, rate: float) -> None:
        device = placed.index_device if tier is None else placed.devices[tier]
        if rate > 0:
            all_accesses.append(DeviceAccess(tier, device.name, access, size_bytes, rate))

    each_row = [row_bytes_in_tier(shape, kinds, tier) for tier in tiers]
    if bus is None:
        uncached = in_tier(0, lambda p: p * cpu.miss_rate(p))
        count(None, Access.LOAD, INDEX_LINE_BYTES, uncached + missed)
        count(0, Access.LOAD, shape.weights_bytes, uncached)
    else:  # it deduplicates ids, has a mirror of the index, and writes the looked-up rows
        count(None, Access.LOAD, INDEX_LINE_BYTES, missed)
        count(0, Access.LOAD, INDEX_LINE_BYTES, sum(distinct_rows))
        count(0, Access.LOAD, shape.weights_bytes, sum(distinct_rows))
        count(0, Access.STORE, shape.weights_bytes, 1.0)
        if training:  # reads each id's gradient
            count(0, Access.LOAD, shape.weights_bytes, 1.0)

    def count_rows(tier: int, access: Access, rate: float) -> None:
        count(tier, access, each_row[tier].record, rate)
        if each_row[tier].header:
            count(tier, access, each_row[tier].header, rate)

    if training:
        # Promoted rows are still in the CPU's cache when the apply updates them, unless they are
        # more than it holds: all of a batch's rows are promoted before any is updated.
        promoted_cached = all_promoted * batch_ids * shape.row_bytes <= cpu_cache_bytes
        updated = in_tier(0, lambda p: distinct(p) * cpu.miss_rate(p))
        count_rows(0, Access.UPDATE, updated + (0 if promoted_cached else all_promoted))
    if len(kinds) > 1:
        count_rows(0, Access.STORE, all_promoted)
        count_rows(0, Access.LOAD, demoted_into(1))
        whole_row = each_row[0].record + each_row[0].header
        cross(Access.STORE, whole_row, all_promoted)
        cross(Access.LOAD, whole_row, demoted_into(1))
        # For rows that stay below, the weights go to the GPU, and the summed gradients come back.
        cross(Access.STORE, shape.weights_bytes, missed - all_promoted)
        if training:
            cross(Access.LOAD, shape.weights_bytes, missed - all_promoted)
    for tier in tiers[1:]:
        if kinds[tier] in ON_SSD:
            for access, size, rate in _disk_accesses(
                kinds[tier],
                each_row[tier].record,
                distinct_rows[tier],
                demoted_into(tier),
                placement.tier_rows[tier] / machines,
            ):
                count(tier, access, size, rate)
            continue
        # The look-up reads a row's weights, and the promotion then reads the whole row; to a GPU,
        # the whole row comes up at once.
        whole_rows = promoted[tier]
        if bus is None or stays[tier]:
            count(tier, Access.LOAD, shape.weights_bytes, distinct_rows[tier])
        if stays[tier]:  # as the frequency in the row's header tells
            count(tier, Access.LOAD, each_row[tier].header, distinct_rows[tier])
            if training:
                count_rows(tier, Access.UPDATE, distinct_rows[tier])
            else:
                count(tier, Access.STORE, each_row[tier].header, distinct_rows[tier])
        elif bus is None and again_cached:  # the weights are cached
            count(tier, Access.LOAD, each_row[tier].record - shape.weights_bytes, whole_rows)
            count(tier, Access.LOAD, each_row[tier].header, whole_rows)
            whole_rows = 0.0
        count_rows(tier, Access.LOAD, whole_rows + demoted_into(tier + 1))
        count_rows(tier, Access.STORE, demoted_into(tier))
    return StepAccesses(
        hit_rates=placement.hit_rates(),
        distinct_rows=sum(distinct_rows),
        missed_rows=missed,
        moved_rows=all_promoted,
        accesses=_with_memory_mode(
            all_accesses, placed, placement, shape, machines * sockets, parts
        ),
    )


def _rows_stay(kinds: Sequence[TierKind], tier: int, placement: Placement, training: bool) -> bool:
    """Returns whether looked-up rows of a lower tier stay in that tier, in steady state."""
    if not isinstance(placement, LeastFrequent):
        return False
    if not training:
        return kinds[tier] is not TierKind.LEVELDB
    return kinds[tier] not in ON_SSD


def _log_other_row_probability(p: Floats) -> Floats:
    """Returns the logarithm of the probability that a look-up asks for another row."""
    with np.errstate(divide="ignore"):  # a table of one row
        return np.asarray(np.log1p(-p))


def _disk_accesses(
    kind: TierKind, record_bytes: int, read: float, written: float, rows: float
) -> list[tuple[Access, int, float]]:
    """Returns (access, bytes, rate) at a disk, which is read in whole blocks and written in large
    pieces. No page is assumed cached, since planned tables are larger than memory.
    """
    accesses = []
    # A record begins anywhere in a block, so with some probability it spans one block more.
    blocks, crossing = divmod(record_bytes - 1, DISK_BLOCK_BYTES)
    part = crossing / DISK_BLOCK_BYTES
    if kind is TierKind.LEVELDB:
        # LevelDB's blocks end after the record that reaches 4 KiB, and begin anywhere.
        blocks, part = max(1, -(-record_bytes // DISK_BLOCK_BYTES)), 1.0
        accesses += [
            (Access.FILE_READ, (blocks + 1) * DISK_BLOCK_BYTES, read),
            (
                Access.FILE_READ,
                _table_head_bytes(record_bytes),
                read * _closed_table_share(rows, record_bytes),
            ),
        ]
        piece, amplification = LEVELDB_WRITE_BYTES, LEVELDB_WRITE_AMPLIFICATION
        compacted = amplification - 1
    else:
        accesses += [
            (Access.FILE_READ, (blocks + 1) * DISK_BLOCK_BYTES, read * (1 - part)),
            (Access.FILE_READ, (blocks + 2) * DISK_BLOCK_BYTES, read * part),
        ]
        piece, amplification = SSDHASH_WRITE_BYTES, SSDHASH_WRITE_AMPLIFICATION
        compacted = amplification  # files are read whole, dead rows too
    pieces = written * record_bytes / piece
    accesses += [
        (Access.FILE_WRITE, piece, pieces * amplification),
        (Access.FILE_READ, piece, pieces * compacted),
    ]
    return accesses


def _table_head_bytes(record_bytes: int) -> int:
    """Returns the bytes of the index and filter of one of LevelDB's tables."""
    blocks = LEVELDB_TABLE_BYTES / max(DISK_BLOCK_BYTES, record_bytes)
    rows = LEVELDB_TABLE_BYTES / record_bytes
    return round(blocks * _LEVELDB_INDEX_ENTRY_BYTES + rows * _LEVELDB_FILTER_BYTES_A_ROW)


def _closed_table_share(rows: float, record_bytes: int) -> float:
    """Returns the share of a machine's rows that lie in tables which LevelDB must open first."""
    tables = rows * record_bytes / LEVELDB_TABLE_BYTES
    return max(0.0, 1.0 - LEVELDB_OPEN_TABLES / tables) if tables > 0 else 0.0


def _with_memory_mode(
    accesses: list[DeviceAccess],
    placed: DeviceAssignment,
    placement: Placement,
    shape: RowShape,
    sockets: float,  # of all machines
    parts: CacheParts,
) -> tuple[DeviceAccess, ...]:
    """Sets the share of the accesses to a memory in memory mode that miss its DRAM cache."""
    cached = placed.index_device
    cache = cached.cache
    if cache is None:
        return tuple(accesses)
    # The rows that lie in this memory, those of the first tier's ranks, compete for its cache.
    first_tier = placement.popularity.head(max(1, placement.tier_rows[0]))
    misses = placement.hit_rates()[0] * direct_mapped_misses(
        first_tier,
        touched_bytes(shape),
        int(cache.size_bytes * sockets * parts.memory),
        int(cached.cpu_cache_bytes * sockets * parts.cpu),
    )
    uncached = sum(
        access.rate for access in accesses if access.tier == 0 and access.access is Access.LOAD
    )
    miss = min(1.0, misses / uncached) if uncached > 0 else 0.0
    slots = 1 - shape.weights_bytes / shape.row_bytes

    def miss_share(access: DeviceAccess) -> float:
        if access.device != cached.name:
            return 0.0
        # The look-up already brought the weights' lines into the DRAM cache and the CPU's cache.
        return miss * slots if access.access is Access.UPDATE else miss

    return tuple(replace(access, memory_miss=miss_share(access)) for access in accesses)
