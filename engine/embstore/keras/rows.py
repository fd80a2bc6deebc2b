"""The Keras variable that stands for a table's rows, and trains them when it is applied."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NoReturn

import keras
from keras.src.backend.common import global_state

from embstore.errors import UnsupportedError
from embstore.keras.backend import train_when
from embstore.keras.table import Table

__all__ = ["Rows"]


class Rows(keras.Variable):  # type: ignore[misc]
    """Takes its turn among a model's trainable variables for rows that Keras can't hold.

    It is a scalar. Each look-up that comes back in a backward pass adds 1 to its gradient, after
    handing what came back to the table. As `overwrite_with_gradient` says, a Keras optimizer
    doesn't train it, but assigns that gradient: this is when the rows are trained.
    """

    def __init__(self, table: Table, trainable: bool) -> None:
        super().__init__("zeros", shape=(), dtype="float32", trainable=trainable, name="rows")
        self.overwrite_with_gradient = True
        self.table = table

    def assign(self, value: Any) -> Any:
        optimizer = _applying_optimizer()
        if optimizer is None:
            self._refuse("set")
        for option in ("use_ema", "gradient_accumulation_steps"):
            if getattr(optimizer, option, None):
                raise UnsupportedError(
                    f"{self.table.name}: rows can't follow keras.optimizers."
                    f"{type(optimizer).__name__} with {option}; compile the model without"
                )
        train_when(self.table, value, optimizer, _loss_scale(optimizer))
        return value

    def numpy(self) -> NoReturn:
        self._refuse("given")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        self._refuse("given")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"{self.table.name}: its rows can't be {what} as one array (get_weights, set_weights, "
            "EarlyStopping's restore_best_weights); save_weights and load_weights, and the "
            "callback ModelCheckpoint, keep them"
        )


def _applying_optimizer() -> Any:
    """The Keras optimizer that is at work: it names itself to the variables that it makes."""
    scopes = global_state.get_global_attribute("name_scope_stack") or []
    callers = [scope.caller for scope in scopes]
    found = [caller for caller in callers if isinstance(caller, keras.optimizers.Optimizer)]
    return found[-1] if found else None


def _loss_scale(optimizer: Any) -> Any:
    """What the loss was multiplied by, and assigned gradients still are; a number or tensor."""
    scale = optimizer.loss_scale_factor or 1.0
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        outer = frame.f_locals.get("self")
        if isinstance(outer, keras.optimizers.LossScaleOptimizer):  # which tells it to nobody
            return outer.dynamic_scale.value * scale
        frame = frame.f_back
    return scale


_MOST_FRAMES = 12  # between: Keras's own
