"""`rows`: rows in memory, against PyTorch and a hand-written loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Annotated

import numpy as np
from rich.table import Table

from embstore.bench.arguments import CLOCK, KEY_KIND, SEED, count
from embstore.bench.contenders import (
    KEYS,
    Columns,
    Contender,
    Embstore,
    HandWritten,
    Rows,
    SharedCalls,
    TorchSparse,
)
from embstore.bench.measure import Figure, Work, compare
from embstore.bench.report import Report
from embstore.bench.tables import number, span, table
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

OPERATIONS = ("lookup", "lookup + Adagrad")
# In a round of fewer ids, much of the time goes into filling caches that other contenders use, too.
IDS_IN_A_ROUND = 500_000


@dataclass(frozen=True)
class RowsOptions:
    """The suite's options. Quote results with the defaults."""

    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 2_000_000
    dims: Annotated[tuple[int, ...], count("dims of tables (default: 16 64)", "dim")] = (16, 64)
    # ids: 4096 samples of 26 categorical columns; 512 samples; 1, for the fixed cost of a call
    batch_sizes: Annotated[
        tuple[int, ...],
        count("numbers of ids in a call (default: 106496 13312 1)", "batch-size"),
    ] = (106_496, 13_312, 1)
    zipf_exponent: float = 1.05
    threads: Annotated[tuple[int, ...], count("numbers of calling threads (default: 1 2)")] = (1, 2)
    batches: Annotated[
        int, count("least number of batches in a round, for each thread (default: %(default)s)")
    ] = 10
    small_batches: Annotated[
        int,
        count(
            "greatest number of batches in a round; smaller numbers do if a round has half a "
            "million ids (default: %(default)s)"
        ),
    ] = 10_000
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 7
    seed: Annotated[int, SEED] = 1
    keys: Annotated[str, KEY_KIND] = "hashed"
    clock: Annotated[str, CLOCK] = "wall"

    def batches_of(self, batch_size: int) -> int:
        """Returns the number of batches in a round for each thread."""
        return max(self.batches, min(self.small_batches, IDS_IN_A_ROUND // batch_size))


@dataclass(frozen=True)
class RowsResult:
    operation: str
    dim: int
    threads: int
    batch_size: int
    contender: str
    ids_per_s: Figure

    @property
    def us_per_batch(self) -> float:
        """Microseconds that a thread takes for a batch, from the median rate."""
        return 1e6 * self.threads * self.batch_size / self.ids_per_s.median


def advance_count(options: RowsOptions) -> int:
    """Returns how often the watcher advances."""
    settings = len(options.dims) * len(options.threads) * len(options.batch_sizes)
    return settings * len(OPERATIONS) * (options.rounds + 1)


def measure(options: RowsOptions, watcher: Watcher) -> list[RowsResult]:
    results: list[RowsResult] = []
    for dim in options.dims:
        keys = KEYS[options.keys](options.rows, options.seed)
        embstore, columns, torch = Embstore(keys, dim), Columns(keys, dim), TorchSparse(keys, dim)
        contenders: list[Contender] = [
            embstore,
            columns,
            HandWritten(keys, dim),
            torch,
            SharedCalls(embstore),
            SharedCalls(columns),
            SharedCalls(torch),
        ]
        for contender in contenders:
            contender.load()
        for threads, batch_size, operation in product(
            options.threads, options.batch_sizes, OPERATIONS
        ):
            setting = f"dim {dim}: {threads} threads, {batch_size:,} ids, {operation}"
            watcher.begin(setting)
            work = dict(_work(options, contenders, dim, threads, batch_size, operation))
            figures = compare(
                work,
                threads * options.batches_of(batch_size) * batch_size,
                yardstick=HandWritten.name,
                rounds=options.rounds,
                on_round=watcher.advance,
                clock=options.clock,
            )
            for name, figure in figures.items():
                watcher.show_result(f"{setting}, {name}: {figure.as_text(1e6, 'M ids/s')}")
                results.append(RowsResult(operation, dim, threads, batch_size, name, figure))
        for contender in contenders:
            contender.close()
    return results


def _work(
    options: RowsOptions,
    contenders: list[Contender],
    dim: int,
    threads: int,
    batch_size: int,
    operation: str,
) -> Iterator[tuple[str, list[Work]]]:
    """Yields every contender that supports the operation, with a function for each thread. All
    contenders get the same ranks.
    """
    random = np.random.default_rng(options.seed)
    shape = (batch_size, dim)
    grads = random.standard_normal(shape, np.float32) * np.float32(0.01)
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    batches = options.batches_of(batch_size)
    ranks = [zipf.draw(batches * batch_size).reshape(batches, batch_size) for _ in range(threads)]
    for contender in contenders:
        if operation != "lookup" and threads > 1 and not contender.trains_in_threads:
            continue
        if threads > 1 and isinstance(contender, SharedCalls):
            continue
        if batch_size < contender.min_batch_size:
            continue
        yield (
            contender.name,
            [
                partial(
                    run_batches,
                    contender,
                    operation,
                    [contender.ids_of(batch) for batch in own],
                    np.empty(shape, np.float32),
                    grads,
                )
                for own in ranks
            ],
        )


def run_batches(
    contender: Contender, operation: str, batches: list[object], out: Rows, grads: Rows
) -> None:
    for ids in batches:
        if operation == "lookup":
            contender.lookup(ids, out)
        else:
            contender.train(ids, out, grads)


def to_json(results: list[RowsResult]) -> dict[str, object]:
    return {
        "yardstick": HandWritten.name,
        "results": [{**asdict(result), "us_per_batch": result.us_per_batch} for result in results],
    }


OPTIONS = RowsOptions


def run(options: RowsOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    return Report([_table(results)], to_json(results))


def _table(results: list[RowsResult]) -> Table:
    rows = [
        (
            str(result.dim),
            str(result.threads),
            f"{result.batch_size:,}",
            result.operation,
            result.contender,
            f"{result.ids_per_s.median / 1e6:.2f}",
            span(result.ids_per_s, 1),
            f"{result.us_per_batch:,.1f}",
            number(result.ids_per_s.ratio),
        )
        for result in results
    ]
    return table(
        "Million ids/s (median; min to max) and ratio to the hand-written loop",
        ("dim", "threads", "ids", "operation", "contender"),
        ("M ids/s", "range", "us a batch", "ratio"),
        rows,
        section=4,
    )
