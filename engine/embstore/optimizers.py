"""Optimizers for embedding rows; names, arguments and formulas are TensorFlow's and DeepRec's.

An optimizer updates only the rows of the batch. In the formulas w is a row's weights, g the sum of
its gradients in the batch, and t the number of applies so far, this one included; everything is
float32 and element by element unless the formula says otherwise. Optimizer objects are immutable;
the learning rate of the next batch is `EmbeddingVariable.learning_rate`. `slots` names the arrays
kept beside the weights, in the order in which `EmbeddingVariable.export` returns them.

The formulas are in engine/core/rules, and engine/core/update/optimizers applies them to rows. It
uses AVX2 if the processor has it, with the same bits as without, unless EMBSTORE_CPU=default is set
in the environment.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from embstore.errors import InvalidArgumentError
from embstore.table import checks

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "AdagradDecay",
    "AdagradDecayV2",
    "Adam",
    "AdamAsync",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Optimizer",
    "RMSprop",
]


@dataclass(frozen=True)
class Optimizer:
    """The base of all optimizers. A subclass has its parameters as dataclass fields."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the arrays that are kept beside a row's weights."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The optimizer's name in the core."""
        return type(self).__name__

    def check_learning_rate(self, value: object) -> float:
        """Returns `value` as a learning rate. Raises InvalidArgumentError if it is out of range."""
        return checks.real("learning_rate", value, at_least=0, float32=True)

    def params(self) -> dict[str, float]:
        """Returns the parameters as the core takes them."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= learning_rate * g."""

    slots = ()

    learning_rate: float

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """accumulator += g²; w -= learning_rate * g / sqrt(accumulator)  (Duchi et al. 2011).

    There is no epsilon, as in TensorFlow 1: the accumulator starts above 0.
    """

    slots = ("accumulator",)

    learning_rate: float
    initial_accumulator_value: float = 0.1

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)
        checks.real(
            "initial_accumulator_value", self.initial_accumulator_value, above=0, float32=True
        )


@dataclass(frozen=True)
class AdagradDecay(Optimizer):
    """Adagrad whose accumulator fades, as in DeepRec.

    When global_step + 1 has passed another multiple of accumulator_decay_step since the row's
    last decay, accumulator = max(accumulator * accumulator_decay_rate,
    initial_accumulator_value), at most once per apply; then the row is updated as by Adagrad.
    """

    slots = ("accumulator", "accumulator_decay_power")

    learning_rate: float
    initial_accumulator_value: float = 0.1
    accumulator_decay_step: int = 100_000
    accumulator_decay_rate: float = 0.9

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)
        checks.real(
            "initial_accumulator_value", self.initial_accumulator_value, above=0, float32=True
        )
        checks.integer(
            "accumulator_decay_step", self.accumulator_decay_step, at_least=1, unit="steps"
        )
        checks.real(
            "accumulator_decay_rate", self.accumulator_decay_rate, above=0, below=1, float32=True
        )


