"""`durability`: checkpoints in a pool on PMem: what they cost, and how fast a table is back.

The same batches train tables with a tier of PMem in turn: one without durability; one with it, both
without checkpoints and with a checkpoint in the middle of each round; and one each with a full and
an incremental save there. A round ends when all its writes are durable. Then each way to reopen a
table is timed.

Tables with HBM are trained by ids and gradients on the GPU. On an emulated GPU all of it runs, but
nothing is timed: the results say only that the rows came back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from rich.table import Table

import embstore as es
from embstore.bench.arguments import SEED, Argument, count, device, fraction, path
from embstore.bench.contenders import Ids, row_bytes, scrambled_keys
from embstore.bench.file_systems import file_system_of
from embstore.bench.measure import Figure, figures, quiesce
from embstore.bench.report import Report
from embstore.bench.tables import goal_table, number, table
from embstore.bench.tiers_figures import Goal
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf
from embstore.checkpoint.persist.writer import finish_persists
from embstore.errors import InvalidArgumentError
from embstore.gpu.choice import EMULATED
from embstore.options import TIER_KINDS, TierKind

WITHOUT, WITH = "without durability", "durable, no checkpoint"
PERSIST, SAVE, INCREMENTAL = "persist()", "save()", "save_incremental()"
# The table that each run trains. WITH and PERSIST share a table, so that they differ only in their
# checkpoints: the speed of equal tables differs by some percent with where their memory lies.
TABLE_OF_RUN = {
    WITHOUT: "volatile",
    WITH: "durable",
    PERSIST: "durable",
    SAVE: "saved",
    INCREMENTAL: "saved in increments",
}
STORAGE_TYPES = ("DRAM_PMEM", "DRAM_PMEM_SSDHASH", "HBM_DRAM_PMEM", "HBM_DRAM_PMEM_SSDHASH")
MEASURED, FUNCTIONAL_ONLY = "measured", "functional-only"

MAX_SECONDS_OF_CHECKPOINTS = 0.03  # of a run's seconds
MIN_RATE_WITH_DURABILITY = 0.9  # of the rate without
MIN_SPEED_UP_OF_REOPENING = 5.0  # over es.restore()


@dataclass(frozen=True)
class DurabilityOptions:
    """The suite's options. Quote results with the defaults."""

    storage_type: Annotated[
        str, Argument("storage type (default: %(default)s)", choices=STORAGE_TYPES)
    ] = STORAGE_TYPES[0]
    device: Annotated[
        str,
        device("GPU of a tier of HBM: cuda, cuda:N, or emulated, on which nothing is timed"),
    ] = "cuda"
    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 1_000_000
    dim: Annotated[int, count("dim of tables (default: %(default)s)")] = 64
    first_tier: Annotated[
        float, fraction("part of the rows in each tier above PMem (default: %(default)s)")
    ] = 0.1
    pool: Annotated[
        float, fraction("part of the rows in PMem above another tier (default: %(default)s)")
    ] = 0.3
    # 4096 samples of 26 categorical columns
    batch_size: Annotated[int, count("number of ids in a batch (default: %(default)s)")] = 106_496
    zipf_exponent: float = 1.05
    batches: Annotated[
        int, count("number of batches between two checkpoints (default: %(default)s)")
    ] = 200
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 5
    path: Annotated[
        Path | None,
        path("folder of pools and saves, such as a DAX mount (default: /dev/shm, flushed as PMem)"),
    ] = None  # /dev/shm, which is memory, if it exists; else the temporary folder
    seed: Annotated[int, SEED] = 1

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.dim)

    @property
    def tiers(self) -> Sequence[TierKind]:
        return TIER_KINDS[es.StorageType[self.storage_type]]

    @property
    def gpu(self) -> str | None:
        """The GPU that has ids and gradients; None without a tier of HBM."""
        return self.device if TierKind.HBM in self.tiers else None

    @property
    def kind(self) -> str:
        """The kind of the figures; times on an emulated GPU would mean nothing."""
        return FUNCTIONAL_ONLY if self.gpu == EMULATED else MEASURED

    @property
    def pool_number(self) -> int:
        return self.tiers.index(TierKind.PMEM)

    def storage_size(self, *, is_durable: bool) -> list[int]:
        """Returns the bytes of all tiers but those on SSD, which have no limit. The PMem tier holds
        the same number of rows with durability as without."""
        is_last = self.pool_number == len(self.tiers) - 1
        first_rows = int(self.first_tier * self.rows)
        rows_above = first_rows * self.pool_number
        pool_rows = self.rows if is_last else int(self.pool * self.rows)
        sizes = [first_rows * self.row_bytes] * self.pool_number
        if not is_durable:
            return [*sizes, pool_rows * self.row_bytes]
        # A pool also has a place for each row above it, and places for rows that change between two
        # checkpoints: as many again with a margin, or a quarter of all places above another tier.
        places = 2.5 * pool_rows if is_last else (rows_above + pool_rows) * 4 / 3
        place_bytes = (64 + self.row_bytes + 255) // 256 * 256
        return [*sizes, int(places * place_bytes) + (8 << 20)]


