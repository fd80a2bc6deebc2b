"""Reads files that tell how often a table's rows were looked up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from embstore.errors import EmbStoreError
from embstore.row_files.columns import LISTS_OF_ANY_LENGTH
from embstore.row_files.reading import row_files
from pmemlab.errors import PlanError
from pmemlab.model.planning.popularity import CountedRows

__all__ = ["RecordedTable", "popularity_of_ids", "recorded_table"]

_ROWS_AT_A_TIME = 1 << 20


def popularity_of_ids(path: Path, rows: int | None) -> CountedRows:
    """Reads an .npy file of looked-up ids: integers of any shape, duplicates included.

    rows: of the table; None: as many as there are distinct ids. Raises PlanError.
    """
    if path.is_fifo():  # opening it would wait for a writer
        raise PlanError(f"{path}: is a FIFO; give a file of ids")
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise PlanError(f"{path}: can't be read: {error}") from error
    except (ValueError, EOFError) as error:  # NumPy takes any other file for a pickle
        raise PlanError(
            f"{path}: is no whole .npy file of ids; numpy.save(PATH, ids) writes one"
        ) from error
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        got = ids.dtype if isinstance(ids, np.ndarray) else type(ids).__name__
        raise PlanError(f"{path}: must hold ids, which are integers, got {got}")
    _, counts = np.unique(ids, return_counts=True)
    return CountedRows(counts, rows, f"ids of {path.name}")


@dataclass(frozen=True)
class RecordedTable:
    """A trained table's popularity and row length."""

    popularity: CountedRows
    dim: int


def recorded_table(path: Path, rows: int | None) -> RecordedTable:
    """Reads a table with the frequencies that the engine counted, as `embstore.write_rows` wrote
    it.

    path: the folder, or one of its files. rows: as in `popularity_of_ids`. Raises PlanError.
    """
    counts: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    dims: set[int] = set()
    try:
        for file, opened in row_files(path):
            for name in ("freqs", "values"):
                if name not in opened.columns:
                    raise PlanError(f"{file}: has no column {name}; embstore.write_rows writes it")
            if (shape := opened.columns["values"]) != LISTS_OF_ANY_LENGTH:
                dims.update(shape)
            counts += [
                np.asarray(chunk["freqs"], np.int64)
                for chunk in opened.chunks(("freqs",), _ROWS_AT_A_TIME)
            ]
    except EmbStoreError as error:
        raise PlanError(str(error)) from error
    if len(dims) != 1:
        raise PlanError(f"{path}: its files have rows of several lengths: {sorted(dims)}")
    every = np.concatenate(counts) if counts else np.empty(0, np.int64)
    return RecordedTable(CountedRows(every, rows, f"look-ups counted in {path.name}"), dims.pop())
