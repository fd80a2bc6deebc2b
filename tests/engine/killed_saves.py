"""Saves that are killed at random moments, each in a forked process.

test_checkpoint_faults.py runs this; for a longer run by hand:

python killed_saves.py DIRECTORY KILLS SEED
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

import embstore as es

ROWS = 3000


def variable() -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "var",
        8,
        initializer=es.initializers.Zeros(),
        optimizer=es.optimizers.SGD(1.0),
        partition_num=3,
    )


def save_for_ever(path: Path) -> None:
    """Trains and saves without end. After step n every value of every row is n."""
    with variable() as var:
        step = es.restore(path, [var])
        while True:
            step += 1
            var.apply_gradients(np.arange(ROWS), np.full((ROWS, 8), -1.0, np.float32))
            es.save(path, [var], step)


def main(path: Path, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    with variable() as var:
        var.apply_gradients(np.arange(ROWS), np.full((ROWS, 8), -1.0, np.float32))
        es.save(path, [var], 1)
    unfinished = 0
    last = 1
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            save_for_ever(path)
        time.sleep(moments.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        unfinished += any(entry.name.endswith(".unfinished") for entry in path.iterdir())
        with variable() as var:
            step = es.restore(path, [var])
            assert step >= last, f"a save was lost: {step} after {last}"
            last = step
            rows = var.export()["values"]
            assert rows.shape == (ROWS, 8)
            assert (rows == step).all(), "a save is of two steps"
    print(f"{kills} kills, {unfinished} in the middle of a save, {last} saves")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
