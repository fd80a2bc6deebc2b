"""`tiers`: tables larger than their first tier, on every storage type and on key-value stores.

Each dim has two parts. First each store is measured in turn, beside a variable in DRAM that does
the same in the same rounds. Then the tiers in files are measured without a table, beside plain
LevelDB: the reads of a batch of misses, and the writes of evictions.

Files are read and written through the page cache. As long as they fit into memory, the figures show
the cost of each store's own work, not the device's. `direct` bypasses the page cache for SSDHASH
without a table only, since the yardsticks have no such choice.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from embstore.bench import file_tier_rounds, store_rounds
from embstore.bench.contenders import scrambled_keys
from embstore.bench.file_systems import file_system_of
from embstore.bench.measure import Figure
from embstore.bench.report import Report
from embstore.bench.store_rounds import LoadedStore
from embstore.bench.stores import YARDSTICK, UnavailableError, tier_count
from embstore.bench.tables import goal_table, number, span, table, unavailable_table
from embstore.bench.tiers_figures import (
    FileTierResult,
    StoreResult,
    TiersOptions,
    TiersResults,
    Unavailable,
)
from embstore.bench.watcher import Watcher
from embstore.errors import InvalidArgumentError


def advance_count(options: TiersOptions) -> int:
    """Returns how often the watcher advances if every store is available."""
    stores = _without_yardstick(options) or [YARDSTICK]
    return len(options.dims) * (
        1
        + sum(store_rounds.advance_count(options, name) for name in stores)
        + file_tier_rounds.advance_count(options)
    )


def measure(options: TiersOptions, watcher: Watcher) -> TiersResults:
    """Runs the suite. Leaves no file behind, however it ends. Raises InvalidArgumentError for too
    few rows.
    """
    _check_rows(options)
    results = TiersResults()
    traffic = store_rounds.Traffic(options)
    for dim in options.dims:
        _measure_stores(options, dim, traffic, results, watcher)
        with _folder(options) as folder:
            file_tiers, unavailable = file_tier_rounds.run(options, dim, folder, watcher)
        results.file_tiers.extend(file_tiers)
        results.unavailable.extend(unavailable)
    return results


def _check_rows(options: TiersOptions) -> None:
    sizes = options.sizes(options.dims[0])
    said = f"--rows {options.rows}, --first-tier {options.first_tier:g}"
    if sizes.first_tier_rows >= options.rows:
        raise InvalidArgumentError(
            f"{said}: leave no row below the first tier; give more rows or a smaller part"
        )
    upper_rows = sizes.first_tier_rows + sizes.second_of_three_rows
    for name in options.stores:
        if tier_count(name) == 3 and upper_rows >= options.rows:
            raise InvalidArgumentError(
                f"{said}: leaves the last of {name}'s three tiers no row beside the second's "
                f"{sizes.second_of_three_rows}; give a smaller part or more rows, or other stores "
                "with --store"
            )


def _measure_stores(
    options: TiersOptions,
    dim: int,
    traffic: store_rounds.Traffic,
    results: TiersResults,
    watcher: Watcher,
) -> None:
    keys = scrambled_keys(options.rows, options.seed)

    def load(name: str, folder: Path) -> LoadedStore:
        watcher.begin(f"dim {dim}: {name}, loading")
        store = LoadedStore(name, options, dim, keys, folder)
        watcher.advance()
        return store

    with _folder(options) as dram_folder, closing(load(YARDSTICK, dram_folder)) as dram:
        for name in _without_yardstick(options):
            with _folder(options) as folder:
                try:
                    loaded = load(name, folder)
                except UnavailableError as error:
                    results.unavailable.append(Unavailable(dim, name, str(error)))
                    continue
                with closing(loaded) as store:
                    store_rounds.run([dram, store], options, traffic, watcher)
                    results.stores.append(store.result(beside=dram))
                    watcher.show_result(_summary(results.stores[-1]))
        if options.stores == (YARDSTICK,):
            store_rounds.run([dram], options, traffic, watcher)
        if dram.was_measured and YARDSTICK in options.stores:
            results.stores.append(dram.result(beside=dram))


def _summary(result: StoreResult) -> str:
    figures = [
        f"look-ups to train {result.training_lookups_per_s.as_text(1e6, 'M ids/s')}",
        f"to serve {result.lookups_per_s.as_text(1e6, 'M ids/s')}",
        result.steps_per_s.as_text(1, "steps/s"),
    ]
    if result.settled_lookups_per_s is not None:
        figures.append(f"to serve, settled {result.settled_lookups_per_s.as_text(1e6, 'M ids/s')}")
    if result.settled_steps_per_s is not None:
        figures.append(f"settled {result.settled_steps_per_s.as_text(1, 'steps/s')}")
    return f"dim {result.dim}: {result.store}: {', '.join(figures)}"


def _without_yardstick(options: TiersOptions) -> list[str]:
    return [name for name in options.stores if name != YARDSTICK]


@contextmanager
def _folder(options: TiersOptions) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=options.path) as folder:
        yield Path(folder)


def to_json(options: TiersOptions, results: TiersResults) -> dict[str, object]:
    return {
        "yardstick": YARDSTICK,
        "file_yardstick": file_tier_rounds.YARDSTICK,
        "file_system": file_system_of(options.path),
        **asdict(results),
        "goals": [
            {**asdict(goal), "reached": goal.reached} for goal in results.goals(options.direct)
        ],
    }


OPTIONS = TiersOptions


def run(options: TiersOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    tables = [
        _rate_table(results.stores, options),
        _byte_table(results.stores),
        _file_tier_table(results.file_tiers, options.direct),
        goal_table(results.goals(options.direct), 2),
    ]
    if results.unavailable:
        missing = [(str(one.dim), one.store, one.reason) for one in results.unavailable]
        tables.append(unavailable_table(("dim", "store"), missing))
    return Report(tables, to_json(options, results))


def _rate_table(results: list[StoreResult], options: TiersOptions) -> Table:
    rows = [
        (
            str(result.dim),
            result.store,
            _rate(result.training_lookups_per_s, 1e6),
            _rate(result.lookups_per_s, 1e6),
            _rate(result.settled_lookups_per_s, 1e6),
            _hits(result),
            _rate(result.steps_per_s, 1),
            _rate(result.settled_steps_per_s, 1),
        )
        for result in results
    ]
    return table(
        f"Zipf({options.skew:g}) ids: medians (ratio to {YARDSTICK}'s in the same rounds)",
        ("dim", "store"),
        ("train M/s", "serve M/s", "settled", "hits", "step/s", "settled"),
        rows,
        caption="train, serve: ids/s looked up, in serving until the moves that follow are done; "
        "step: lookup and Adagrad, batches/s; settled: the same after "
        f"{options.served_batches} more batches were served; hits: hit rate of the first tier in "
        "serving, before / after settling",
        one_line="all",
    )


def _byte_table(results: list[StoreResult]) -> Table:
    rows = [
        (
            str(result.dim),
            result.store,
            number(result.memory_bytes, 0),
            number(result.index_bytes, 1),
            number(result.file_bytes, 0),
        )
        for result in results
    ]
    return table(
        "Bytes a row",
        ("dim", "store"),
        ("memory", "index", "files"),
        rows,
        caption="memory: of the process, without pages of files; index: its part of that",
    )


def _file_tier_table(results: list[FileTierResult], direct: bool) -> Table:
    rows = [
        (
            str(result.dim),
            result.operation,
            result.tier,
            f"{result.rows_per_s.median / 1e6:.3f}",
            span(result.rows_per_s, 2),
            number(result.rows_per_s.ratio),
            number(result.file_bytes, 0),
        )
        for result in results
    ]
    return table(
        "Tiers in files by themselves: million rows/s (median; min to max), and ratio to "
        f"{file_tier_rounds.YARDSTICK}",
        ("dim", "operation", "tier"),
        ("M rows/s", "range", "ratio", "files B/row"),
        rows,
        caption="SSDHASH past the page cache (O_DIRECT), LevelDB through it"
        if direct
        else "through the page cache: what the stores cost, not what the device does",
        section=2,
    )


def _rate(figure: Figure | None, unit: float) -> str:
    return "-" if figure is None else f"{figure.median / unit:.3g} ({number(figure.ratio)})"


def _hits(result: StoreResult) -> str:
    rates = (result.lookup_hit_rate, result.settled_lookup_hit_rate)
    return " / ".join(f"{rate:.1%}" for rate in rates if rate is not None) or "-"
