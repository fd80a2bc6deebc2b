"""Converts Keras's optimizers to embstore's with the same formula, or raises an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras

from embstore import optimizers
from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.keras.described import described, from_description
from embstore.keras.private import learning_rate_of
from embstore.optimizers import Optimizer, check_optimizer

__all__ = [
    "OwnRule",
    "described_rule",
    "own_rule",
    "rule_from_description",
    "rule_of",
    "same_rule",
]

_KNOWN = "SGD, Adagrad, Adam, Adamax, Adadelta, RMSprop, Ftrl"


@dataclass(frozen=True)
class OwnRule:
    """The rule of a table that has its own optimizer.

    schedule: a keras.optimizers.schedules.LearningRateSchedule, which gives the learning rate after
        a number of steps; None: the optimizer's rate.
    """

    optimizer: Optimizer
    schedule: Any = None

    def rate(self, step: int) -> float | None:
        return None if self.schedule is None else float(self.schedule(step))


def own_rule(optimizer: Any) -> OwnRule:
    """Returns the rule for one of embstore.optimizers, of keras.optimizers, or for a Keras name."""
    if isinstance(optimizer, OwnRule):
        return optimizer
    if isinstance(optimizer, Optimizer):
        return OwnRule(optimizer)
    if isinstance(optimizer, type):
        check_optimizer(optimizer)  # whose error says what to do
    try:
        theirs = keras.optimizers.get(optimizer)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            "optimizer must be one of embstore.optimizers, or of keras.optimizers or its name, "
            f"got {optimizer!r}"
        ) from None
    schedule = learning_rate_of(theirs)
    if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        if callable(schedule):
            raise UnsupportedError(
                "optimizer: a learning rate that is a function can't be followed by a table of its "
                "own; give a keras.optimizers.schedules.LearningRateSchedule, or set "
                "variable.learning_rate"
            )
        return OwnRule(rule_of(theirs))
    return OwnRule(replace(rule_of(theirs), learning_rate=float(schedule(0))), schedule)  # type: ignore[call-arg]


def described_rule(rule: OwnRule | None) -> Any:
    if rule is None:
        return None
    schedule = None
    if rule.schedule is not None:
        schedule = keras.optimizers.schedules.serialize(rule.schedule)
    return {"rule": described("optimizer", rule.optimizer), "schedule": schedule}


def rule_from_description(description: Any) -> Any:
    if description is None:
        return None
    optimizer = from_description(description["rule"])
    if description["schedule"] is None:
        return optimizer
    return OwnRule(optimizer, keras.optimizers.schedules.deserialize(description["schedule"]))


def same_rule(one: Optimizer, other: Optimizer) -> bool:
    """Returns whether the optimizers are equal except for their learning rates."""
    return replace(one, learning_rate=1.0) == replace(other, learning_rate=1.0)  # type: ignore[call-arg]


def rule_of(theirs: Any) -> Optimizer:
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
        if getattr(theirs, option, None):
            raise _refusal(theirs, f"with {option}")
    for kind, convert in _RULES.items():
        # A derived class, such as AdamW, computes something else. On torch Keras has classes of its
        # own, with the same names.
        if isinstance(theirs, kind) and type(theirs).__name__ == kind.__name__:
            rate = float(keras.ops.convert_to_numpy(theirs.learning_rate))
            return convert(theirs, rate)
    raise _refusal(theirs, "")


def _refusal(theirs: Any, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"rows can't be trained by keras.optimizers.{type(theirs).__name__}{what and ' ' + what}, "
        f"only by {_KNOWN}; give the table an optimizer= of its own, such as "
        "embstore.optimizers.Adagrad(learning_rate=0.05)"
    )


def _sgd(theirs: Any, rate: float) -> Optimizer:
    if theirs.momentum:
        raise _refusal(theirs, "with momentum")
    return optimizers.SGD(rate)


def _adagrad(theirs: Any, rate: float) -> Optimizer:
    # Keras divides by sqrt(accumulator + epsilon): the same as with a higher initial accumulator.
    return optimizers.Adagrad(rate, theirs.initial_accumulator_value + theirs.epsilon)


def _adam(theirs: Any, rate: float) -> Optimizer:
    if theirs.amsgrad:
        raise _refusal(theirs, "with amsgrad")
    return optimizers.Adam(rate, theirs.beta_1, theirs.beta_2, theirs.epsilon)


def _adamax(theirs: Any, rate: float) -> Optimizer:
    return optimizers.Adamax(rate, theirs.beta_1, theirs.beta_2, theirs.epsilon)


def _adadelta(theirs: Any, rate: float) -> Optimizer:
    return optimizers.Adadelta(rate, theirs.rho, theirs.epsilon)


def _rmsprop(theirs: Any, rate: float) -> Optimizer:
    if theirs.centered:
        raise _refusal(theirs, "with centered")
    return optimizers.RMSprop(rate, theirs.rho, theirs.momentum, theirs.epsilon)


def _ftrl(theirs: Any, rate: float) -> Optimizer:
    # Keras compares l1 with each weight, embstore with the row's norm.
    for option in ("l1_regularization_strength", "l2_shrinkage_regularization_strength", "beta"):
        if getattr(theirs, option):
            raise _refusal(theirs, f"with {option}")
    return optimizers.Ftrl(
        rate,
        theirs.learning_rate_power,
        theirs.initial_accumulator_value,
        0.0,
        theirs.l2_regularization_strength,
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
