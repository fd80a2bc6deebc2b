"""Variables that keep their files, killed at random moments of training and closing.

test_kept_files.py runs this; for a longer run by hand:

python killed_variables.py DIRECTORY KILLS SEED

Each life opens the variable, trains it and closes it, and is killed somewhere in between. The next
process must find, to the last bit, the state of the last close that finished, or of the close that
was under way.
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
from pathlib import Path

import numpy as np
from durable_table import contents
from numpy.typing import NDArray

import embstore as es

KEYS = 6_000
BATCH = 800
STEPS = 12  # in each life
DIM = 30  # the end of a row is padding
FIRST_TIER_ROWS = 64
ROW_BYTES = 2 * 128


def variable(directory: Path | None) -> es.EmbeddingVariable:
    """Opens a variable with files in `directory`; or in DRAM if that is None, as a model."""
    storage = es.StorageOption()
    if directory is not None:
        storage = es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            storage_path=directory,
            storage_size=[FIRST_TIER_ROWS * ROW_BYTES],
            ssdhash_option=es.SSDHashOption(keep_files=True, buffer_bytes=128 << 10),
        )
    return es.get_embedding_variable(
        "var",
        DIM,
        initializer=es.initializers.RandomNormal(seed=1),
        optimizer=es.optimizers.Adam(0.01),
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
        partition_num=2,
    )


def train(var: es.EmbeddingVariable, seed: int, life: int) -> None:
    for step in range(STEPS):
        generator = np.random.default_rng((seed, life, step))
        keys = generator.choice(KEYS, BATCH, replace=False)
        var.apply_gradients(keys, generator.standard_normal((BATCH, DIM)).astype(np.float32))
        var.lookup(keys[:50])  # a promotion without an update


def check(directory: Path, seed: int, lives: list[int], last: int) -> bool:
    """Fails unless the rows are those after `lives`, or after `lives` and `last`. Returns True for
    the latter."""
    with variable(directory) as var, variable(None) as model:
        found = contents(var)
        for life in lives:
            train(model, seed, life)
        if found == contents(model):
            return False
        train(model, seed, last)
        assert found == contents(model), "the variable is as it never was closed"
        return True


def run_in_fork(work: Callable[[], None]) -> None:
    """Runs `work` in a fork. The engine's threads do not survive a fork: this process has none."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "see above"


def live(directory: Path, seed: int, life: int, phase: NDArray[np.int64]) -> None:
    var = variable(directory)
    train(var, seed, life)
    phase[0] = 1  # closing
    var.close()
    phase[0] = 2
    time.sleep(60)


def main(directory: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    shared = np.frombuffer(mmap.mmap(-1, 16), np.int64)
    phase, is_closed = shared[:1], shared[1:]
    lives: list[int] = []
    in_closes = 0
    for life in range(kills):
        os.environ["TF_SSDHASH_ASYNC_COMPACTION"] = str(life % 2)
        phase[0] = 0
        child = os.fork()
        if child == 0:
            live(directory, seed, life, phase)
        wanted = life % 3  # the phase to be killed in: training, closing, closed
        while phase[0] < wanted:
            time.sleep(0.0005)
        if wanted < 2:
            time.sleep(moments.uniform(0.0, 0.2 if wanted == 0 else 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        in_closes += int(phase[0] == 1)

        def look(life: int = life) -> None:
            is_closed[0] = check(directory, seed, lives, life)

        run_in_fork(look)
        assert is_closed[0] or phase[0] < 2, "a close that had ended is lost"
        if is_closed[0]:
            lives.append(life)
    print(f"{kills} kills, {in_closes} of them in closes, {len(lives)} lives kept")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
