"""Measures a job with many tables at servers: its start, its memory and its steps."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.bench.separate_process import call_in_separate_process
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf
from embstore.cluster.ray.cluster import join_or_start
from embstore.server.process_tree import descendants
from embstore.variable import EmbeddingVariable

__all__ = ["ManyTablesOptions", "ManyTablesResult", "measure", "run", "to_json"]

_LEARNING_RATE = 0.1


@dataclass(frozen=True)
class ManyTablesOptions:
    """The suite's options. Quote results with the defaults."""

    tables: int = 26
    rows: int = 20_000  # of each table
    dim: int = 16
    shards: int = 2
    workers: int = 2
    samples: int = 4096  # in a step, of all workers; each has an id in every table
    zipf_exponent: float = 1.05
    steps: int = 10  # in a round
    rounds: int = 5
    seed: int = 1


@dataclass(frozen=True)
class ManyTablesResult:
    """The results; times of steps are medians over the rounds.

    start_s: from the call that starts the workers, on running Ray, until all have all tables.
    pss_bytes: memory of all processes, also Ray's and the caller's; shared memory counts once.
    step_ms: a step of all workers together, each with its part of the samples.
    one_by_one_ms: such a step if the workers look up and train one table after the other.
    here_ms: a step of one process without shards with all samples, in the same rounds.
    ratio: step_ms to here_ms, the median over the rounds.
    """

    start_s: float
    servers: int
    processes: int
    pss_bytes: int
    step_ms: float
    one_by_one_ms: float
    here_ms: float
    ratio: float


def run(options: ManyTablesOptions, watcher: Watcher) -> ManyTablesResult:
    """Measures in a new process, whose memory has nothing of other suites."""
    watcher.begin(f"{options.tables} tables at servers")
    result = ManyTablesResult(**call_in_separate_process(_answer, asdict(options), "many tables"))
    watcher.advance()
    return result


def _answer(options: dict[str, Any]) -> dict[str, Any]:
    return asdict(measure(ManyTablesOptions(**options)))


def measure(options: ManyTablesOptions) -> ManyTablesResult:
    """Measures in this process and those that it starts."""
    join_or_start()
    began = time.time()
    first, *_ = es.cluster.run(_train, options, began, os.getpid(), workers=options.workers)
    assert isinstance(first, ManyTablesResult)
    return first


def to_json(options: ManyTablesOptions, result: ManyTablesResult) -> dict[str, object]:
    return {"options": asdict(options), "result": asdict(result)}


Batch = list[NDArray[np.int64]]  # the ids of each table


def _train(
    worker: es.cluster.Worker, options: ManyTablesOptions, began: float, caller: int
) -> ManyTablesResult | None:
    with contextlib.ExitStack() as stack:
        tables = _tables(options, stack, shards=options.shards)
        start_s = max(worker.meet(time.time())) - began
        if worker.rank == 0:
            _fill(tables, options)
        else:
            _fill(tables, options, share=False)
        batches = _batches(options)
        part = _part(batches, worker.rank, options.workers)
        grads = [np.full((each.size, options.dim), 0.01, np.float32) for each in part[0]]

        def step(ids: Batch) -> None:
            es.lookup_many(tables, ids, train=True)
            es.apply_many(tables, ids, grads)

        def one_by_one(ids: Batch) -> None:
            for table, table_ids, table_grads in zip(tables, ids, grads, strict=True):
                table.lookup(table_ids, train=True)
                table.apply_gradients(table_ids, table_grads)

        _timed(worker, step, part)
        memory = _memory(caller) if worker.rank == 0 else (0, 0)
        local_tables = _tables(options, stack) if worker.rank == 0 else []
        if local_tables:
            _fill(local_tables, options)
        every = [np.full((each.size, options.dim), 0.01, np.float32) for each in batches[0]]

        def local_step(ids: Batch) -> None:
            if local_tables:
                es.lookup_many(local_tables, ids, train=True)
                es.apply_many(local_tables, ids, every)

        _timed(worker, local_step, batches)
        rounds = [
            (
                _timed(worker, step, part),
                _timed(worker, local_step, batches),
                _timed(worker, one_by_one, part[:1]),
            )
            for _ in range(options.rounds)
        ]
        if worker.rank != 0:
            return None
        together, alone, each_table = zip(*rounds, strict=True)
        servers = {shard.process_id for table in tables for shard in _shards(table)}
        return ManyTablesResult(
            start_s=start_s,
            servers=len(servers),
            processes=memory[0],
            pss_bytes=memory[1],
            step_ms=statistics.median(together),
            one_by_one_ms=statistics.median(each_table),
            here_ms=statistics.median(alone),
            ratio=statistics.median(a / b for a, b in zip(together, alone, strict=True)),
        )


def _timed(
    worker: es.cluster.Worker, step: Callable[[Batch], None], batches: Sequence[Batch]
) -> float:
    """Returns this worker's milliseconds per step. All workers begin together."""
    worker.meet()
    began = time.perf_counter()
    for ids in batches:
        step(ids)
    took = time.perf_counter() - began
    worker.meet()
    return took * 1000 / len(batches)


def _tables(
    options: ManyTablesOptions, stack: contextlib.ExitStack, shards: int | None = None
) -> list[EmbeddingVariable]:
    return [
        stack.enter_context(
            es.get_embedding_variable(
                f"column{number}",
                options.dim,
                optimizer=es.optimizers.Adagrad(_LEARNING_RATE),
                shards=shards,
            )
        )
        for number in range(options.tables)
    ]


def _fill(tables: list[EmbeddingVariable], options: ManyTablesOptions, share: bool = True) -> None:
    """Gives every key a row. share: False: this worker takes part with empty batches."""
    keys = np.arange(options.rows if share else 0)
    zeros = np.zeros((keys.size, options.dim), np.float32)
    es.apply_many(tables, [keys] * len(tables), [zeros] * len(tables))


def _batches(options: ManyTablesOptions) -> list[Batch]:
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    return [
        [zipf.draw(options.samples) for _ in range(options.tables)] for _ in range(options.steps)
    ]


def _part(batches: list[Batch], rank: int, workers: int) -> list[Batch]:
    """Returns this worker's samples."""
    return [[np.array_split(ids, workers)[rank] for ids in batch] for batch in batches]


def _shards(table: EmbeddingVariable) -> Sequence[Any]:
    return table.internals.shards


def _memory(process: int) -> tuple[int, int]:
    """Returns the number of the process and its descendants, and their memory in bytes."""
    numbers = {process, *(below.number for below in descendants(process))}
    sizes = [_pss_bytes(number) for number in numbers]
    return sum(size > 0 for size in sizes), sum(sizes)


def _pss_bytes(process: int) -> int:
    """Returns the memory of a process; 0 if it has ended."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    sizes = (line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(next(sizes, "0")) * 1024
