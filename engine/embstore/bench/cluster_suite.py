"""`cluster`: tables at servers, beside a local table and a plain Ray actor; a job of many tables.

Tables at servers are measured alone, and in a worker that also trains a model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import embstore as es
from embstore.bench import many_tables_suite
from embstore.bench.arguments import SEED, count
from embstore.bench.contenders import split_into_loads
from embstore.bench.dict_actor import DictActor
from embstore.bench.many_tables_suite import ManyTablesOptions, ManyTablesResult
from embstore.bench.measure import Figure, compare
from embstore.bench.report import Report
from embstore.bench.tables import number, span, table
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf
from embstore.cluster.ray.cluster import join_or_start
from embstore.variable import EmbeddingVariable

YARDSTICK = "a Ray actor with a dict"
LOCAL = "a table in the worker"
OPERATIONS = ("pull", "pull and push")
DEEPFM = "a step of DeepFM"
PREFETCHED = "1 shard, prefetched"
_LEARNING_RATE = 0.1

Batch = NDArray[np.int64]


@dataclass(frozen=True)
class ClusterOptions:
    """The suite's options. Quote results with the defaults."""

    rows: Annotated[int, count("number of rows in a table (default: %(default)s)")] = 1_000_000
    dim: Annotated[int, count("dim of tables (default: %(default)s)")] = 16
    shards: Annotated[tuple[int, ...], count("numbers of shards (default: 1 2)")] = (1, 2)
    # 4096 samples of 26 categorical columns
    batch_size: Annotated[int, count("number of ids in a batch (default: %(default)s)")] = 106_496
    zipf_exponent: float = 1.05
    batches: Annotated[int, count("number of batches in a round (default: %(default)s)")] = 4
    rounds: Annotated[int, count("number of rounds (default: %(default)s)")] = 5
    seed: Annotated[int, SEED] = 1
    tables: Annotated[int, count("number of tables of the job (default: %(default)s)")] = (
        ManyTablesOptions.tables
    )
    samples: Annotated[
        int,
        count(
            "number of samples in a step of the job; each has an id in every table "
            "(default: %(default)s)"
        ),
    ] = ManyTablesOptions.samples

    @property
    def many_tables(self) -> ManyTablesOptions:
        return ManyTablesOptions(
            tables=self.tables, samples=self.samples, rounds=self.rounds, seed=self.seed
        )


@dataclass(frozen=True)
class ClusterResult:
    server: str
    operation: str
    # The ratio is to the actor with a dict, in the same rounds; for steps of DeepFM, to a table in
    # the worker.
    ids_per_s: Figure


@dataclass(frozen=True)
class _Server:
    pull: Callable[[Batch], object]
    push: Callable[[Batch, NDArray[np.float32]], object]


def advance_count(options: ClusterOptions) -> int:
    return (len(OPERATIONS) + 1) * (options.rounds + 1) + 1  # 1: the suite of many tables


def measure(options: ClusterOptions, watcher: Watcher) -> list[ClusterResult]:
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    batches = [zipf.draw(options.batch_size) for _ in range(options.batches)]
    grads = np.full((options.batch_size, options.dim), 0.01, np.float32)
    results = []
    watcher.begin("filling tables")
    with _servers(options) as servers:
        for operation in OPERATIONS:
            watcher.begin(operation)
            work = {
                name: [_work(server, batches, grads if operation == OPERATIONS[1] else None)]
                for name, server in servers.items()
            }
            figures = compare(
                work,
                options.batch_size * options.batches,
                yardstick=YARDSTICK,
                rounds=options.rounds,
                on_round=watcher.advance,
            )
            results += [ClusterResult(name, operation, figures[name]) for name in servers]
    watcher.begin(DEEPFM)
    return results + _steps_of_deepfm(options, watcher)


def to_json(options: ClusterOptions, results: list[ClusterResult]) -> dict[str, object]:
    return {
        "options": asdict(options),
        "results": [asdict(result) for result in results],
    }


def _work(
    server: _Server, batches: list[Batch], grads: NDArray[np.float32] | None
) -> Callable[[], None]:
    def work() -> None:
        for ids in batches:
            server.pull(ids)
            if grads is not None:
                server.push(ids, grads)

    return work


@contextlib.contextmanager
def _servers(options: ClusterOptions) -> Iterator[dict[str, _Server]]:
    ray = join_or_start()
    with contextlib.ExitStack() as stack:
        servers = {LOCAL: _variable(options, None, stack)}
        for shards in options.shards:
            name = "1 shard" if shards == 1 else f"{shards} shards"
            servers[name] = _variable(options, shards, stack)
        actor = (
            ray.remote(DictActor)
            .options(num_cpus=0)
            .remote(options.rows, options.dim, _LEARNING_RATE)
        )
        stack.callback(ray.kill, actor)
        servers[YARDSTICK] = _actor_server(ray, actor, options.dim)
        yield servers


