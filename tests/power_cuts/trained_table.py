"""A table on a durable pool that is trained, persisted, cut and restored, beside one in DRAM.

Runs as a program under power cuts: it restores the newest checkpoint, checks it and trains on.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.options import TIER_KINDS, TierKind

DRAM_PMEM = es.StorageType.DRAM_PMEM

DIM = 4
ROW_BYTES = 2 * 16
KEYS = 120
CACHE_ROWS = 16
POOL_BYTES = 2 << 20
# Few slots beside those of moves, of the header, and of the 16 rows of DRAM with their headroom.
POOL_BYTES_ABOVE_SSD = (16 + 256 + 4096 + 16 + 24) * 256
BATCH = 12
STEPS = 24  # in one run, at most
MAX_STEPS = 20 * STEPS  # in all runs
STEPS_A_CHECKPOINT = 3
KEEP = 2


def batch(step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    random = np.random.default_rng(step)
    ids = random.integers(0, KEYS, BATCH)
    return ids, random.standard_normal((BATCH, DIM)).astype(np.float32)


def make(storage: es.StorageOption) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "table",
        DIM,
        initializer=es.initializers.RandomNormal(seed=3),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(
            storage_option=storage, filter_option=es.CounterFilter(2)
        ),
        restores=True,
    )


def open_table(medium: Path, storage_type: es.StorageType = DRAM_PMEM) -> es.EmbeddingVariable:
    kinds = TIER_KINDS[storage_type]
    return make(
        es.StorageOption(
            storage_type=storage_type,
            storage_path=str(medium),
            storage_size=[
                *[CACHE_ROWS * ROW_BYTES] * kinds.index(TierKind.PMEM),
                POOL_BYTES if kinds[-1] is TierKind.PMEM else POOL_BYTES_ABOVE_SSD,
            ],
            durability="checkpoint",
            device="emulated" if kinds[0] is TierKind.HBM else None,
        )
    )


def train(variable: es.EmbeddingVariable, step: int) -> None:
    """Trains one step. If the variable has HBM, two of three batches are on the GPU."""
    ids: Any
    grads: Any
    ids, grads = batch(step)
    if variable.ev_option.storage_option.has_hbm and step % 3:
        ids = es.DeviceArray(ids, device="emulated")
        grads = es.DeviceArray(grads, device="emulated")
    variable.lookup(ids, train=True)
    variable.apply_gradients(ids, grads)


def contents(variable: es.EmbeddingVariable) -> dict[str, Any]:
    waiting = variable.get_frequency(np.arange(KEYS)).tobytes()
    return {"waiting": waiting, **{k: v.tobytes() for k, v in variable.export().items()}}


@cache
def uninterrupted() -> list[dict[str, Any]]:
    """Returns the contents of a table in DRAM after each number of steps."""
    with make(es.StorageOption()) as variable:
        found = [contents(variable)]
        for step in range(MAX_STEPS + STEPS):
            train(variable, step)
            found.append(contents(variable))
        return found


def restore(variable: es.EmbeddingVariable, checkpoints: Path) -> int:
    """Restores the newest checkpoint and returns its step; 0 if there is none yet. Raises if rows
    are wrong."""
    if not es.persisted(checkpoints):
        return 0
    step = es.restore_persisted([variable], checkpoints)
    if contents(variable) != uninterrupted()[step]:
        raise AssertionError(f"the rows aren't those of step {step}")
    return step


def train_and_persist(medium: Path, storage_type: es.StorageType = DRAM_PMEM) -> None:
    """Goes on from the newest checkpoint. Prints which step is durable as soon as it must be."""
    checkpoints = medium / "checkpoints"
    with open_table(medium, storage_type) as variable:
        step = restore(variable, checkpoints)
        print(f"goes on from {step}", flush=True)
        for number in range(STEPS // STEPS_A_CHECKPOINT):
            for _ in range(STEPS_A_CHECKPOINT):
                train(variable, step)
                step += 1
            if step >= MAX_STEPS:
                break
            window = number % 3
            es.persist([variable], checkpoints, window, global_step=step, keep=KEEP)
            if window == 0:
                print(f"durable {step}", flush=True)


def check_newest(medium: Path, output: str) -> None:
    """Checks that the newest checkpoint has the rows of its step and is no older than the last that
    was reported durable."""
    with open_table(medium) as variable:
        _check_newest(variable, medium, output)


def check(medium: Path, output: str, storage_type: es.StorageType = DRAM_PMEM) -> None:
    """Checks the newest checkpoint; that every older one that is listed can be restored; and that
    training on from the oldest gives the rows of a run that was never cut. Gives up all checkpoints
    but the oldest."""
    checkpoints = medium / "checkpoints"
    listed = es.persisted(checkpoints)
    with open_table(medium, storage_type) as variable:
        step = _check_newest(variable, medium, output)
        for older in reversed(listed[:-1]):
            step = es.restore_persisted([variable], checkpoints, older)
            if contents(variable) != uninterrupted()[step]:
                raise AssertionError(f"the rows of checkpoint {older} aren't those of step {step}")
        for more in range(step, step + 2 * STEPS_A_CHECKPOINT):
            train(variable, more)
        if contents(variable) != uninterrupted()[step + 2 * STEPS_A_CHECKPOINT]:
            raise AssertionError(f"training from step {step} ends elsewhere")


def _check_newest(variable: es.EmbeddingVariable, medium: Path, output: str) -> int:
    reported = [int(line.split()[-1]) for line in output.splitlines() if line.startswith("durable")]
    step = restore(variable, medium / "checkpoints")
    if step < max(reported, default=0):
        raise AssertionError(f"step {max(reported)} was durable, and step {step} is the newest")
    return step
