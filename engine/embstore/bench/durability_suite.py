"""What checkpoints cost a training run, and how long it takes to have a table back.

The same batches train a table on DRAM_PMEM in turn: without durability, with it and no checkpoint,
with one in the pool at the end of each round, and with a whole or an incremental save there. Every
round ends when what it wrote is durable. Then each way back is timed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import embstore as es
from embstore.bench.contenders import Ids, Rows, scrambled_keys
from embstore.bench.file_systems import file_system_of
from embstore.bench.measure import Figure, figures, quiesce
from embstore.bench.tiers_figures import Goal
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

WITHOUT, WITH = "without durability", "durable, no checkpoint"
PERSIST, SAVE, INCREMENTAL = "persist()", "save()", "save_incremental()"
RUNS = (WITHOUT, WITH, PERSIST, SAVE, INCREMENTAL)

MOST_SECONDS_OF_CHECKPOINTS = 0.03  # of a run's
LEAST_RATE_WITH_DURABILITY = 0.9  # of that without
LEAST_SPEED_UP_OF_REOPENING = 5.0  # over es.restore()


@dataclass(frozen=True)
class DurabilityOptions:
    """What the suite runs; the defaults are the ones to quote."""

    rows: int = 1_000_000
    dim: int = 64
    first_tier: float = 0.1  # of the rows
    batch_size: int = 26_624  # 1024 samples of 26 categorical columns
    zipf_exponent: float = 1.05
    batches: int = 200  # between two checkpoints
    rounds: int = 5
    path: Path | None = None  # where pools and saves lie; None: memory, else the temporary folder
    seed: int = 1

    @property
    def row_bytes(self) -> int:
        return 2 * 4 * ((self.dim + 3) // 4 * 4)

    @property
    def pool_bytes(self) -> int:
        """Every row twice, and what a pool keeps beside them."""
        place = (64 + self.row_bytes + 255) // 256 * 256
        return int(2.5 * self.rows * place) + (8 << 20)


@dataclass(frozen=True)
class RunResult:
    """Batches/s of one run; the ratio is to that without durability in the same rounds."""

    run: str
    batches_per_s: Figure
    ratio_to_durable: float | None  # to that with durability and no checkpoint
    checkpoint_s: float | None  # of the call and what followed it, in the median


@dataclass(frozen=True)
class DurabilityResults:
    runs: list[RunResult] = field(default_factory=list)
    is_pmem: bool | None = None
    pool_bytes: int = 0
    save_bytes: int = 0
    restore_persisted_s: float = 0.0
    restore_s: float = 0.0

    def goals(self, dim: int) -> list[Goal]:
        by_name = {result.run: result for result in self.runs}
        goals = []
        persist, durable = by_name[PERSIST], by_name[WITH]
        if persist.ratio_to_durable is not None:
            overhead = 1 / persist.ratio_to_durable - 1
            what = "part of the time that checkpoints take"
            goals.append(Goal(dim, what, None, MOST_SECONDS_OF_CHECKPOINTS, overhead))
        if durable.batches_per_s.ratio is not None:
            what = "training with durability, to that without"
            goals.append(
                Goal(dim, what, LEAST_RATE_WITH_DURABILITY, None, durable.batches_per_s.ratio)
            )
        what = "reopening, times as fast as es.restore()"
        speed_up = self.restore_s / self.restore_persisted_s
        goals.append(Goal(dim, what, LEAST_SPEED_UP_OF_REOPENING, None, speed_up))
        return goals


def advance_count(options: DurabilityOptions) -> int:
    """How often the watcher is told to advance."""
    return len(RUNS) + len(RUNS) * (options.rounds + 1) + 2


def run(options: DurabilityOptions, watcher: Watcher) -> DurabilityResults:
    """Leaves no file behind, however it ends."""
    if options.path is None and Path("/dev/shm").is_dir():
        # Memory as PMem's stand-in: flushed as PMem is, where libpmem isn't told otherwise.
        os.environ.setdefault("PMEM_IS_PMEM_FORCE", "1")
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=_parent(options))
            )
        )
        keys = scrambled_keys(options.rows, options.seed)
        tables = {}
        for name in RUNS:
            watcher.begin(f"{name}: loading")
            tables[name] = stack.enter_context(_Table(name, options, keys, folder))
            watcher.advance()
        runs = _train(tables, options, keys, watcher)
        pool = tables[PERSIST].tier()
        save_bytes = tables[SAVE].saved_bytes()
        restore_persisted_s, restore_s = _time_ways_back(tables, options, watcher)
    return DurabilityResults(
        runs=runs,
        is_pmem=pool["is_pmem"],
        pool_bytes=pool["mapped_bytes"],
        save_bytes=save_bytes,
        restore_persisted_s=restore_persisted_s,
        restore_s=restore_s,
    )


def to_json(options: DurabilityOptions, results: DurabilityResults) -> dict[str, object]:
    return {
        "suite": "durability",
        "options": {**asdict(options), "path": None if options.path is None else str(options.path)},
        "file_system": file_system_of(Path(_parent(options) or tempfile.gettempdir())),
        **asdict(results),
        "goals": [{**asdict(goal), "reached": goal.reached} for goal in results.goals(options.dim)],
    }


def _parent(options: DurabilityOptions) -> Path | None:
    if options.path is not None:
        return options.path
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


class _Table:
    """A table with a row for each of `keys`, and the checkpoints that its run makes."""

    def __init__(self, run: str, options: DurabilityOptions, keys: Ids, folder: Path) -> None:
        self.run = run
        self._options = options
        self._folder = folder / run.replace(" ", "-").replace(",", "")
        self._folder.mkdir()
        self.variable = self.open()
        for part in np.array_split(keys, max(1, keys.size // 50_000)):
            self.variable.apply_gradients(part, np.zeros((part.size, options.dim), np.float32))
        self.variable.drain()
        if run == INCREMENTAL:
            es.save(self._folder / "save", [self.variable], 0)
        self._saves = 0

    def open(self) -> es.EmbeddingVariable:
        durable = self.run in (WITH, PERSIST)
        options = self._options
        first = int(options.first_tier * options.rows) * options.row_bytes
        second = options.pool_bytes if durable else options.rows * options.row_bytes
        return es.get_embedding_variable(
            "bench",
            options.dim,
            optimizer=es.optimizers.Adagrad(0.05),
            ev_option=es.EmbeddingVariableOption(
                storage_option=es.StorageOption(
                    storage_type=es.StorageType.DRAM_PMEM,
                    storage_path=str(self._folder),
                    storage_size=[first, second],
                    durability="checkpoint" if durable else None,
                )
            ),
        )

    def checkpoint(self) -> None:
        """Begins what can go on in the background."""
        if self.run == PERSIST:
            es.persist([self.variable], self._folder / "checkpoints", 1)
        elif self.run == SAVE:
            es.save(self._folder / "save", [self.variable], 0)
        elif self.run == INCREMENTAL:
            self._saves += 1
            es.save_incremental(self._folder / f"increment{self._saves}", [self.variable], 0)
            shutil.rmtree(self._folder / f"increment{self._saves - 1}", ignore_errors=True)

    def wait(self) -> None:
        self.variable._finish_persists()

    def tier(self) -> dict[str, Any]:
        tier: dict[str, Any] = self.variable.stats()["tiers"][1]
        return tier

    def saved_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self._folder / "save").rglob("*"))

    def restore(self) -> None:
        if self.run == PERSIST:
            es.restore_persisted([self.variable], self._folder / "checkpoints")
        else:
            es.restore(self._folder / "save", [self.variable])

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.variable.close()


def _train(
    tables: dict[str, _Table], options: DurabilityOptions, keys: Ids, watcher: Watcher
) -> list[RunResult]:
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    random = np.random.default_rng(options.seed)
    grads = random.standard_normal((options.batch_size, options.dim), np.float32) * np.float32(0.01)
    out = np.empty_like(grads)
    rates: dict[str, list[float]] = {name: [] for name in tables}
    checkpoint_s: dict[str, list[float]] = {name: [] for name in tables}
    for number in range(options.rounds + 1):  # the first isn't counted
        batches = [keys[zipf.draw(options.batch_size)] for _ in range(options.batches)]
        for name, table in tables.items():
            watcher.begin(f"{name}: training")
            seconds, of_checkpoint = _train_round(table, batches, out, grads)
            if number > 0:
                rates[name].append(options.batches / seconds)
                checkpoint_s[name].append(of_checkpoint)
            watcher.advance()
    beside_without = figures(rates, WITHOUT)
    beside_durable = figures(rates, WITH)
    return [
        RunResult(
            run=name,
            batches_per_s=beside_without[name],
            ratio_to_durable=beside_durable[name].ratio,
            checkpoint_s=median(checkpoint_s[name])
            if name in (PERSIST, SAVE, INCREMENTAL)
            else None,
        )
        for name in tables
    ]


def _train_round(table: _Table, batches: list[Ids], out: Rows, grads: Rows) -> tuple[float, float]:
    """Seconds of the round, and of those the call that makes the checkpoint.

    It is made in the middle, so that what goes on in the background goes on beside training.
    """
    quiesce()
    start = time.perf_counter()
    in_call = 0.0
    for number, ids in enumerate(batches):
        table.variable.lookup(ids, train=True, out=out)
        table.variable.apply_gradients(ids, grads)
        if number == len(batches) // 2:
            before = time.perf_counter()
            table.checkpoint()
            in_call = time.perf_counter() - before
    table.wait()
    return time.perf_counter() - start, in_call


def _time_ways_back(
    tables: dict[str, _Table], options: DurabilityOptions, watcher: Watcher
) -> tuple[float, float]:
    """Seconds from a closed table to one with its rows, by restore_persisted() and restore()."""
    seconds: list[float] = []
    for name in (PERSIST, SAVE):
        watcher.begin(f"{name}: the way back")
        table = tables[name]
        times = []
        for _ in range(3):
            table.variable.close()
            quiesce()
            start = time.perf_counter()
            table.variable = table.open()
            table.restore()
            times.append(time.perf_counter() - start)
            if table.variable.total_count()[0] != options.rows:
                raise AssertionError(f"{name}: rows are missing")
        seconds.append(median(times))
        watcher.advance()
    return seconds[0], seconds[1]
