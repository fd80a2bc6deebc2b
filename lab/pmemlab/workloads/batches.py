"""The batches that every source of training data yields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

DENSE_COLUMNS: Final = tuple(f"I{number}" for number in range(1, 14))
CATEGORICAL_COLUMNS: Final = tuple(f"C{number}" for number in range(1, 27))


class DataError(ValueError):
    """Unusable training data, or a checkpoint that can't be read, used or written.

    The message names the file and line, or the argument.
    """


@dataclass(frozen=True)
class Batch:
    """A batch of n rows in Criteo's layout.

    `labels` is float32 (n,), 1 for a click and 0 for none; `dense` is float32 (n, 13); `keys` is
    int64 (n, 26). A column's keys mean something in that column only, since each has its own table.
    """

    labels: NDArray[np.float32]
    dense: NDArray[np.float32]
    keys: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


class Source(Protocol):
    """A source of training rows and of held-out rows for evaluation. Every call yields the same
    rows.
    """

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield batches of exactly `batch_size` rows, without end."""

    def held_out_batches(self, batch_size: int) -> Iterator[Batch]:
        """Yield each held-out row once, in batches of at most `batch_size` rows."""
