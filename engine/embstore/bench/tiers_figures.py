"""What the tiers' suite is asked for, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from embstore.bench.arguments import CLOCK, SEED, SKEW, Argument, count, fraction, path
from embstore.bench.measure import Figure
from embstore.bench.stores import STORE_NAMES, YARDSTICK, Sizes


@dataclass(frozen=True)
class TiersOptions:
    """What the suite runs; the defaults are the ones to quote."""

    rows: Annotated[int, count("rows a table")] = 1_000_000
    dims: Annotated[tuple[int, ...], count(flag="dim")] = (16,)
    first_tier: Annotated[float, fraction("of the rows")] = 0.1
    second_of_three: float = 0.3  # of the rows, where there are three tiers
    batch_size: Annotated[int, count("ids")] = 106_496  # 4096 samples of 26 categorical columns
    skew: Annotated[float, SKEW] = 1.05
    warm_up_batches: Annotated[int, count("to fill caches")] = 10
    # Before serving and steps are measured once more: a row has been asked for some twelve times
    # then.
    served_batches: Annotated[
        int,
        count(
            "to serve, so that rows have settled before serving and steps are measured once more"
        ),
    ] = 120
    batches: Annotated[int, count("a round")] = 5
    rounds: Annotated[int, count()] = 3
    moved_rows: int = 16_384  # a batch of the tiers by themselves: as many as are evicted at once
    stores: Annotated[
        tuple[str, ...],
        Argument(
            f"which to measure beside {YARDSTICK}; all by default",
            flag="store",
            choices=STORE_NAMES,
        ),
    ] = STORE_NAMES
    path: Annotated[Path | None, path()] = None
    direct: Annotated[
        bool, Argument("SSDHASH by itself goes past the page cache; LevelDB can't")
    ] = False
    clock: Annotated[str, CLOCK] = "wall"
    seed: Annotated[int, SEED] = 1

    def sizes(self, dim: int) -> Sizes:
        return Sizes(
            rows=self.rows,
            first_tier_rows=max(1, round(self.first_tier * self.rows)),
            second_of_three_rows=max(1, round(self.second_of_three * self.rows)),
            dim=dim,
        )


@dataclass(frozen=True)
class StoreResult:
    """What one store did; the ratios of its figures are to DRAM in the same rounds."""

    dim: int
    store: str
    training_lookups_per_s: Figure  # ids; nothing moves
    lookups_per_s: Figure  # ids, for serving; with the moves that they cause, to the end
    steps_per_s: Figure  # batches
    # The same as the last two after TiersOptions.served_batches; None where rows don't move.
    settled_lookups_per_s: Figure | None
    settled_steps_per_s: Figure | None
    # Of the ids looked up, in the rounds of each operation; None where the store doesn't tell.
    training_lookup_hit_rate: float | None
    lookup_hit_rate: float | None
    step_hit_rate: float | None
    settled_lookup_hit_rate: float | None
    # Bytes a row: of the process beyond what it had before the store was loaded (without pages of
    # files, so without PMem in files); of the index, which is a part of that; and on disk.
    memory_bytes: float
    index_bytes: float | None
    file_bytes: float


@dataclass(frozen=True)
class Unavailable:
    dim: int
    store: str
    reason: str


@dataclass(frozen=True)
class FileTierResult:
    """A tier in files by itself; the figure's ratio is to plain LevelDB in the same rounds."""

    dim: int
    tier: str
    operation: str  # "read": misses; "write": evictions of rows that came up before
    rows_per_s: Figure
    file_bytes: float  # a row, after all of it


@dataclass(frozen=True)
class Goal:
    """What a figure is meant to reach."""

    dim: int
    what: str
    at_least: float | None
    at_most: float | None
    value: float

    @property
    def reached(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


@dataclass(frozen=True)
class TiersResults:
    stores: list[StoreResult] = field(default_factory=list)
    unavailable: list[Unavailable] = field(default_factory=list)
    file_tiers: list[FileTierResult] = field(default_factory=list)

    def goals(self, direct: bool) -> list[Goal]:
        goals = []
        # LevelDB can't go past the page cache.
        for tier in () if direct else self.file_tiers:
            if tier.tier == "SSDHASH" and tier.rows_per_s.ratio is not None:
                wanted = {"read": 5.0, "write": 3.0}[tier.operation]
                what = f"rows that SSDHASH {tier.operation}s, to LevelDB"
                goals.append(Goal(tier.dim, what, wanted, None, tier.rows_per_s.ratio))
        for store in self.stores:
            if store.store not in ("DRAM_PMEM", "DRAM_SSDHASH"):
                continue
            wanted = {"DRAM_PMEM": 0.6, "DRAM_SSDHASH": 0.5}[store.store]
            for purpose, figure in (
                ("training", store.training_lookups_per_s),
                ("settled serving", store.settled_lookups_per_s),
            ):
                if figure is not None and figure.ratio is not None:
                    what = f"lookups of {store.store} in {purpose}, to DRAM"
                    goals.append(Goal(store.dim, what, wanted, None, figure.ratio))
            if store.store == "DRAM_SSDHASH" and store.index_bytes is not None:
                goals.append(Goal(store.dim, "index, bytes a row", None, 24.0, store.index_bytes))
        return goals
