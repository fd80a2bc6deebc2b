"""Train embedding tables without a model: each row learns values that follow from its key.

There are no dense layers, so this needs no PyTorch and tables can be large. Every key occurs once,
then popular keys occur again and again, with the skew of a recommender's traffic (see `synthetic`).
Two runs of the same options give the same bits, whatever the storage type.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.workloads.evidence import forget_cached_pages
from pmemlab.workloads.hashing import splitmix64
from pmemlab.workloads.keeping import PeriodicSaves, check_steps_left
from pmemlab.workloads.run import ColdRows, LookupClock, PlainCount, Run
from pmemlab.workloads.steps import RunOptions, TrainingSubject, run_steps
from pmemlab.workloads.synthetic import draw_ranks
from pmemlab.workloads.table_memory import on_host, on_table_memory

__all__ = ["Rows", "TableOptions", "train"]

LEARNING_RATE: Final = 0.05

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class TableOptions:
    """Options of the tables and of their training.

    rows: number of keys of each table. steps: skewed batches, after those that have every key once.
    filter_frequency: occurrences before a key gets a row, counted by a CounterFilter, or by a
    CBFFilter with `counts_by_sketch`. 0: no filter. cold_lookups: number of rows of each table's
    last tier to look up at the end.
    """

    tables: int
    rows: int
    dim: int
    steps: int
    batch_size: int
    seed: int
    filter_frequency: int = 0
    counts_by_sketch: bool = False
    cold_lookups: int = 0


@dataclass(frozen=True)
class Rows:
    """The rows of each table after a run, to compare other runs with; keys ascending."""

    keys: list[Keys]
    values: list[NDArray[np.float32]]


def train(
    storage: es.StorageOption,
    table_options: TableOptions,
    options: RunOptions,
    *,
    restore: Path | None = None,
    save: Path | None = None,
    stop_after: int | None = None,
    checkpointing: PeriodicSaves | None = None,
    expected_rows: Rows | None = None,
) -> tuple[Run, Rows]:
    """Train; return the run's result and the tables' rows.

    restore: a save to resume from. save: where to save at the end. stop_after: number of batches,
    counted from the very first, after which the run ends. checkpointing: regular saves; the run
    resumes from the newest. expected_rows: from a run of the same batches. With rates_only the
    returned rows are empty; with bits_only the rows aren't checked here.

    Raises what `run_steps` does, and DataError for a save that already has all the steps.
    """
    with _tables(storage, table_options) as tables:
        batches = _Batches(table_options)
        last = min(stop_after or batches.count, batches.count)
        kept_in = checkpointing.folder if checkpointing else restore
        first = es.restore(restore, tables) if restore else 0
        if checkpointing:
            first = checkpointing.restore(tables)
        if kept_in:
            check_steps_left(kept_in, first, last)
        clock = LookupClock()
        exports: list[Mapping[str, NDArray[Any]]] = []

        def step(index: int) -> float:
            total = 0.0
            for number, variable in enumerate(tables):
                keys = batches.keys(number, index)
                batch = on_table_memory(variable, keys)
                started = time.perf_counter()
                rows = on_host(variable.lookup(batch, train=True))
                clock.seconds += time.perf_counter() - started
                clock.rows += keys.size
                errors = rows - _targets(keys, table_options.dim)
                total += float(np.square(errors, dtype=np.float64).mean())
                variable.apply_gradients(batch, on_table_memory(variable, errors))
            return total / len(tables)

        def exported() -> list[Mapping[str, NDArray[Any]]]:
            """Returns every table's export. To be called once: it reads every row, also those on
            disk.
            """
            exports.extend(variable.export() for variable in tables)
            return exports

        trained = TrainingSubject(
            tables,
            table_options.tables * table_options.batch_size,
            step,
            clock,
            save_if_due=(lambda done: checkpointing.save_if_due(tables, done))
            if checkpointing
            else None,
            exports=exported,
        )
        # Only the skewed batches are timed. If the run has none, its first batch is the warm-up.
        meeting = batches.meeting - first
        warm_up_steps = meeting if 0 < meeting < last - first else 1
        run = run_steps(trained, storage, range(first, last), options, warm_up_steps)
        learnt = Rows([e["keys"] for e in exports], [e["values"] for e in exports])
        if not (options.placements.rates_only or options.bits_only):
            run = replace(
                run,
                cold=_look_up_cold_rows(tables, table_options, expected_rows or learnt),
                plain=_compare_with_plain_count(exports, batches, last),
            )
        if save:
            es.save(save, tables, last)
    return run, learnt


@contextlib.contextmanager
def _tables(
    storage: es.StorageOption, options: TableOptions
) -> Iterator[list[es.EmbeddingVariable]]:
    filter_option: es.CounterFilter | es.CBFFilter | None = None
    if options.filter_frequency and options.counts_by_sketch:
        filter_option = es.CBFFilter(options.filter_frequency, 2 * options.rows, 0.001)
    elif options.filter_frequency:
        filter_option = es.CounterFilter(options.filter_frequency)
    ev_option = es.EmbeddingVariableOption(storage_option=storage, filter_option=filter_option)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                es.get_embedding_variable(
                    f"table_{number}",
                    embedding_dim=options.dim,
                    initializer=es.initializers.TruncatedNormal(
                        stddev=options.dim**-0.5, seed=options.seed + number
                    ),
                    optimizer=es.optimizers.Adagrad(
                        learning_rate=LEARNING_RATE, initial_accumulator_value=0.1
                    ),
                    ev_option=ev_option,
                )
            )
            for number in range(options.tables)
        ]


class _Batches:
    """Batches by their number: first those that have every key once, then skewed ones."""

    def __init__(self, options: TableOptions) -> None:
        self.options = options
        self.meeting = -(-options.rows // options.batch_size)
        self.count = self.meeting + options.steps
        self._orders = [
            np.random.default_rng((options.seed, table)).permutation(options.rows)
            for table in range(options.tables)
        ]

    def keys(self, table: int, index: int) -> Keys:
        """Returns a batch's keys, int64 (batch_size,), or fewer in the last batch before the skewed
        ones.
        """
        options = self.options
        if index < self.meeting:
            ranks = self._orders[table][
                index * options.batch_size : (index + 1) * options.batch_size
            ]
        else:
            random = np.random.default_rng((options.seed, table, index))
            ranks = draw_ranks(random.random(options.batch_size), options.rows)
        return self.keys_of_ranks(table, ranks)

    def keys_of_ranks(self, table: int, ranks: NDArray[np.int64]) -> Keys:
        keys = splitmix64(self.options.seed, ranks.astype(np.int64) + (table << 32))
        return keys.view(np.int64)


def _targets(keys: Keys, dim: int) -> NDArray[np.float32]:
    """Returns the values that each key's row shall learn: float32 (keys, dim) in [-0.5, 0.5]."""
    bits = keys.view(np.uint64)[:, None] >> np.arange(dim, dtype=np.uint64) % np.uint64(56)
    values: NDArray[np.float32] = (bits & np.uint64(255)).astype(np.float32)
    return values / np.float32(255) - np.float32(0.5)


