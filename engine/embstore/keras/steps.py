"""The tables that a Keras optimizer trains in one step are trained together."""

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

__all__ = ["Assigned", "assign", "train_tables", "train_together"]


@dataclass(frozen=True)
class Assigned:
    """What a step of a Keras optimizer assigns to a table's `Rows`.

    looked_up: the gradient, a tensor of (marks.SIZE,); loss_scale: what it is still multiplied by.
    """

    table: Table
    looked_up: Any
    loss_scale: Any


# By the Keras optimizer that is at a step.
_assigned: weakref.WeakKeyDictionary[Any, list[Assigned]] = weakref.WeakKeyDictionary()


def assign(assigned: Assigned, optimizer: Any) -> bool:
    """Has the table trained at the end of the optimizer's step; False where it is at none."""
    of_step = _assigned.get(optimizer)
    if of_step is not None:
        of_step.append(assigned)
    return of_step is not None


def train_tables(
    tables: Sequence[Table],
    looked_up: Sequence[NDArray[np.float32]],
    loss_scales: Sequence[float],
    rate: float,
    optimizer: Any,
) -> None:
    """Applies what `Table.update` gives for each; nothing where one of them raises."""
    updates = [
        table.update(marks, rate, scale, optimizer)
        for table, marks, scale in zip(tables, looked_up, loss_scales, strict=True)
    ]
    variables, ids, grads = zip(*updates, strict=True)
    apply_many(variables, ids, grads)


def train_together(
    train: Callable[[Sequence[Assigned], Any, Sequence[Any]], Sequence[Any]],
) -> None:
    """Has Keras's optimizers train tables by `train`, of the tables of a step, the optimizer, and
    the gradients of dense weights. It gives these back, to be applied once the tables are trained:
    where a table refuses its part, no dense weight has its own.

    Keras assigns the gradients of all tables in one method of the optimizer's. At its end they are
    trained; optimizers without tables go on as they do.
    """
    overwrite = getattr(keras.optimizers.Optimizer, ASSIGNS_GRADIENTS)

    def overwrite_and_train(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> Any:
        of_step: list[Assigned] = []
        _assigned[optimizer] = of_step
        try:
            dense_grads, dense = overwrite(optimizer, grads, variables)
        finally:
            del _assigned[optimizer]
        if of_step:
            dense_grads = train(of_step, optimizer, dense_grads)
        return dense_grads, dense

    setattr(keras.optimizers.Optimizer, ASSIGNS_GRADIENTS, overwrite_and_train)