@dataclass(frozen=True)
class AdagradDecayV2(AdagradDecay):
    """The same as AdagradDecay: DeepRec's two versions differ on dense variables only."""


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma & Ba 2014) in the form before their section 2.1, as in TensorFlow.

    m += (1 - beta1) * (g - m); v += (1 - beta2) * (g² - v);
    w -= learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon).

    Rows that a batch doesn't touch keep their m and v. t counts the variable's applies, not a
    row's. PyTorch's epsilon is added after the bias correction of v, so it weighs differently.
    """

    slots = ("m", "v")

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        _check_adam(self)


@dataclass(frozen=True)
class AdamAsync(Optimizer):
    """Adam, or with apply_sparse_rmsprop an RMSprop with momentum, as in DeepRec.

    The RMSprop's formula:
    v += (1 - beta2) * (g² - v); m = beta1 * m + learning_rate * g / sqrt(v + epsilon); w -= m.
    """

    slots = ("m", "v")

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    apply_sparse_rmsprop: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.apply_sparse_rmsprop, bool):
            raise InvalidArgumentError(
                f"apply_sparse_rmsprop must be True or False, got {self.apply_sparse_rmsprop!r}"
            )
        _check_adam(self)
        # Adam computes 1 - beta1 in float64; RMSprop uses beta1 as a float32 momentum.
        checks.real("beta1", self.beta1, below=1, float32=self.apply_sparse_rmsprop)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2017), as in PyTorch.

    m and v as in Adam; w -= learning_rate * (m^ / (sqrt(v^) + epsilon) + weight_decay * w), where
    m^ = m / (1 - beta1^t) and v^ = v / (1 - beta2^t).
    """

    slots = ("m", "v")

    weight_decay: float
    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        checks.real("weight_decay", self.weight_decay, at_least=0, float32=True)
        _check_adam(self)


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adamax (Kingma & Ba 2014, section 7.1), as in Keras.

    m += (1 - beta1) * (g - m); u = max(beta2 * u, |g|);
    w -= learning_rate / (1 - beta1^t) * m / (u + epsilon).
    """

    slots = ("m", "u")

    learning_rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        _check_adam(self)
        checks.real("beta2", self.beta2, below=1, float32=True)  # decays u, in float32


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012), as in Keras.

    accum += (1 - rho) * (g² - accum);
    d = g * sqrt(accum_update + epsilon) / sqrt(accum + epsilon);
    accum_update += (1 - rho) * (d² - accum_update); w -= learning_rate * d.
    """

    slots = ("accum", "accum_update")

    learning_rate: float = 0.001
    rho: float = 0.95
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)
        checks.real("rho", self.rho, at_least=0, below=1)
        checks.real("epsilon", self.epsilon, above=0, float32=True)


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop (Tieleman & Hinton 2012), as in Keras; the mean square starts at 0.

    rms += (1 - rho) * (g² - rms); d = learning_rate * g / sqrt(rms + epsilon);
    w -= d, or with momentum: momentum' = momentum * momentum' + d; w -= momentum'.
    Without momentum a row has no slot for it.
    """

    learning_rate: float = 0.001
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)
        checks.real("rho", self.rho, at_least=0, below=1)
        checks.real("momentum", self.momentum, at_least=0, below=1, float32=True)
        checks.real("epsilon", self.epsilon, above=0, float32=True)

    @property
    def name(self) -> str:
        return "RMSpropMomentum" if self.momentum > 0 else "RMSprop"

    @property
    def slots(self) -> tuple[str, ...]:
        return ("rms", "momentum") if self.momentum > 0 else ("rms",)


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-proximal (McMahan et al. 2013) with a group lasso over the row, as in DeepRec.

    With p = -learning_rate_power:
    accum' = accum + g²;  linear += g - (accum'^p - accum^p) / learning_rate * w;
    w = 0 where |linear| <= l1, else
    w = linear * (l1 / |linear| - 1) / (accum'^p / learning_rate + 2 * l2),
    where |linear| is the Euclidean norm of the whole row: l1 drops rows, not single weights.
    TensorFlow's Ftrl differs: it compares l1 with each weight.
    learning_rate must be at least 1.2e-38, so that 1 / learning_rate is finite in float32.

    For a p other than 0.5 and 0, a GPU's power function is within 1 ulp of the CPU's at each step,
    so rows trained on a GPU then differ from a CPU's in their last bits.
    """

    slots = ("accum", "linear")

    def check_learning_rate(self, value: object) -> float:
        # The formula divides by it, so 1 / learning_rate must be finite in float32, too.
        return checks.real(
            "learning_rate", value, above=0, at_least=checks.FLOAT32_TINY, float32=True
        )

    learning_rate: float
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0

    def __post_init__(self) -> None:
        self.check_learning_rate(self.learning_rate)
        checks.real("learning_rate_power", self.learning_rate_power, at_most=0, float32=True)
        checks.real(
            "initial_accumulator_value", self.initial_accumulator_value, at_least=0, float32=True
        )
        checks.real("l1_regularization_strength", self.l1_regularization_strength, at_least=0)
        checks.real(
            "l2_regularization_strength", self.l2_regularization_strength, at_least=0, float32=True
        )


_NAMES = ", ".join(name for name in __all__ if name != "Optimizer")


def _check_adam(optimizer: Adam | AdamAsync | AdamW | Adamax) -> None:
    optimizer.check_learning_rate(optimizer.learning_rate)
    checks.real("beta1", optimizer.beta1, at_least=0, below=1)
    checks.real("beta2", optimizer.beta2, at_least=0, below=1)
    checks.real("epsilon", optimizer.epsilon, above=0, float32=True)


def check_optimizer(optimizer: object) -> None:
    """Raises InvalidArgumentError if `optimizer` isn't an instance of Optimizer."""
    if isinstance(optimizer, type):
        raise InvalidArgumentError(
            f"optimizer is the class {optimizer.__name__}; make one, "
            f"for example {optimizer.__name__}(learning_rate=0.1)"
        )
    if not isinstance(optimizer, Optimizer):
        raise InvalidArgumentError(
            f"optimizer must be one of embstore.optimizers ({_NAMES}), "
            f"got {type(optimizer).__name__}"
        )
