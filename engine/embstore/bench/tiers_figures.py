"""The options and the results of the tiers suite."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from embstore.bench.arguments import CLOCK, SEED, SKEW, Argument, count, fraction, path
from embstore.bench.measure import Figure
from embstore.bench.stores import STORE_NAMES, YARDSTICK, Sizes


@dataclass(frozen=True)
class TiersOptions:
    """The suite's options. Quote results with the defaults."""

    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 1_000_000
    dims: Annotated[tuple[int, ...], count("dims of tables (default: 16)", "dim")] = (16,)
    first_tier: Annotated[
        float, fraction("part of the rows in the first tier (default: %(default)s)")
    ] = 0.1
    second_of_three: float = 0.3  # part of the rows, in the second of three tiers
    # 4096 samples of 26 categorical columns
    batch_size: Annotated[int, count("number of ids in a batch (default: %(default)s)")] = 106_496
    skew: Annotated[float, SKEW] = 1.05
    warm_up_batches: Annotated[
        int, count("number of batches that fill the caches (default: %(default)s)")
    ] = 10
    # After these batches serving and steps are measured once more: a row has then been looked up
    # some twelve times.
    served_batches: Annotated[
        int,
        count(
            "number of batches that are served, so that rows have settled, before serving and "
            "steps are measured once more (default: %(default)s)"
        ),
    ] = 120
    batches: Annotated[int, count("number of batches in a round (default: %(default)s)")] = 5
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 3
    moved_rows: int = 16_384  # batch of tiers by themselves: as large as a batch of evictions
    stores: Annotated[
        tuple[str, ...],
        Argument(
            f"stores to measure beside {YARDSTICK} (default: all)",
            flag="store",
            choices=STORE_NAMES,
        ),
    ] = STORE_NAMES
    path: Annotated[Path | None, path()] = None
    direct: Annotated[
        bool, Argument("direct I/O for SSDHASH without a table; LevelDB has none")
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
    """The results of one store; the ratios of its figures are to DRAM in the same rounds."""

    dim: int
    store: str
    training_lookups_per_s: Figure  # ids; nothing moves
    lookups_per_s: Figure  # ids, for serving; until the moves that they cause are done
    steps_per_s: Figure  # batches
    # As the last two, but after TiersOptions.served_batches; None if rows don't move.
    settled_lookups_per_s: Figure | None
    settled_steps_per_s: Figure | None
    # Hit rates of the ids looked up, in the rounds of each operation; None: not reported.
    training_lookup_hit_rate: float | None
    lookup_hit_rate: float | None
    step_hit_rate: float | None
    settled_lookup_hit_rate: float | None
    # Bytes per row: growth of the process since before the store was loaded (without pages of
    # files, so without PMem in files); the index's part of that; and bytes on disk.
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
    """The results of a tier in files by itself; ratios are to plain LevelDB in the same rounds."""

    dim: int
    tier: str
    operation: str  # "read": misses; "write": evictions of rows that came up before
    rows_per_s: Figure
    file_bytes: float  # per row, at the end


@dataclass(frozen=True)
class Goal:
    """A figure and its aim."""

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
        # No goals with direct I/O, since LevelDB can't bypass the page cache.
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
