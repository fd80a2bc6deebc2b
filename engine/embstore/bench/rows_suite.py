"""Lookups and training steps on rows in memory, against PyTorch and a hand-written loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from embstore.bench.contenders import (
    Contender,
    Embstore,
    HandWritten,
    Rows,
    TorchSparse,
    scrambled_keys,
)
from embstore.bench.measure import Figure, Work, compare
from embstore.bench.zipf import BoundedZipf

OPERATIONS = ("lookup", "lookup + Adagrad")


@dataclass(frozen=True)
class RowsOptions:
    """What the suite runs; the defaults are the ones to quote."""

    rows: int = 2_000_000
    dims: tuple[int, ...] = (16, 64)
    batch_size: int = 106_496  # 4096 samples of 26 categorical columns
    zipf_exponent: float = 1.05
    threads: tuple[int, ...] = (1, 2)
    batches: int = 10  # a round and thread
    rounds: int = 7
    seed: int = 1


@dataclass(frozen=True)
class RowsResult:
    operation: str
    dim: int
    threads: int
    contender: str
    ids_per_s: Figure


def round_count(options: RowsOptions) -> int:
    """How often `on_round` will be called."""
    per_setting = options.rounds + 1
    return len(options.dims) * len(options.threads) * len(OPERATIONS) * per_setting


def run(options: RowsOptions, on_round: Callable[[], None]) -> list[RowsResult]:
    results: list[RowsResult] = []
    for dim in options.dims:
        keys = scrambled_keys(options.rows, options.seed)
        contenders: list[Contender] = [
            Embstore(keys, dim),
            HandWritten(keys, dim),
            TorchSparse(keys, dim),
        ]
        for threads in options.threads:
            for operation in OPERATIONS:
                work = dict(_work(options, contenders, dim, threads, operation))
                figures = compare(
                    work,
                    threads * options.batches * options.batch_size,
                    yardstick=HandWritten.name,
                    rounds=options.rounds,
                    on_round=on_round,
                )
                results += [
                    RowsResult(operation, dim, threads, name, figure)
                    for name, figure in figures.items()
                ]
        for contender in contenders:
            contender.close()
    return results


def _work(
    options: RowsOptions, contenders: list[Contender], dim: int, threads: int, operation: str
) -> Iterator[tuple[str, list[Work]]]:
    """Every contender that can do it, with what each thread does: the same ranks for all."""
    random = np.random.default_rng(options.seed)
    shape = (options.batch_size, dim)
    grads = random.standard_normal(shape, np.float32) * np.float32(0.01)
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    ranks = [
        [zipf.draw(options.batch_size) for _ in range(options.batches)] for _ in range(threads)
    ]
    for contender in contenders:
        if operation != "lookup" and threads > 1 and not contender.trains_in_threads:
            continue
        yield (
            contender.name,
            [
                partial(
                    _run_batches,
                    contender,
                    operation,
                    [contender.ids_of(batch) for batch in own],
                    np.empty(shape, np.float32),
                    grads,
                )
                for own in ranks
            ],
        )


def _run_batches(
    contender: Contender, operation: str, batches: list[object], out: Rows, grads: Rows
) -> None:
    for ids in batches:
        if operation == "lookup":
            contender.lookup(ids, out)
        else:
            contender.train(ids, out, grads)


def to_json(options: RowsOptions, results: list[RowsResult]) -> dict[str, object]:
    return {
        "suite": "rows",
        "options": asdict(options),
        "yardstick": HandWritten.name,
        "results": [asdict(result) for result in results],
    }
