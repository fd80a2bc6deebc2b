"""Optimizers whose rule rows can be trained by. The model's own trains the rows too, so that these
are Keras's.
"""

from __future__ import annotations

from typing import Any

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

from embstore.keras.optimizers import rule_of

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
    """The optimizer itself, which trains rows by its rule and rate, schedules included.

    explicit: has no effect: what rows can't be trained by is never left out unseen.

    Raises UnsupportedError where rows can't be trained by it.
    """
    del explicit
    scaled = isinstance(optimizer, LossScaleOptimizer)
    rule_of(optimizer.inner_optimizer if scaled else optimizer)
    return optimizer