def _look_up_cold_rows(
    tables: list[es.EmbeddingVariable], options: TableOptions, expected: Rows
) -> ColdRows | None:
    last = len(tables[0].stats()["tiers"]) - 1
    if last == 0 or not options.cold_lookups:
        return None
    chosen = []
    for number, keys in enumerate(expected.keys):
        cold = keys[tables[number].lookup_tier(keys) == last]
        random = np.random.default_rng((options.seed, number))
        chosen.append(random.permutation(cold)[: options.cold_lookups])
    forget_cached_pages(tables)
    wrong = 0
    for number, keys in enumerate(chosen):
        rows = tables[number].lookup(keys)
        at = np.searchsorted(expected.keys[number], keys)
        differs = rows.view(np.uint32) != expected.values[number][at].view(np.uint32)
        wrong += int(np.count_nonzero(differs.any(axis=1)))
    return ColdRows(sum(keys.size for keys in chosen), wrong)


def _compare_with_plain_count(
    exports: Sequence[Mapping[str, NDArray[Any]]], batches: _Batches, end: int
) -> PlainCount:
    """Compares the keys that have rows, and their frequencies, with a count without any table."""
    wrong_keys = wrong_frequencies = 0
    options = batches.options
    for number, export in enumerate(exports):
        met = np.concatenate([batches.keys(number, index) for index in range(end)])
        keys, counts = np.unique(met, return_counts=True)
        admitted = counts >= max(options.filter_frequency, 1)
        found = export["keys"]
        missing = np.setdiff1d(keys[admitted], found, assume_unique=True)
        surplus = np.setdiff1d(found, keys[admitted], assume_unique=True)
        wrong_keys += missing.size
        if options.counts_by_sketch:  # it may count too many, never too few
            at = np.searchsorted(keys, found)
            wrong_frequencies += int(np.count_nonzero(export["freqs"] < counts[at]))
            continue
        wrong_keys += surplus.size
        both, ours, theirs = np.intersect1d(keys, found, return_indices=True)
        del both
        wrong_frequencies += int(np.count_nonzero(counts[ours] != export["freqs"][theirs]))
    return PlainCount(wrong_keys, wrong_frequencies)