def _steps_of_deepfm(options: ClusterOptions, watcher: Watcher) -> list[ClusterResult]:
    from embstore.bench.deepfm_step import COLUMNS, DeepFM  # PyTorch takes seconds to import

    samples = max(1, options.batch_size // COLUMNS)
    zipf = BoundedZipf(options.rows, options.zipf_exponent, options.seed)
    batches = [zipf.draw(samples * COLUMNS) for _ in range(options.batches)]
    join_or_start()
    with contextlib.ExitStack() as stack:

        def training(shards: int | None, prefetches: bool) -> Callable[[], None]:
            model = DeepFM(_filled(options, shards, stack))
            return lambda: model.train(batches, prefetches=prefetches)

        work = {
            LOCAL: [training(None, False)],
            "1 shard": [training(1, False)],
            PREFETCHED: [training(1, True)],
        }
        figures = compare(
            work,
            samples * COLUMNS * options.batches,
            yardstick=LOCAL,
            rounds=options.rounds,
            on_round=watcher.advance,
        )
    return [ClusterResult(name, DEEPFM, figures[name]) for name in work]


def _variable(options: ClusterOptions, shards: int | None, stack: contextlib.ExitStack) -> _Server:
    variable = _filled(options, shards, stack)
    rows = np.empty((options.batch_size, options.dim), np.float32)
    return _Server(lambda ids: variable.lookup(ids, train=True, out=rows), variable.apply_gradients)


def _filled(
    options: ClusterOptions, shards: int | None, stack: contextlib.ExitStack
) -> EmbeddingVariable:
    variable = stack.enter_context(
        es.get_embedding_variable(
            "var",
            options.dim,
            initializer=es.initializers.Zeros(),
            optimizer=es.optimizers.Adagrad(_LEARNING_RATE),
            shards=shards,
        )
    )
    keys = np.arange(options.rows)
    for part in split_into_loads(keys):
        variable.apply_gradients(part, np.zeros((part.size, options.dim), np.float32))
    return variable


def _actor_server(ray: Any, actor: Any, dim: int) -> _Server:
    """Returns calls of the actor with ids made unique by NumPy, as a program would do."""

    def pull(ids: Batch) -> object:
        keys, positions = np.unique(ids, return_inverse=True)
        return ray.get(actor.pull.remote(keys))[positions]

    def push(ids: Batch, grads: NDArray[np.float32]) -> None:
        keys, positions = np.unique(ids, return_inverse=True)
        sums = np.zeros((keys.size, dim), np.float32)
        np.add.at(sums, positions, grads)
        ray.get(actor.push.remote(keys, sums))

    return _Server(pull, push)


OPTIONS = ClusterOptions


def run(options: ClusterOptions, watcher: Watcher) -> Report:
    results = measure(options, watcher)
    of_many = many_tables_suite.run(options.many_tables, watcher)
    document = to_json(options, results)
    document["many tables"] = many_tables_suite.to_json(options.many_tables, of_many)
    return Report([_table(results), _table_of_many(options.many_tables, of_many)], document)


def _table_of_many(options: ManyTablesOptions, result: ManyTablesResult) -> Table:
    rows = [
        ("servers", f"{result.servers}"),
        ("start", f"{result.start_s:.1f} s"),
        (f"memory of all {result.processes} processes (PSS)", f"{result.pss_bytes / 1e9:.2f} GB"),
        ("step", f"{result.step_ms:.1f} ms"),
        ("step of one process without shards", f"{result.here_ms:.1f} ms"),
        ("ratio, in the same rounds", f"{result.ratio:.2f}"),
        ("step, one table after the other", f"{result.one_by_one_ms:.1f} ms"),
    ]
    return table(
        f"A job of {options.workers} workers with {options.tables} tables, shards="
        f"{options.shards}; steps of {options.samples} samples (medians)",
        ("figure",),
        ("value",),
        rows,
        one_line="all",
    )


def _table(results: list[ClusterResult]) -> Table:
    rows = [
        (
            result.operation,
            result.server,
            f"{result.ids_per_s.median / 1e6:.2f}",
            span(result.ids_per_s, 1),
            number(result.ids_per_s.ratio),
        )
        for result in results
    ]
    return table(
        "Zipf ids, Adagrad: million ids/s (median; min to max), and ratio to "
        f"{YARDSTICK}, or of DeepFM {LOCAL}, in the same rounds",
        ("operation", "server"),
        ("M ids/s", "range", "ratio"),
        rows,
        one_line="all",
        section=1,
    )
