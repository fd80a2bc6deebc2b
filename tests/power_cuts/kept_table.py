"""A table that keeps its rows on SSD (SSDHASH, synced), and is closed."""

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
                keep_files=True, sync=True, file_bytes=64 << 10, buffer_bytes=128 << 10
            ),
        )
    )


def train(variable: es.EmbeddingVariable, step: int) -> None:
    ids, grads = batch(step)
    variable.lookup(ids, train=True)
    variable.apply_gradients(ids, grads, global_step=step)


Row = tuple[bytes, bytes, int]  # values, accumulator, frequency


def rows_of(variable: es.EmbeddingVariable) -> dict[tuple[int, int], Row]:
    """By key and version."""
    table = variable.export()
    return {
        (int(key), int(table["versions"][i])): (
            table["values"][i].tobytes(),
            table["accumulator"][i].tobytes(),
            int(table["freqs"][i]),
        )
        for i, key in enumerate(table["keys"])
    }


@cache
def history() -> tuple[dict[tuple[int, int], Row], dict[tuple[int, int], Row]]:
    """What each row ever was, and what the rows are in the end."""
    with make(es.StorageOption()) as variable:
        seen: dict[tuple[int, int], Row] = {}
        for step in range(STEPS):
            train(variable, step)
            seen = {**seen, **rows_of(variable)}
        return seen, rows_of(variable)


def train_and_close(medium: Path) -> None:
    with open_table(medium) as variable:
        for step in range(STEPS):
            train(variable, step)
    print("closed", flush=True)
    for number in range(20):  # moments for cuts after the close
        (medium / "more").write_text(str(number))


def check_kept(medium: Path, output: str) -> None:
    """Each row is one that once was; after a close none is missing or older."""
    ever, in_the_end = history()
    with open_table(medium) as variable:
        rows = rows_of(variable)
    for place, row in rows.items():
        if ever.get(place) != row:
            raise AssertionError(f"the row of key and version {place} never was")
    if "closed" in output and rows != in_the_end:
        missing = in_the_end.keys() - rows.keys()
        raise AssertionError(f"closed, and these keys are missing or older: {sorted(missing)}")
