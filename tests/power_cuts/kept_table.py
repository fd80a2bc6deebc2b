"""A table that keeps its rows on SSD (SSDHASH). It is trained and closed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from trained_table import CACHE_ROWS, DIM, ROW_BYTES, batch

import embstore as es

STEPS = 60


def make(storage: es.StorageOption) -> es.EmbeddingVariable:
    return es.get_embedding_variable(
        "table",
        DIM,
        initializer=es.initializers.RandomNormal(seed=3),
        optimizer=es.optimizers.Adagrad(0.1),
        ev_option=es.EmbeddingVariableOption(storage_option=storage),
    )


def open_table(medium: Path) -> es.EmbeddingVariable:
    return make(
        es.StorageOption(
            storage_type=es.StorageType.DRAM_SSDHASH,
            storage_path=str(medium),
            storage_size=[CACHE_ROWS * ROW_BYTES],
            ssdhash_option=es.SSDHashOption(
                keep_files=True, file_bytes=64 << 10, buffer_bytes=128 << 10
            ),
        )
    )


def train(variable: es.EmbeddingVariable, step: int) -> None:
    ids, grads = batch(step)
    variable.lookup(ids, train=True)
    variable.apply_gradients(ids, grads, global_step=step)


@cache
def expected_rows() -> dict[str, bytes]:
    """Returns the rows that a close keeps."""
    with make(es.StorageOption()) as variable:
        for step in range(STEPS):
            train(variable, step)
        return contents(variable)


def contents(variable: es.EmbeddingVariable) -> dict[str, bytes]:
    return {name: column.tobytes() for name, column in variable.export().items()}


def train_and_close(medium: Path) -> None:
    with open_table(medium) as variable:
        for step in range(STEPS):
            train(variable, step)
    print("closed", flush=True)
    for number in range(20):  # moments for cuts after the close
        (medium / "more").write_text(str(number))


def check_kept(medium: Path, output: str) -> None:
    """Checks that the table is as it was closed, or is empty if the close had not ended."""
    with open_table(medium) as variable:
        if variable.total_count()[0] == 0 and "closed" not in output:
            return
        if contents(variable) != expected_rows():
            raise AssertionError("the rows are others than those that were closed")
