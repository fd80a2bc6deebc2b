"""Converts Keras's optimizers to embstore's with the same formula, or raises an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras

from embstore import optimizers
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.keras.descriptions import describe, from_description
from embstore.keras.private import learning_rate_of
from embstore.optimizers import Optimizer, check_optimizer

__all__ = [
    "TableRule",
    "are_same_rule",
    "describe_rule",
    "rule_from_description",
    "rule_from_keras",
    "to_table_rule",
]

_KNOWN = "SGD, Adagrad, Adam, Adamax, Adadelta, RMSprop, Ftrl"


@dataclass(frozen=True)
class TableRule:
    """The rule of a table that has its own optimizer.

    schedule: a keras.optimizers.schedules.LearningRateSchedule, which gives the learning rate after
        a number of steps; None: the optimizer's rate.
    """

    optimizer: Optimizer
    schedule: Any = None

    def rate(self, step: int) -> float | None:
        return None if self.schedule is None else float(self.schedule(step))


def to_table_rule(optimizer: Any) -> TableRule:
    """Returns the rule for one of embstore.optimizers, of keras.optimizers, or for a Keras name."""
    if isinstance(optimizer, TableRule):
        return optimizer
    if isinstance(optimizer, Optimizer):
        return TableRule(optimizer)
    if isinstance(optimizer, type):
        check_optimizer(optimizer)  # whose error says what to do
    try:
        keras_optimizer = keras.optimizers.get(optimizer)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            "optimizer must be one of embstore.optimizers, or of keras.optimizers or its name, "
            f"got {optimizer!r}"
        ) from None
    schedule = learning_rate_of(keras_optimizer)
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        if callable(schedule):
            raise UnsupportedError(
                "optimizer: a learning rate that is a function can't be followed by a table of its "
                "own; give a keras.optimizers.schedules.LearningRateSchedule, or set "
                "variable.learning_rate"
            )
        return TableRule(rule_from_keras(keras_optimizer))
    rule = replace(rule_from_keras(keras_optimizer), learning_rate=float(schedule(0)))  # type: ignore[call-arg]
    return TableRule(rule, schedule)


def describe_rule(rule: TableRule | None) -> Any:
    if rule is None:
        return None
    schedule = None
    if rule.schedule is not None:
        schedule = keras.optimizers.schedules.serialize(rule.schedule)
    return {"rule": describe("optimizer", rule.optimizer), "schedule": schedule}


def rule_from_description(description: Any) -> Any:
    if description is None:
        return None
    optimizer = from_description(description["rule"])
    if description["schedule"] is None:
        return optimizer
    return TableRule(optimizer, keras.optimizers.schedules.deserialize(description["schedule"]))


def are_same_rule(one: Optimizer, other: Optimizer) -> bool:
    """Returns whether the optimizers are equal except for their learning rates."""
    return replace(one, learning_rate=1.0) == replace(other, learning_rate=1.0)  # type: ignore[call-arg]


def rule_from_keras(keras_optimizer: Any) -> Optimizer:
    """Returns embstore's optimizer with the same formula, at the present learning rate.

    Raises UnsupportedError if there is none, or if an option isn't supported.
    """
    for option in (
        "weight_decay",
        "clipnorm",
        "clipvalue",
        "global_clipnorm",
        "use_ema",
        "gradient_accumulation_steps",
    ):
        if getattr(keras_optimizer, option, None):
            raise _refusal(keras_optimizer, f"with {option}")
    for kind, convert in _RULES.items():
        # A derived class, such as AdamW, computes something else. On torch Keras has classes of its
        # own, with the same names.
        if isinstance(keras_optimizer, kind) and type(keras_optimizer).__name__ == kind.__name__:
            rate = float(keras.ops.convert_to_numpy(keras_optimizer.learning_rate))
            return convert(keras_optimizer, rate)
    raise _refusal(keras_optimizer, "")


def _refusal(keras_optimizer: Any, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"rows can't be trained by keras.optimizers.{type(keras_optimizer).__name__}"
        f"{what and ' ' + what}, only by {_KNOWN}; give the table an optimizer= of its own, such "
        "as embstore.optimizers.Adagrad(learning_rate=0.05)"
    )


def _sgd(keras_optimizer: Any, rate: float) -> Optimizer:
    if keras_optimizer.momentum:
        raise _refusal(keras_optimizer, "with momentum")
    return optimizers.SGD(rate)


def _adagrad(keras_optimizer: Any, rate: float) -> Optimizer:
    # Keras divides by sqrt(accumulator + epsilon): the same as with a higher initial accumulator.
    return optimizers.Adagrad(
        rate, keras_optimizer.initial_accumulator_value + keras_optimizer.epsilon
    )


def _adam(keras_optimizer: Any, rate: float) -> Optimizer:
    if keras_optimizer.amsgrad:
        raise _refusal(keras_optimizer, "with amsgrad")
    return optimizers.Adam(
        rate, keras_optimizer.beta_1, keras_optimizer.beta_2, keras_optimizer.epsilon
    )


def _adamax(keras_optimizer: Any, rate: float) -> Optimizer:
    return optimizers.Adamax(
        rate, keras_optimizer.beta_1, keras_optimizer.beta_2, keras_optimizer.epsilon
    )


def _adadelta(keras_optimizer: Any, rate: float) -> Optimizer:
    return optimizers.Adadelta(rate, keras_optimizer.rho, keras_optimizer.epsilon)


def _rmsprop(keras_optimizer: Any, rate: float) -> Optimizer:
    if keras_optimizer.centered:
        raise _refusal(keras_optimizer, "with centered")
    return optimizers.RMSprop(
        rate, keras_optimizer.rho, keras_optimizer.momentum, keras_optimizer.epsilon
    )


def _ftrl(keras_optimizer: Any, rate: float) -> Optimizer:
    # Keras compares l1 with each weight, embstore with the row's norm.
    for option in ("l1_regularization_strength", "l2_shrinkage_regularization_strength", "beta"):
        if getattr(keras_optimizer, option):
            raise _refusal(keras_optimizer, f"with {option}")
    return optimizers.Ftrl(
        rate,
        keras_optimizer.learning_rate_power,
        keras_optimizer.initial_accumulator_value,
        0.0,
        keras_optimizer.l2_regularization_strength,
    )


_RULES: dict[Any, Callable[[Any, float], Optimizer]] = {
    keras.optimizers.SGD: _sgd,
    keras.optimizers.Adagrad: _adagrad,
    keras.optimizers.Adam: _adam,
    keras.optimizers.Adamax: _adamax,
    keras.optimizers.Adadelta: _adadelta,
    keras.optimizers.RMSprop: _rmsprop,
    keras.optimizers.Ftrl: _ftrl,
}
