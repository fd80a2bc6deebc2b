"""Variables that are killed at random moments while they train, each in a forked process.

test_kept_files.py runs this; for a longer run by hand:

python killed_variables.py DIRECTORY KILLS SEED

What a row holds tells which update it is: each adds 1 to every column and to the frequency, and
leaves its number as the version. Batches follow from the seed, so every state that a row had is
known, and how many batches were finished is noted in memory that outlives the process.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

import embstore as es

KEYS = 20_000
BATCH = 1500
DIM = 30  # a row's end is padding
FIRST_TIER_ROWS = 64
FIRST_TIER_SLOTS = FIRST_TIER_ROWS + max(256, BATCH)  # with those of rows on the move
ROW_BYTES = 128
GATHERED = (4 << 20) // 8 // (64 + ROW_BYTES) + 1  # records at most that aren't written out

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """By key: 0 and -1 where there is no row."""

    updates: Ints
    versions: Ints


def variable(directory: Path) -> es.EmbeddingVariable:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        storage_path=directory,
        storage_size=[FIRST_TIER_ROWS * ROW_BYTES],
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )
    return es.get_embedding_variable(
        "var",
        DIM,
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(1.0),
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
    )


def batch(seed: int, kill: int, step: int) -> Ints:
    return np.random.default_rng((seed, kill, step)).choice(KEYS, BATCH, replace=False)


def train_for_ever(directory: Path, seed: int, kill: int, finished: Ints) -> NoReturn:
    var = variable(directory)
    grads = np.full((BATCH, DIM), -1.0, np.float32)
    step = 0
    while True:
        keys = batch(seed, kill, step)
        var.apply_gradients(keys, grads)
        step += 1
        finished[0] = step
        var.lookup(keys[:100])  # a promotion without an update


def read_rows(var: es.EmbeddingVariable) -> Rows:
    """Every row, sure to be whole and there once."""
    found = var.export()
    assert var.recovery is not None
    assert var.recovery.rows == var.total_count()[0] == len(found["keys"])
    assert len(np.unique(found["keys"])) == len(found["keys"]), "a row is doubled"
    values = found["values"]
    assert (values == values[:, :1]).all(), "a row is torn, or of two updates"
    assert (values[:, 0] == found["freqs"]).all(), "a row's frequency is that of another update"
    rows = Rows(np.zeros(KEYS, np.int64), np.full(KEYS, -1))
    rows.updates[found["keys"]] = found["freqs"]
    rows.versions[found["keys"]] = found["versions"]
    return rows


def check(directory: Path, seed: int, kill: int, finished: int, before: Rows) -> tuple[Rows, int]:
    """What is there after a kill, and how many records were never written out."""
    var = variable(directory)
    report = var.recovery
    if report is None:  # killed before it had made the directory's first file
        assert finished == 0
        var.close()
        return before, 0
    found = read_rows(var)

    wanted_updates = before.updates.copy()
    newest_versions = before.versions.copy()
    had = (found.updates == before.updates) & (found.versions == before.versions)
    first = before.versions.max() + 1
    for step in range(finished + 1):  # the last one may have been under way
        keys = batch(seed, kill, step)
        wanted_updates[keys] += 1
        had[keys] |= (found.versions[keys] == first + step) & (
            found.updates[keys] == wanted_updates[keys]
        )
        if step < finished:
            newest_versions[keys] = first + step
    had |= found.updates == 0  # missing
    assert had.all(), f"rows are as they never were: {np.flatnonzero(~had)[:10]}"

    behind = int((found.versions < newest_versions).sum())
    assert report.damaged == 0, report.first_damage
    assert report.unwritten is not None
    # A torn record may be a copy of a row that is whole elsewhere, so it needn't be missing.
    assert max(report.torn, report.unwritten) <= GATHERED, report
    assert behind <= FIRST_TIER_SLOTS + report.unwritten, f"{behind} rows are missing or older"

    keys = np.random.default_rng(kill).choice(KEYS, BATCH)
    assert (var.lookup(keys) == found.updates[keys, None]).all()
    var.close()
    with variable(directory) as again:
        same = read_rows(again)
        assert (same.updates == found.updates).all()
        assert (same.versions == found.versions).all()
        assert again.recovery is not None
        assert again.recovery.unwritten == 0, "a clean close lost something"
    return found, report.unwritten


def in_a_process(work: Callable[[], None]) -> None:
    """The engine's threads don't live through a fork, so this process never starts any."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "see above"


def main(directory: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    shared = np.frombuffer(mmap.mmap(-1, 8 * (2 + 2 * KEYS)), np.int64)
    finished, unwritten = shared[:1], shared[1:2]
    rows = Rows(shared[2 : 2 + KEYS], shared[2 + KEYS :])
    rows.versions[:] = -1
    batches = 0
    for kill in range(kills):
        os.environ["TF_SSDHASH_ASYNC_COMPACTION"] = str(kill % 2)
        finished[0] = 0
        child = os.fork()
        if child == 0:
            train_for_ever(directory, seed, kill, finished)
        time.sleep(moments.uniform(0.0, 0.4))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        batches += int(finished[0])

        def check_and_note(kill: int = kill) -> None:
            found, missing = check(directory, seed, kill, int(finished[0]), rows)
            rows.updates[:], rows.versions[:] = found.updates, found.versions
            unwritten[0] += missing

        in_a_process(check_and_note)
    count = int((rows.updates > 0).sum())
    print(f"{kills} kills, {batches} batches, {count} rows, {unwritten[0]} records never written")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