@dataclass(frozen=True)
class RunResult:
    """The figures of one run; ratios are to the run without durability in the same rounds."""

    run: str
    batches_per_s: Figure
    ratio_to_durable: float | None  # to the run with durability and no checkpoint
    call_s: float | None  # median duration of the call that makes a checkpoint
    cost_s: float | None  # median of how much longer a round takes than WITH's


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
            goals.append(Goal(dim, what, None, MAX_SECONDS_OF_CHECKPOINTS, overhead))
        if durable.batches_per_s.ratio is not None:
            what = "training with durability, to that without"
            goals.append(
                Goal(dim, what, MIN_RATE_WITH_DURABILITY, None, durable.batches_per_s.ratio)
            )
        what = "reopening, times as fast as es.restore()"
        speed_up = self.restore_s / self.restore_persisted_s
        goals.append(Goal(dim, what, MIN_SPEED_UP_OF_REOPENING, None, speed_up))
        return goals


def advance_count(options: DurabilityOptions) -> int:
    """Returns how often the watcher advances."""
    return len(set(TABLE_OF_RUN.values())) + len(TABLE_OF_RUN) * (options.rounds + 1) + 2


def _check_rows(options: DurabilityOptions) -> None:
    parts = [("--first-tier", options.first_tier, "first tier")]
    if options.pool_number < len(options.tiers) - 1:
        parts.append(("--pool", options.pool, "pool"))
    for option, part, name in parts:
        if int(part * options.rows) < 1:
            raise InvalidArgumentError(
                f"--rows {options.rows}, {option} {part:g}: leave the {name} no row; give more "
                "rows or a larger part"
            )


def measure(options: DurabilityOptions, watcher: Watcher) -> DurabilityResults:
    """Runs the suite. Leaves no file behind, however it ends. Raises InvalidArgumentError for too
    few rows.
    """
    _check_rows(options)
    if options.path is None and Path("/dev/shm").is_dir():
        # Memory stands in for PMem: libpmem flushes it as PMem, unless the environment says else.
        os.environ.setdefault("PMEM_IS_PMEM_FORCE", "1")
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="embstore-bench-", dir=_parent(options))
            )
        )
        keys = scrambled_keys(options.rows, options.seed)
        tables = {}
        for name in dict.fromkeys(TABLE_OF_RUN.values()):
            watcher.begin(f"loading the {name} table")
            tables[name] = stack.enter_context(_Table(name, options, keys, folder))
            watcher.advance()
        runs = _train(tables, options, keys, watcher)
        pool = tables[TABLE_OF_RUN[PERSIST]].tier()
        save_bytes = tables[TABLE_OF_RUN[SAVE]].saved_bytes()
        restore_persisted_s, restore_s = _time_reopening(tables, options, watcher)
    return DurabilityResults(
        runs=runs,
        is_pmem=pool["is_pmem"],
        pool_bytes=pool["mapped_bytes"],
        save_bytes=save_bytes,
        restore_persisted_s=restore_persisted_s,
        restore_s=restore_s,
    )


def to_json(options: DurabilityOptions, results: DurabilityResults) -> dict[str, object]:
    """Returns the document, without times if nothing was timed."""
    document: dict[str, object] = {
        "kind": options.kind,
        "file_system": file_system_of(_parent(options)),
    }
    if options.kind == FUNCTIONAL_ONLY:
        return {
            **document,
            "runs": [{"run": result.run} for result in results.runs],
            "pool_bytes": results.pool_bytes,
            "save_bytes": results.save_bytes,
        }
    return {
        **document,
        **asdict(results),
        "goals": [{**asdict(goal), "reached": goal.reached} for goal in results.goals(options.dim)],
    }


