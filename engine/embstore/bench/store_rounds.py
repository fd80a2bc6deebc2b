"""Rounds of look-ups and training steps on a store, each beside the same round in DRAM."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embstore.bench.contenders import Ids, Rows
from embstore.bench.measure import CLOCKS, Figure, figures, quiesce
from embstore.bench.stores import moves_rows, open_store
from embstore.bench.tiers_figures import StoreResult, TiersOptions
from embstore.bench.watcher import Watcher
from embstore.bench.zipf import BoundedZipf

# Look-ups for training come first, because they move no rows.
OPERATIONS = ("training_lookup", "lookup", "step")
# Serving and steps once more, on a table that has served for some time: the higher rows' counts
# are, the less often they overtake each other, so fewer rows move.
SETTLED = ("settled_lookup", "settled_step")


class Traffic:
    """The batches of ranks: the same for every store, and new ones in every round, since repeated
    batches would fill each cache with just the ids that it is measured with."""

    def __init__(self, options: TiersOptions) -> None:
        zipf = BoundedZipf(options.rows, options.skew, options.seed)

        def batches(count: int) -> list[NDArray[np.int32]]:
            return [zipf.draw(options.batch_size).astype(np.int32) for _ in range(count)]

        self.warm_up = batches(options.warm_up_batches)
        self.served = batches(options.served_batches)
        # The first round of each operation isn't counted.
        self.rounds = {
            operation: [batches(options.batches) for _ in range(options.rounds + 1)]
            for operation in (*OPERATIONS, *SETTLED)
        }


class LoadedStore:
    """A store with a row for each of `keys`, and its measurements."""

    def __init__(self, name: str, options: TiersOptions, dim: int, keys: Ids, folder: Path) -> None:
        self.name = name
        self.dim = dim
        self._now = CLOCKS[options.clock]
        self._row_count = keys.size
        self._folder = folder
        before = _private_bytes()
        self._store = open_store(name, keys, options.sizes(dim), folder)
        operations = (*OPERATIONS, *SETTLED)
        self._rates: dict[str, list[float]] = {operation: [] for operation in operations}
        self._hits = dict.fromkeys(operations, 0)
        self._misses = dict.fromkeys(operations, 0)
        try:
            self._store.load()
            self._store.settle()
        except BaseException:
            self._store.close()
            raise
        self._memory_bytes = _private_bytes() - before

    @property
    def was_measured(self) -> bool:
        return all(self._rates[operation] for operation in OPERATIONS)

    def warm_up(self, batches: list[NDArray[np.int32]], out: Rows, grads: Rows) -> None:
        for ranks in batches:
            self._store.train(self._store.ids_of(ranks), out, grads)
        self._store.settle()

    def serve(self, batches: list[NDArray[np.int32]], out: Rows) -> None:
        for ranks in batches:
            self._store.lookup(self._store.ids_of(ranks), out)
        self._store.settle()

    def run_round(
        self, operation: str, ranks: list[NDArray[np.int32]], out: Rows, grads: Rows, counts: bool
    ) -> None:
        """Times all batches, until the moves of rows that they cause are done. counts: whether the
        measurement is kept.
        """
        is_step = operation in ("step", "settled_step")
        batches: list[Any] = [self._store.ids_of(batch) for batch in ranks]
        before = self._store.counters()
        quiesce()
        start = self._now()
        for batch in batches:
            if operation == "training_lookup":
                self._store.training_lookup(batch, out)
            elif is_step:
                self._store.train(batch, out, grads)
            else:
                self._store.lookup(batch, out)
        self._store.settle()
        seconds = self._now() - start
        after = self._store.counters()
        if not counts:
            return
        items = len(batches) * (1 if is_step else out.shape[0])
        self._rates[operation].append(items / seconds)
        if before.hits is None or before.misses is None:
            return
        self._hits[operation] += (after.hits or 0) - before.hits
        self._misses[operation] += (after.misses or 0) - before.misses

    def result(self, beside: LoadedStore) -> StoreResult:
        """Returns the results. REQUIRES: the latest rounds of `beside` took turns with all of this
        store's rounds.
        """
        paired: dict[str, Figure] = {
            operation: figures(
                # The own rates come last: they replace the cut ones if the store is its yardstick.
                {beside.name: beside._rates[operation][-len(own) :], self.name: own},
                yardstick=beside.name,
            )[self.name]
            for operation, own in self._rates.items()
            if own
        }
        index_bytes = self._store.counters().index_bytes
        rows = self._row_count
        return StoreResult(
            dim=self.dim,
            store=self.name,
            training_lookups_per_s=paired["training_lookup"],
            lookups_per_s=paired["lookup"],
            steps_per_s=paired["step"],
            settled_lookups_per_s=paired.get("settled_lookup"),
            settled_steps_per_s=paired.get("settled_step"),
            training_lookup_hit_rate=self._hit_rate("training_lookup"),
            lookup_hit_rate=self._hit_rate("lookup"),
            step_hit_rate=self._hit_rate("step"),
            settled_lookup_hit_rate=self._hit_rate("settled_lookup"),
            memory_bytes=self._memory_bytes / rows,
            index_bytes=None if index_bytes is None else index_bytes / rows,
            file_bytes=folder_bytes(self._folder) / rows,
        )

    def _hit_rate(self, operation: str) -> float | None:
        total = self._hits[operation] + self._misses[operation]
        return self._hits[operation] / total if total else None

    def close(self) -> None:
        self._store.close()


def advance_count(options: TiersOptions, name: str) -> int:
    """Returns how often the watcher advances for one store, its loading included."""
    operations = len(OPERATIONS) + (len(SETTLED) if moves_rows(name) else 0)
    return 1 + operations * (options.rounds + 1)


def run(
    stores: list[LoadedStore], options: TiersOptions, traffic: Traffic, watcher: Watcher
) -> None:
    """Runs every round on each of `stores` in turn; the stores keep the measurements."""
    dim = stores[0].dim
    out = np.empty((options.batch_size, dim), np.float32)
    random = np.random.default_rng(options.seed)
    grads = random.standard_normal(out.shape, np.float32) * np.float32(0.01)
    what = f"dim {dim}: {stores[-1].name}"
    watcher.begin(f"{what}, warming up")
    for store in stores:
        store.warm_up(traffic.warm_up, out, grads)

    def measure(operation: str) -> None:
        watcher.begin(f"{what}, {operation.replace('_', ' ')}s")
        for number, ranks in enumerate(traffic.rounds[operation]):
            for store in stores:
                store.run_round(operation, ranks, out, grads, counts=number > 0)
            watcher.advance()

    for operation in OPERATIONS:
        measure(operation)
    if moves_rows(stores[-1].name):
        watcher.begin(f"{what}, serving until its rows have settled")
        stores[-1].serve(traffic.served, out)
        for operation in SETTLED:
            measure(operation)


def folder_bytes(folder: Path) -> int:
    """Returns the bytes that the folder's files take on disk, without holes."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_blocks * 512
            except FileNotFoundError:  # stores remove files at any time
                continue
    return total


def _private_bytes() -> int:
    """Returns the memory of this process without pages of files."""
    with suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)  # else reused free memory would hide new allocations
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")
