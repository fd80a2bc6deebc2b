"""`memory`: DRAM bytes a row, in each tier that rows can lie in.

Each tier's table is made and filled in a process of its own, with all rows but a few in that tier.
The figure is the growth of the process's memory without pages of files: the index, the ranks of
rows, buffers. Some of it doesn't grow with the rows: LevelDB buffers up to 32 MiB per variable.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from rich.table import Table

from embstore.bench.arguments import KEY_KIND, SEED, Argument, count, path
from embstore.bench.file_systems import file_system_of
from embstore.bench.memory_process import BATCH_ROWS, Request, measure_in_separate_process
from embstore.bench.report import Report
from embstore.bench.stores import UnavailableError
from embstore.bench.tables import number, reached, table, unavailable_table
from embstore.bench.watcher import Watcher
from embstore.errors import InvalidArgumentError

AIMED_AT_DIM = 16
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"}


@dataclass(frozen=True)
class TierOfRows:
    """The tier that has the rows of a measurement."""

    storage_type: str
    tier: int
    kind: str
    at_most: dict[str, float]  # aim for DRAM bytes per row, by kind of keys, at AIMED_AT_DIM

    @property
    def name(self) -> str:
        return f"{self.kind} of {self.storage_type}"


LAST, RANKED = {"hashed": 26.0, "dense": 16.0}, {"hashed": 40.0, "dense": 30.0}
TIERS = (
    TierOfRows("PMEM_LIBPMEM", 0, "PMEM", LAST),
    TierOfRows("DRAM_PMEM", 1, "PMEM", LAST),
    TierOfRows("DRAM_SSDHASH", 1, "SSDHASH", LAST),
    TierOfRows("DRAM_LEVELDB", 1, "LEVELDB", LAST),
    TierOfRows("DRAM_PMEM_SSDHASH", 1, "PMEM", RANKED),
)


STORAGE_TYPES = tuple(tier.storage_type for tier in TIERS)


@dataclass(frozen=True)
class MemoryOptions:
    """The suite's options. Quote results with the defaults."""

    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 2_000_000
    dim: Annotated[int, count("dim of tables (default: %(default)s)")] = AIMED_AT_DIM
    storage_types: Annotated[
        tuple[str, ...],
        Argument(
            "storage types to measure (default: all of these)",
            flag="store",
            choices=STORAGE_TYPES,
        ),
    ] = STORAGE_TYPES
    path: Annotated[
        Path | None,
        path("folder on a disk for temporary files (default: the system's temporary folder)"),
    ] = None
    seed: Annotated[int, SEED] = 1
    keys: Annotated[str, KEY_KIND] = "hashed"

    @property
    def first_tier_rows(self) -> int:
        """Few rows beside those below, because the first tier's memory counts too."""
        return min(max(256, self.rows // 1000), self.rows // 2, BATCH_ROWS)


@dataclass(frozen=True)
class MemoryResult:
    storage_type: str
    tier: str
    rows: int  # in the tier
    dram_bytes: float  # per row
    index_bytes: float  # per row, a part of dram_bytes
    at_most: float | None  # the aim; None if it is for another dim

    @property
    def reached(self) -> bool | None:
        return None if self.at_most is None else self.dram_bytes <= self.at_most


@dataclass(frozen=True)
class Unavailable:
    storage_type: str
    reason: str


@dataclass(frozen=True)
class MemoryResults:
    tiers: list[MemoryResult] = field(default_factory=list)
    unavailable: list[Unavailable] = field(default_factory=list)


def tiers_of(options: MemoryOptions) -> list[TierOfRows]:
    return [tier for tier in TIERS if tier.storage_type in options.storage_types]


def measure(options: MemoryOptions, watcher: Watcher) -> MemoryResults:
    """Runs the suite. Leaves no file behind. Raises InvalidArgumentError if files would lie in
    memory, or there are fewer rows than tiers."""
    if options.rows < 2:
        raise InvalidArgumentError(f"--rows {options.rows}: must be 2 or more, one for each tier")
    kind = file_system_of(options.path)
    if kind in _MEMORY_FILE_SYSTEMS:
        raise InvalidArgumentError(
            f"--path: {options.path or tempfile.gettempdir()} is on {kind}, which is memory, so "
            "rows in files would count as DRAM; give a folder on a disk"
        )
    results = MemoryResults()
    for tier in tiers_of(options):
        watcher.begin(tier.name)
        try:
            results.tiers.append(_measure(tier, options))
        except UnavailableError as error:
            results.unavailable.append(Unavailable(tier.storage_type, str(error)))
        watcher.advance()
    return results


def _measure(tier: TierOfRows, options: MemoryOptions) -> MemoryResult:
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=options.path) as folder:
        measured = measure_in_separate_process(
            Request(
                storage_type=tier.storage_type,
                tier=tier.tier,
                rows=options.rows,
                first_tier_rows=options.first_tier_rows,
                dim=options.dim,
                seed=options.seed,
                keys=options.keys,
                folder=folder,
            )
        )
    min_rows = options.rows if tier.tier == 0 else options.rows - options.first_tier_rows
    if measured.rows < min_rows:
        raise RuntimeError(
            f"{measured.rows} rows lie in the tier {tier.name}, not {min_rows}: its figures would "
            "mean nothing"
        )
    return MemoryResult(
        storage_type=tier.storage_type,
        tier=tier.kind,
        rows=measured.rows,
        dram_bytes=measured.dram_bytes / measured.rows,
        index_bytes=measured.index_bytes / measured.rows,
        at_most=tier.at_most[options.keys] if options.dim == AIMED_AT_DIM else None,
    )


def to_json(options: MemoryOptions, results: MemoryResults) -> dict[str, object]:
    return {
        "file_system": file_system_of(options.path),
        "tiers": [{**asdict(tier), "reached": tier.reached} for tier in results.tiers],
        "unavailable": [asdict(one) for one in results.unavailable],
    }


OPTIONS = MemoryOptions


def advance_count(options: MemoryOptions) -> int:
    return len(tiers_of(options))


def run(options: MemoryOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    tables = [_tier_table(options, results)]
    if results.unavailable:
        missing = [(one.storage_type, one.reason) for one in results.unavailable]
        tables.append(unavailable_table(("store",), missing))
    return Report(tables, to_json(options, results))


def _tier_table(options: MemoryOptions, results: MemoryResults) -> Table:
    rows = [
        (
            tier.storage_type,
            tier.tier,
            number(tier.dram_bytes, 1),
            number(tier.index_bytes, 1),
            "-" if tier.at_most is None else f"≤ {tier.at_most:g}",
            "" if tier.reached is None else reached(tier.reached),
        )
        for tier in results.tiers
    ]
    return table(
        f"DRAM a row of dim {options.dim}, {options.rows:,} rows, {options.keys} keys",
        ("store", "rows lie in"),
        ("dram bytes/row", "index", "aim"),
        rows,
        caption="growth of the process's memory without pages of files; index: a part of that. "
        "LEVELDB has up to 32 MiB of buffers for any number of rows",
        remark=True,
        one_line="names",
    )
