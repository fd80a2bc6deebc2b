"""The embedding variables of Wide & Deep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.workloads.batches import CATEGORICAL_COLUMNS, DENSE_COLUMNS

DEEP_LEARNING_RATE: Final = 0.01
LINEAR_LEARNING_RATE: Final = 0.2
INITIAL_ACCUMULATOR: Final = 0.1
_FILLED_AT_ONCE: Final = 50_000


@dataclass(frozen=True)
class ModelOptions:
    """A model's size and seed. The defaults are the modelzoo's, except for its per-column
    dimensions.
    """

    embedding_dim: int = 16
    hidden_units: tuple[int, ...] = (1024, 512, 256)
    seed: int = 2021

    @property
    def deep_widths(self) -> tuple[int, ...]:
        """The widths of the deep part's input, hidden layers and output."""
        inputs = len(DENSE_COLUMNS) + len(CATEGORICAL_COLUMNS) * self.embedding_dim
        return (inputs, *self.hidden_units, 1)


class EmbeddingTables:
    """A model's variables: for each categorical column a wide one and a deep one.

    A context manager; leaving it closes the variables.
    """

    def __init__(self, storage: es.StorageOption, options: ModelOptions) -> None:
        """Make the variables, each with the whole of `storage` to itself.

        Raises embstore.errors.EmbStoreError if the engine can't; no variable stays open then.
        """
        ev_option = es.EmbeddingVariableOption(storage_option=storage)
        self.wide: list[es.EmbeddingVariable] = []
        self.deep: list[es.EmbeddingVariable] = []
        try:
            for number, column in enumerate(CATEGORICAL_COLUMNS):
                self.wide.append(
                    es.get_embedding_variable(
                        f"wide_{column}",
                        embedding_dim=1,
                        initializer=es.initializers.Zeros(),
                        optimizer=es.optimizers.Ftrl(learning_rate=LINEAR_LEARNING_RATE),
                        ev_option=ev_option,
                        restores=True,
                    )
                )
                self.deep.append(
                    es.get_embedding_variable(
                        f"deep_{column}",
                        embedding_dim=options.embedding_dim,
                        initializer=partial(
                            _draw_initial_values,
                            es.initializers.TruncatedNormal(
                                stddev=options.embedding_dim**-0.5, seed=options.seed + number
                            ),
                        ),
                        optimizer=es.optimizers.Adagrad(
                            learning_rate=DEEP_LEARNING_RATE,
                            initial_accumulator_value=INITIAL_ACCUMULATOR,
                        ),
                        ev_option=ev_option,
                        restores=True,
                    )
                )
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[es.EmbeddingVariable]:
        yield from self.wide
        yield from self.deep

    def fill(self, keys_of_column: Callable[[int], NDArray[np.int64]]) -> None:
        """Give each key of each column a row in both tables, by updates that change no weight.
        keys_of_column: returns a column's keys, int64 (n,). Among keys of the same frequency, the
        last ones stay in the upper tiers.
        """
        for variables in (self.wide, self.deep):
            for column, variable in enumerate(variables):
                for keys in _parts(keys_of_column(column), _FILLED_AT_ONCE):
                    variable.apply_gradients(keys, np.zeros((keys.size, variable.dim), np.float32))
                variable.drain()

    def close(self) -> None:
        for variable in self:
            variable.close()

    def __enter__(self) -> EmbeddingTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@cache
def _draw_initial_values(
    initializer: es.initializers.TruncatedNormal, shape: tuple[int, int]
) -> NDArray[np.float32]:
    """Draws initial values, once for a run and its reference: on emulated machines it takes a
    second.
    """
    return initializer(shape)


def _parts(keys: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, keys.size, size):
        yield keys[start : start + size]
