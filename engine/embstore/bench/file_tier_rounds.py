"""Rounds of reads and writes on tiers in files without a table, beside plain LevelDB."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import numpy as np

from embstore.bench._yardsticks import LevelDbStore, TierAlone
from embstore.bench.contenders import Ids, Rows
from embstore.bench.measure import CLOCKS, figures, quiesce
from embstore.bench.store_rounds import folder_bytes
from embstore.bench.tiers_figures import FileTierResult, TiersOptions, Unavailable
from embstore.bench.watcher import Watcher
from embstore.errors import MissingLibraryError, StorageError

YARDSTICK = "LevelDB"
TIERS = ("SSDHASH", "LEVELDB")
OPERATIONS = ("read", "write")


class RowFiles(Protocol):
    def write(self, ids: Ids, rows: Rows) -> None: ...
    def read(self, ids: Ids, rows: Rows) -> None: ...
    def close(self) -> None: ...


class Content:
    """The last written row of each id, to detect a store that is fast but wrong."""

    _VARIANTS = 4096

    def __init__(self, row_count: int, row_floats: int, random: np.random.Generator) -> None:
        self._rows = random.standard_normal((self._VARIANTS, row_floats), np.float32)
        self._writes = np.zeros(row_count, np.int64)

    def next_rows(self, ids: Ids) -> Rows:
        self._writes[ids] += 1
        return self.rows(ids)

    def rows(self, ids: Ids) -> Rows:
        rows: Rows = self._rows[(ids + 7 * self._writes[ids]) % self._VARIANTS]
        return rows


def advance_count(options: TiersOptions) -> int:
    return 1 + len(OPERATIONS) * (options.rounds + 1)


def run(
    options: TiersOptions, dim: int, folder: Path, watcher: Watcher
) -> tuple[list[FileTierResult], list[Unavailable]]:
    """Returns the figures, and the tiers that aren't available."""
    clock = CLOCKS[options.clock]
    what = f"dim {dim}: tiers in files"
    watcher.begin(f"{what}, loading")
    row_count = options.rows - options.sizes(dim).first_tier_rows
    batch_rows = min(options.moved_rows, row_count)
    random = np.random.default_rng(options.seed)
    content = Content(row_count, options.sizes(dim).row_floats, random)
    unavailable: list[Unavailable] = []
    stores: dict[str, RowFiles] = {}
    results: list[FileTierResult] = []
    with ExitStack() as stack:
        for name in (YARDSTICK, *TIERS):
            (folder / name).mkdir()
            try:
                store = _open(name, options, dim, row_count, folder / name)
            except MissingLibraryError as error:
                unavailable.append(Unavailable(dim, name, str(error)))
                continue
            stores[name] = stack.enter_context(closing(store))
        everything = random.permutation(row_count)
        for first in range(0, row_count, batch_rows):
            ids = everything[first : first + batch_rows]
            rows = content.next_rows(ids)
            for store in stores.values():
                store.write(ids, rows)
        watcher.advance()
        for operation in OPERATIONS:
            watcher.begin(f"{what}, {operation}s")
            rates: dict[str, list[float]] = {name: [] for name in stores}
            for number in range(options.rounds + 1):
                picked = [
                    random.choice(row_count, batch_rows, replace=False)
                    for _ in range(options.batches)
                ]
                rows = np.empty((batch_rows, options.sizes(dim).row_floats), np.float32)
                given = [content.next_rows(ids) for ids in picked] if operation == "write" else []
                for name, store in stores.items():
                    quiesce()
                    start = clock()
                    if operation == "write":
                        for ids, batch in zip(picked, given, strict=True):
                            store.write(ids, batch)
                    else:
                        for ids in picked:
                            store.read(ids, rows)
                    seconds = clock() - start
                    if number > 0:  # the first round isn't counted
                        rates[name].append(options.batches * batch_rows / seconds)
                    _check(name, store, picked[-1], content)
                watcher.advance()
            file_bytes = {name: folder_bytes(folder / name) / row_count for name in stores}
            results += [
                FileTierResult(dim, name, operation, figure, file_bytes[name])
                for name, figure in figures(rates, YARDSTICK).items()
            ]
    return results, unavailable


def _open(name: str, options: TiersOptions, dim: int, row_count: int, folder: Path) -> RowFiles:
    directory = str(folder / "rows")
    if name == YARDSTICK:
        return LevelDbStore(directory, options.sizes(dim).row_floats)
    direct = options.direct and name == "SSDHASH"
    return TierAlone(name, directory, dim, slot_count=1, row_count=row_count, direct=direct)


def _check(name: str, store: RowFiles, ids: Ids, content: Content) -> None:
    expected = content.rows(ids)
    rows = np.empty_like(expected)
    store.read(ids, rows)
    if not np.array_equal(rows, expected):
        raise StorageError(f"{name} read other rows than were written: its figures mean nothing")
