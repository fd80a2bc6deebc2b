"""A table in DRAM that is saved again and again, in full and then in increments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from trained_table import STEPS_A_CHECKPOINT, contents, make, train, uninterrupted

import embstore as es

SAVES = 5
LARGE_DIM = 64
LARGE_ROWS = 5000  # several blocks of a row file, written past the page cache


def train_and_save(medium: Path) -> None:
    with make(es.StorageOption()) as variable:
        for save in range(1, SAVES + 1):
            for step in range(STEPS_A_CHECKPOINT * (save - 1), STEPS_A_CHECKPOINT * save):
                train(variable, step)
            es.save(medium / "saves", [variable], STEPS_A_CHECKPOINT * save)
            print(f"saved {STEPS_A_CHECKPOINT * save}", flush=True)
        for step in range(STEPS_A_CHECKPOINT * SAVES, STEPS_A_CHECKPOINT * (SAVES + 1)):
            train(variable, step)
        es.save_incremental(medium / "increment", [variable], STEPS_A_CHECKPOINT * (SAVES + 1))
        print(f"saved {STEPS_A_CHECKPOINT * (SAVES + 1)}", flush=True)


def check_saves(medium: Path, output: str) -> None:
    """Checks that a restore finds the last save that was reported, or a later one, bit for bit."""
    reported = max((int(line.split()[-1]) for line in output.splitlines()), default=0)
    with make(es.StorageOption()) as variable:
        if reported == 0 and not any((medium / "saves").glob("save-*")):
            return
        increments = [medium / "increment"] if reported > STEPS_A_CHECKPOINT * SAVES else []
        step = es.restore(medium / "saves", [variable], increments)
        if step < reported:
            raise AssertionError(f"step {reported} was saved, and step {step} is the newest")
        if contents(variable) != uninterrupted()[step]:
            raise AssertionError(f"the rows aren't those of step {step}")


def _large() -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "large",
        LARGE_DIM,
        initializer=es.initializers.Ones(),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=es.StorageOption()),
    )


def _train_large(variable: es.EmbeddingVariable) -> None:
    keys = np.arange(LARGE_ROWS)
    variable.apply_gradients(keys, np.ones((LARGE_ROWS, LARGE_DIM), np.float32))


def save_large(medium: Path) -> None:
    with _large() as variable:
        for step in range(1, SAVES + 1):
            _train_large(variable)
            es.save(medium / "saves", [variable], step)
            print(f"saved {step}", flush=True)


def check_large(medium: Path, output: str) -> None:
    reported = max((int(line.split()[-1]) for line in output.splitlines()), default=0)
    with _large() as variable, _large() as wanted:
        if reported == 0 and not any((medium / "saves").glob("save-*")):
            return
        step = es.restore(medium / "saves", [variable])
        if step < reported:
            raise AssertionError(f"step {reported} was saved, and step {step} is the newest")
        for _ in range(step):
            _train_large(wanted)
        for name, values in wanted.export().items():
            if not np.array_equal(variable.export()[name], values):
                raise AssertionError(f"{name} of step {step} are others")
