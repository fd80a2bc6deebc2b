"""Rows drawn from a seed, with the skew of a real recommender's traffic.

The OpenEmbedding paper (ICDE 2023) counts how unevenly its industrial workload touches keys: the
top 0.05 %, 0.1 % and 1 % of them take 85.7 %, 89.5 % and 95.7 % of all accesses. Keys here are
ranked by popularity and their cumulative share of accesses runs through exactly these points, as
straight lines between them on logarithmic axes. The paper says nothing of the share within the top
0.05 %; there it grows as the square root of the rank, which no single key can dominate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pmemlab.workloads.batches import CATEGORICAL_COLUMNS, DENSE_COLUMNS, Batch, DataError
from pmemlab.workloads.hashing import splitmix64

# (share of the keys, most popular first; share of the accesses they take)
ACCESS_SKEW: Final = ((0.0005, 0.857), (0.001, 0.895), (0.01, 0.957), (1.0, 1.0))
_HEAD_EXPONENT = 0.5

# The top 0.05 % must be at least one key.
MIN_KEYS_PER_COLUMN: Final = 2000

_CLICK_BIAS = -1.1  # about a quarter of Criteo's rows are clicks
_KEY_EFFECT_SCALE = 0.35  # 26 of these give logits that a good model ranks with an AUC near 0.85
_DENSE_EFFECT_SCALE = 0.5

_TRAIN_STREAM, _HELD_OUT_STREAM = 0, 1


@dataclass(frozen=True)
class SyntheticSource:
    """Criteo-like rows whose labels depend on their keys.

    Every key, and every dense column, has a hidden effect on the chance of a click; a model can
    learn these effects, which follow from the seed alone. The same seed gives the same rows,
    whatever was drawn before.

    Raises DataError if `keys_per_column` is too small for the skew, or `seed` or `held_out_rows` is
    out of range.
    """

    seed: int = 0
    keys_per_column: int = 100_000
    held_out_rows: int = 10_000

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise DataError(f"seed is {self.seed}; it must be 0 or more")
        if self.keys_per_column < MIN_KEYS_PER_COLUMN:
            raise DataError(
                f"keys_per_column is {self.keys_per_column}; it must be at least "
                f"{MIN_KEYS_PER_COLUMN}, so that the most popular 0.05 % is a key"
            )
        if self.held_out_rows <= 0:
            raise DataError(f"held_out_rows is {self.held_out_rows}; it must be positive")

    def train_batches(self, batch_size: int) -> Iterator[Batch]:
        index = 0
        while True:
            yield self.train_batch(index, batch_size)
            index += 1

    def train_batch(self, index: int, batch_size: int) -> Batch:
        """Returns batch number `index`, from 0, of `train_batches`."""
        return self._draw(batch_size, _TRAIN_STREAM, index)

    def held_out_batches(self, batch_size: int) -> Iterator[Batch]:
        # Drawn all at once, so that the rows are the same whatever the batch size.
        whole = self._draw(self.held_out_rows, _HELD_OUT_STREAM, 0)
        for start in range(0, self.held_out_rows, batch_size):
            rows = slice(start, start + batch_size)
            yield Batch(whole.labels[rows], whole.dense[rows], whole.keys[rows])

    def keys_of_column(self, column: int) -> NDArray[np.int64]:
        """Returns all keys of a column, int64 (keys_per_column,), the most popular last."""
        ranks = np.arange(self.keys_per_column - 1, -1, -1, dtype=np.int64)
        return splitmix64(self.seed, ranks + (column << 32)).view(np.int64)

    def _draw(self, rows: int, stream: int, index: int) -> Batch:
        rng = np.random.default_rng((self.seed, stream, index))
        ranks = draw_ranks(rng.random((rows, len(CATEGORICAL_COLUMNS))), self.keys_per_column)
        # Bits 62..32 tell columns apart, so that two columns share no hidden effect.
        columns = np.arange(len(CATEGORICAL_COLUMNS), dtype=np.int64) << 32
        mixed = splitmix64(self.seed, ranks + columns)
        dense = rng.random((rows, len(DENSE_COLUMNS)), dtype=np.float32)
        logits = (
            _CLICK_BIAS
            + _KEY_EFFECT_SCALE * _hidden_effects(mixed).sum(axis=1)
            + _DENSE_EFFECT_SCALE * (dense - 0.5) @ self._dense_effects()
        )
        labels = rng.random(rows) < 1.0 / (1.0 + np.exp(-logits))
        return Batch(labels.astype(np.float32), dense, mixed.view(np.int64))

    def _dense_effects(self) -> NDArray[np.float64]:
        return np.random.default_rng((self.seed, 2)).standard_normal(len(DENSE_COLUMNS))


def draw_ranks(
    uniforms: NDArray[np.float64], keys: int, head_exponent: float = _HEAD_EXPONENT
) -> NDArray[np.int64]:
    """Turn uniform numbers in [0, 1) into popularity ranks in [0, keys), 0 the most popular.

    The chance of a rank below r·keys is the share of accesses that `ACCESS_SKEW` gives to the top
    fraction r of the keys. Below the table's first point the share grows as r to the power of
    `head_exponent`. The result is int64 of the shape of `uniforms`.
    """
    first_keys, first_share = ACCESS_SKEW[0]
    # The head's power law, extended down to a share that is smaller than any draw of 53 bits.
    lowest_share = 2.0**-54
    lowest_keys = first_keys * (lowest_share / first_share) ** (1 / head_exponent)
    points = np.log(np.array([(lowest_keys, lowest_share), *ACCESS_SKEW]))
    share_of_keys = np.exp(
        np.interp(np.log(np.maximum(uniforms, lowest_share)), points[:, 1], points[:, 0])
    )
    ranks: NDArray[np.int64] = (share_of_keys * keys).astype(np.int64)
    # exp(log(x)) may round up to the next key at the very end.
    return np.minimum(ranks, keys - 1)


def _hidden_effects(mixed: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return a number in [-√3, √3), variance 1, that depends on each key's bits alone."""
    top_bits = splitmix64(0, mixed.view(np.int64)) >> np.uint64(11)
    effects: NDArray[np.float64] = (top_bits.astype(np.float64) * 2.0**-53 - 0.5) * 12.0**0.5
    return effects
