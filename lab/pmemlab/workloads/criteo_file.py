"""Writes rows in the format of Criteo's files, for users who have no such file."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from pmemlab.workloads.batches import Batch, Source
from pmemlab.workloads.criteo import MINIMA, RANGES

__all__ = ["write_raw"]

_BATCH_ROWS = 1024
_MISSING_EVERY = 17  # every 17th number or category is missing, as some are in real files


def write_raw(path: Path, source: Source, rows: int) -> None:
    """Write the first `rows` training rows of a source: label, I1..I13, C1..C26, separated by tabs.

    Numbers are unscaled and rounded, keys are eight hexadecimal digits, and some of both are
    missing. Raises OSError, which names the file.
    """
    batches = source.train_batches(_BATCH_ROWS)
    with path.open("w", encoding="ascii") as file:
        for first, batch in zip(
            range(0, rows, _BATCH_ROWS), islice(batches, -(-rows // _BATCH_ROWS)), strict=True
        ):
            lines = _lines(batch, first)
            file.writelines(lines[: rows - first])


def _lines(batch: Batch, first: int) -> list[str]:
    numbers = np.rint(batch.dense * RANGES + MINIMA).astype(np.int64).tolist()
    keys = (batch.keys.view(np.uint64) >> np.uint64(32)).tolist()
    lines = []
    for i, label in enumerate(batch.labels.astype(np.int64).tolist()):
        fields = [*map(str, numbers[i]), *(f"{key:08x}" for key in keys[i])]
        for column in range((first + i) % _MISSING_EVERY, len(fields), _MISSING_EVERY):
            fields[column] = ""
        lines.append("\t".join([str(label), *fields]) + "\n")
    return lines