def _parent(options: DurabilityOptions) -> Path | None:
    if options.path is not None:
        return options.path
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


class _Table:
    """A table with a row for each of `keys`, and its checkpoints."""

    def __init__(self, name: str, options: DurabilityOptions, keys: Ids, folder: Path) -> None:
        self._is_durable = name == TABLE_OF_RUN[PERSIST]
        self._options = options
        self._folder = folder / name.replace(" ", "-")
        self._folder.mkdir()
        self.variable = self.open()
        for part in np.array_split(keys, max(1, keys.size // 50_000)):
            self.variable.apply_gradients(part, np.zeros((part.size, options.dim), np.float32))
        self.variable.drain()
        if name == TABLE_OF_RUN[INCREMENTAL]:
            es.save(self._folder / "save", [self.variable], 0)
        self._saves = 0

    def open(self) -> es.EmbeddingVariable:
        options = self._options
        return es.get_embedding_variable(
            "bench",
            options.dim,
            optimizer=es.optimizers.Adagrad(0.05),
            ev_option=es.EmbeddingVariableOption(
                storage_option=es.StorageOption(
                    storage_type=es.StorageType[options.storage_type],
                    storage_path=str(self._folder),
                    storage_size=options.storage_size(is_durable=self._is_durable),
                    durability="checkpoint" if self._is_durable else None,
                    device=options.gpu,
                )
            ),
            restores=True,
        )

    def checkpoint(self, run: str) -> None:
        """Makes the checkpoint of a run, if any; persist() finishes it in the background."""
        if run == PERSIST:
            es.persist([self.variable], self._folder / "checkpoints", 1)
        elif run == SAVE:
            es.save(self._folder / "save", [self.variable], 0)
        elif run == INCREMENTAL:
            self._saves += 1
            es.save_incremental(self._folder / f"increment{self._saves}", [self.variable], 0)
            shutil.rmtree(self._folder / f"increment{self._saves - 1}", ignore_errors=True)

    def wait(self) -> None:
        finish_persists(self.variable)

    def tier(self) -> dict[str, Any]:
        tier: dict[str, Any] = self.variable.stats()["tiers"][self._options.pool_number]
        return tier

    def saved_bytes(self) -> int:
        return sum(file.stat().st_size for file in (self._folder / "save").rglob("*"))

    def restore(self) -> None:
        if self._is_durable:
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
    out: Any = np.empty_like(grads)
    by = _on_gpu(grads, options)
    if options.gpu is not None:
        out = es.DeviceArray.empty(grads.shape, np.float32, options.gpu)
    seconds: dict[str, list[float]] = {run: [] for run in TABLE_OF_RUN}
    call_s: dict[str, list[float]] = {run: [] for run in TABLE_OF_RUN}
    for round_number in range(options.rounds + 1):  # the first round isn't counted
        drawn = [keys[zipf.draw(options.batch_size)] for _ in range(options.batches)]
        batches = [_on_gpu(ids, options) for ids in drawn]
        for run in _runs_of_round(round_number):
            watcher.begin(f"{run}: training")
            table = tables[TABLE_OF_RUN[run]]
            of_round, of_call = _train_round(table, run, batches, out, by)
            if round_number > 0:
                seconds[run].append(of_round)
                call_s[run].append(of_call)
            watcher.advance()
    rates = {run: [options.batches / of_round for of_round in own] for run, own in seconds.items()}
    beside_without = figures(rates, WITHOUT)
    beside_durable = figures(rates, WITH)
    return [
        RunResult(
            run=run,
            batches_per_s=beside_without[run],
            ratio_to_durable=beside_durable[run].ratio,
            call_s=median(call_s[run]) if run in (PERSIST, SAVE, INCREMENTAL) else None,
            cost_s=median(
                own - durable for own, durable in zip(seconds[run], seconds[WITH], strict=True)
            )
            if run in (PERSIST, SAVE, INCREMENTAL)
            else None,
        )
        for run in TABLE_OF_RUN
    ]


def _runs_of_round(round_number: int) -> Iterable[str]:
    """Returns the runs of a round, in reverse order in every other round, so that no run always
    gets the batches first."""
    return TABLE_OF_RUN if round_number % 2 == 0 else reversed(TABLE_OF_RUN)


def _on_gpu(array: Any, options: DurabilityOptions) -> Any:
    """Returns the array, copied to the GPU if there is one."""
    return array if options.gpu is None else es.DeviceArray(array, options.gpu)


def _train_round(
    table: _Table, run: str, batches: Sequence[Any], out: Any, grads: Any
) -> tuple[float, float]:
    """Returns the seconds of the round, and of its call that makes the checkpoint.

    The call comes in the middle of the round, so that its background work runs beside training.
    """
    quiesce()
    start = time.perf_counter()
    in_call = 0.0
    for done, ids in enumerate(batches):
        table.variable.lookup(ids, train=True, out=out)
        table.variable.apply_gradients(ids, grads)
        if done == len(batches) // 2:
            before = time.perf_counter()
            table.checkpoint(run)
            in_call = time.perf_counter() - before
    table.wait()
    table.variable.synchronize()
    return time.perf_counter() - start, in_call


def _time_reopening(
    tables: dict[str, _Table], options: DurabilityOptions, watcher: Watcher
) -> tuple[float, float]:
    """Returns the median seconds from a closed table to one with its rows, by restore_persisted()
    and by restore().
    """
    seconds: list[float] = []
    for run in (PERSIST, SAVE):
        watcher.begin(f"{run}: the way back")
        table = tables[TABLE_OF_RUN[run]]
        times = []
        for _ in range(3):
            table.variable.close()
            quiesce()
            start = time.perf_counter()
            table.variable = table.open()
            table.restore()
            times.append(time.perf_counter() - start)
            if table.variable.total_count()[0] != options.rows:
                raise AssertionError(f"{run}: rows are missing")
        seconds.append(median(times))
        watcher.advance()
    return seconds[0], seconds[1]


OPTIONS = DurabilityOptions


def run(options: DurabilityOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    if options.kind == FUNCTIONAL_ONLY:
        tables = [_functional_table(options, results)]
    else:
        tables = [
            _run_table(options, results),
            _recovery_table(options, results),
            goal_table(results.goals(options.dim), 3, with_dim=False),
        ]
    return Report(tables, to_json(options, results))


def _functional_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    done = [
        *(f"trained, {result.run}" for result in results.runs),
        *(f"all rows came back by {way}" for way in ("restore_persisted()", "restore()")),
    ]
    return table(
        f"{options.storage_type} on an emulated GPU, {options.rows:,} rows of dim "
        f"{options.dim}: {FUNCTIONAL_ONLY}",
        ("what was done",),
        (),
        [(one,) for one in done],
        caption="times on an emulated GPU mean nothing, so nothing was timed",
    )


def _run_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    rows = [
        (
            result.run,
            number(result.batches_per_s.median, 1),
            number(result.batches_per_s.ratio, 3),
            number(result.ratio_to_durable, 3),
            _milliseconds(result.call_s),
            _milliseconds(result.cost_s),
        )
        for result in results.runs
    ]
    return table(
        f"Training on {options.storage_type}, {options.rows:,} rows of dim {options.dim}, "
        f"a checkpoint every {options.batches} batches of {options.batch_size:,} ids",
        ("run",),
        ("batches/s", "ratio", "to durable", "call ms", "cost ms"),
        rows,
        caption="medians; ratios of rounds to the runs without durability, and without "
        "checkpoints; "
        "call: how long training waited for the call that makes a checkpoint; "
        "cost: how much longer a round took with it",
        one_line="all",
    )


def _milliseconds(seconds: float | None) -> str:
    return number(None if seconds is None else 1e3 * seconds, 1)


def _recovery_table(options: DurabilityOptions, results: DurabilityResults) -> Table:
    pool, save = results.pool_bytes / 1e6, results.save_bytes / 1e6
    return table(
        f"From a closed table to one with its {options.rows:,} rows",
        ("way back",),
        ("seconds", "files MB"),
        [
            ("restore_persisted()", number(results.restore_persisted_s, 3), f"{pool:,.0f} (stay)"),
            ("restore()", number(results.restore_s, 3), f"{save:,.0f}"),
        ],
    )
