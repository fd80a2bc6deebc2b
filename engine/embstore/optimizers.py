"""Optimizers for embedding rows; names, arguments and formulas are TensorFlow's and DeepRec's.

Each works on the rows of a batch alone: w is a row's weights, g the sum of its gradients in the
batch, t the number of applies so far, this one included; everything is float32 and element by
element unless the formula says otherwise. The arithmetic itself is in the core, in
engine/core/optimizers. `slots` names the arrays kept beside the weights, in the order in which
`EmbeddingVariable.export` gives them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from embstore import _checks
from embstore.errors import InvalidArgumentError

__all__ = ["SGD", "Adagrad", "Adam", "Ftrl", "Optimizer"]


@dataclass(frozen=True)
class Optimizer:
    """What every optimizer has: its slots' names, and its numbers as fields."""

    slots: ClassVar[tuple[str, ...]]

    @property
    def name(self) -> str:
        """What the core knows it by."""
        return type(self).__name__

    def params(self) -> dict[str, float]:
        """The arguments as the core takes them."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= learning_rate * g."""

    slots: ClassVar[tuple[str, ...]] = ()

    learning_rate: float

    def __post_init__(self) -> None:
        _checks.real("learning_rate", self.learning_rate, at_least=0)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """accumulator += g²; w -= learning_rate * g / sqrt(accumulator)  (Duchi et al. 2011).

    Without an epsilon, as in TensorFlow 1: the accumulator starts above 0.
    """

    slots: ClassVar[tuple[str, ...]] = ("accumulator",)

    learning_rate: float
    initial_accumulator_value: float = 0.1

    def __post_init__(self) -> None:
        _checks.real("learning_rate", self.learning_rate, at_least=0)
        _checks.real("initial_accumulator_value", self.initial_accumulator_value, above=0)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2014) in the form before their section 2.1, as in TensorFlow.

    m += (1 - beta1) * (g - m); v += (1 - beta2) * (g² - v);
    w -= learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).

    Rows that a batch doesn't touch keep their m and v. t counts the variable's applies, not a
    row's. PyTorch's epsilon is added after the bias correction of v, so it weighs differently.
    """

    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _checks.real("learning_rate", self.learning_rate, at_least=0)
        _checks.real("beta1", self.beta1, at_least=0, below=1)
        _checks.real("beta2", self.beta2, at_least=0, below=1)
        _checks.real("epsilon", self.epsilon, above=0)


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-proximal (McMahan et al. 2013) with a group lasso over the row, as in DeepRec.

    With p = -learning_rate_power:
    accum' = accum + g²;  linear += g - (accum'^p - accum^p) / learning_rate * w;
    w = 0 where |linear| <= l1, else
    w = linear * (l1 / |linear| - 1) / (accum'^p / learning_rate + 2 * l2),
    where |linear| is the Euclidean norm of the whole row: l1 drops rows, not single weights.
    TensorFlow's Ftrl differs in this: it holds l1 against each weight.
    """

    slots: ClassVar[tuple[str, ...]] = ("accum", "linear")

    learning_rate: float
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        _checks.real("learning_rate", self.learning_rate, above=0)
        _checks.real("learning_rate_power", self.learning_rate_power, at_most=0)
        _checks.real("initial_accumulator_value", self.initial_accumulator_value, at_least=0)
        _checks.real("l1_regularization_strength", self.l1_regularization_strength, at_least=0)
        _checks.real("l2_regularization_strength", self.l2_regularization_strength, at_least=0)


def check_optimizer(optimizer: object) -> None:
    """Raises InvalidArgumentError where `optimizer` isn't an instance of an Optimizer."""
    if isinstance(optimizer, type):
        raise InvalidArgumentError(
            f"optimizer is the class {optimizer.__name__}; make one, "
            f"for example {optimizer.__name__}(learning_rate=0.1)"
        )
    if not isinstance(optimizer, Optimizer):
        raise InvalidArgumentError(
            f"optimizer must be one of embstore.optimizers ({', '.join(__all__[:-1])}), "
            f"got {type(optimizer).__name__}"
        )
