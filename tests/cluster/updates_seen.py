"""Rows that show which updates they have seen, and how often.

Every update of a worker adds 1 to the rows of some keys that only it has, and of some keys that all
updates have.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hunted_program import SHARDS
from numpy.typing import NDArray

import embstore as es
from embstore import _core

__all__ = [
    "STEPS",
    "TABLES",
    "WORKERS",
    "assert_updates_were_applied_once",
    "ids_of_update",
    "keys_of_shards",
    "write_rows",
]

WORKERS = 2
TABLES = 2
STEPS = 60
KEYS = 8  # keys that only one update has
ALL_HAVE = -1 - np.arange(4)  # keys that all updates have


def ids_of_update(rank: int, step: int) -> NDArray[np.int64]:
    return np.concatenate([keys(rank, step), ALL_HAVE])


def keys(rank: int, step: int) -> NDArray[np.int64]:
    return np.arange(KEYS) + KEYS * (WORKERS * step + rank)


def write_rows(path: Path, tables: Sequence[es.EmbeddingVariable], step: int, before: str) -> None:
    """Writes PATH.npz, as a whole: how often each table's keys were trained, and `before`, the name
    of the rows that the start went on from.
    """
    columns: dict[str, Any] = {"step": step, "before": before}
    for number, table in enumerate(tables):
        columns |= {f"{number} {name}": column for name, column in table.export().items()}
    written = path.with_suffix(".written.npz")
    np.savez(written, **columns)
    written.rename(path.with_suffix(".npz"))


@dataclasses.dataclass(frozen=True)
class _Seen:
    """The updates that rows have seen. of_update: how often, by table, worker, step and key.
    of_all: by table and by key that all updates have.
    """

    step: int
    before: str
    of_update: NDArray[np.int64]
    of_all: NDArray[np.int64]


def _seen(path: Path) -> _Seen:
    with np.load(path.with_suffix(".npz")) as columns:
        rows = dict(columns)
    of_update, of_all = [], []
    for number in range(TABLES):
        found, values, freqs = (rows[f"{number} {name}"] for name in ("keys", "values", "freqs"))
        sums = np.broadcast_to(freqs[:, None], values.shape)
        np.testing.assert_array_equal(values, sums, "each update is a whole one")
        counts = dict(zip(found.tolist(), freqs.tolist(), strict=True))
        every = range(STEPS)
        of_update.append(
            [
                [[counts.pop(int(key), 0) for key in keys(rank, step)] for step in every]
                for rank in range(WORKERS)
            ]
        )
        of_all.append([counts.pop(int(key), 0) for key in ALL_HAVE])
        assert not counts, "keys that nobody trained"
    return _Seen(int(rows["step"]), str(rows["before"]), np.array(of_update), np.array(of_all))


def assert_updates_were_applied_once(folder: Path, meets: bool) -> None:
    """Checks the rows at the end and those that each start began with, each against the rows that
    it continued from:

    - Worker 0's updates up to the checkpoint's step were applied once each, and no others.
    - Another worker's updates were applied in each shard up to some step, once each, and no others.
      At
      the end, and if the workers meet, that is worker 0's step.
    """
    after = _seen(folder / "result")
    is_end = True
    while True:
        nothing = _Seen(0, "", np.zeros_like(after.of_update), np.zeros_like(after.of_all))
        before = _seen(folder / after.before) if after.before else nothing
        _assert_went_on(before, after, is_end or meets)
        if not after.before:
            return
        after, is_end = before, False


def _assert_went_on(before: _Seen, after: _Seen, is_exact: bool) -> None:
    """is_exact: all workers have reached the step of `after`; otherwise only worker 0 has."""
    news = after.of_update - before.of_update
    news_of_all = after.of_all - before.of_all
    for table, (shard, keys_of) in itertools.product(range(TABLES), enumerate(keys_of_shards())):
        least, most = 0, 0  # number of updates that the shard has seen
        for rank in range(WORKERS):
            where = f"table {table}, shard {shard}, worker {rank}, from step {before.step}"
            here = np.isin([keys(rank, step) for step in range(STEPS)], keys_of)
            # For each step, how often the keys of this shard were trained; some steps have none.
            seen = [
                set(times[is_here].tolist())
                for times, is_here in zip(news[table, rank], here, strict=True)
            ]
            trained = [step for step in range(before.step, STEPS) if seen[step] == {1}]
            reached = max(trained, default=before.step - 1) + 1
            furthest = next((step for step in range(reached, STEPS) if seen[step]), STEPS)
            if rank == 0 or is_exact:
                assert reached <= after.step <= furthest, f"{where}: to {reached}"
                reached = furthest = after.step
            assert all(times <= {0} for times in seen[: before.step]), where
            assert all(times <= {1} for times in seen[before.step : reached]), where
            assert all(times <= {0} for times in seen[reached:]), where
            least += reached - before.step
            most += furthest - before.step
        for times, key in zip(news_of_all[table], ALL_HAVE, strict=True):
            if key in keys_of:
                assert least <= times <= most, f"key {key} of table {table}: {times}"


def keys_of_shards() -> list[NDArray[np.int64]]:
    every = [keys(rank, step) for rank in range(WORKERS) for step in range(STEPS)]
    together = np.concatenate([*every, ALL_HAVE])
    positions, begins = _core.keys_by_partition(together, SHARDS)
    return [together[positions[begin:end]] for begin, end in itertools.pairwise(begins)]
