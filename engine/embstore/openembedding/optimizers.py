"""Keras's optimizers whose rules can train rows. A model's optimizer trains its rows too."""

from __future__ import annotations

from typing import Any

import keras
from keras.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    LossScaleOptimizer,
    RMSprop,
)

from embstore.keras.optimizers import rule_from_keras

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Ftrl",
    "RMSprop",
    "distributed_optimizer",
]


def distributed_optimizer(optimizer: Any, explicit: bool = True) -> Any:
    """Returns the optimizer itself, which trains rows by its rule and rate, schedules included.

    optimizer: a Keras optimizer, or the name of one.
    explicit: has no effect: an option that rows don't support is never silently ignored.

    Raises UnsupportedError if rows can't be trained by the optimizer.
    """
    del explicit
    optimizer = keras.optimizers.get(optimizer)
    scaled = isinstance(optimizer, LossScaleOptimizer)
    rule_from_keras(optimizer.inner_optimizer if scaled else optimizer)
    return optimizer
