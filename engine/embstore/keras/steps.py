"""Trains the tables of one step of a Keras optimizer together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from embstore.keras.private import ASSIGNS_GRADIENTS
from embstore.keras.table import Table
from embstore.table.many import apply_many

__all__ = ["AssignedGradient", "record_assigned", "train_tables", "train_together"]


@dataclass(frozen=True)
class AssignedGradient:
    """The gradient that a step of a Keras optimizer assigns to a table's `Rows`.

    mark_sum: a tensor of (marks.SIZE,). loss_scale: the factor that it still has.
    """

    table: Table
    mark_sum: Any
    loss_scale: Any


# Maps a Keras optimizer that is in a step to what the step has assigned so far.
_assigned: weakref.WeakKeyDictionary[Any, list[AssignedGradient]] = weakref.WeakKeyDictionary()


def record_assigned(assigned: AssignedGradient, optimizer: Any) -> bool:
    """Has the table trained at the end of the optimizer's step. Returns False if it is in none."""
    step_gradients = _assigned.get(optimizer)
    if step_gradients is not None:
        step_gradients.append(assigned)
    return step_gradients is not None


def train_tables(
    tables: Sequence[Table],
    mark_sum: Sequence[NDArray[np.float32]],
    loss_scales: Sequence[float],
    rate: float,
    optimizer: Any,
) -> None:
    """Applies the result of `Table.update` for each table, or nothing if a table raises."""
    updates = [
        table.update(marks, rate, scale, optimizer)
        for table, marks, scale in zip(tables, mark_sum, loss_scales, strict=True)
    ]
    variables, ids, grads = zip(*updates, strict=True)
    apply_many(variables, ids, grads)


def train_together(
    train: Callable[[Sequence[AssignedGradient], Any, Sequence[Any]], Sequence[Any]],
) -> None:
    """Has Keras's optimizers train tables by train(tables of the step, optimizer, dense gradients).
    `train` returns the dense gradients, to be applied once the tables are trained: if a table
    refuses its gradients, no dense weight changes either.

    Keras assigns the gradients of all tables in one method of the optimizer. The tables are trained
    at its end; optimizers without tables work as before.
    """
    overwrite = getattr(keras.optimizers.Optimizer, ASSIGNS_GRADIENTS)

    def overwrite_and_train(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        step_gradients: list[AssignedGradient] = []
        _assigned[optimizer] = step_gradients
        try:
            dense_grads, dense = overwrite(optimizer, grads, variables)
        finally:
            del _assigned[optimizer]
        if step_gradients:
            dense_grads = train(step_gradients, optimizer, dense_grads)
        return dense_grads, dense

    setattr(keras.optimizers.Optimizer, ASSIGNS_GRADIENTS, overwrite_and_train)
