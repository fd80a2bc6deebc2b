"""The engine's optimizer that trains rows, for each of TensorFlow's and DeepRec's optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from embstore import optimizers
from embstore.errors import UnsupportedError
from embstore.optimizers import Optimizer

__all__ = ["RULES", "MakeRule"]

# Takes the arguments of the optimizer of that name. The learning rate must be a number.
MakeRule = Callable[[Mapping[str, Any]], Optimizer]


def _rule_with(rule: Callable[..., Optimizer], *names: str) -> MakeRule:
    """Returns a MakeRule for a rule with arguments of the same names."""

    def make(arguments: Mapping[str, Any]) -> Optimizer:
        return rule(**{name: arguments[name] for name in ("learning_rate", *names)})

    return make


def _ftrl(arguments: Mapping[str, Any]) -> Optimizer:
    for name, off in (("l2_shrinkage_regularization_strength", 0.0), ("beta", None)):
        if arguments[name] not in (off, 0.0):
            raise UnsupportedError(
                f"{name}: rows are trained by DeepRec's Ftrl, which has none; leave it out"
            )
    names = ("learning_rate_power", "initial_accumulator_value")
    strengths = ("l1_regularization_strength", "l2_regularization_strength")
    return _rule_with(optimizers.Ftrl, *names, *strengths)(arguments)


_DECAY = ("initial_accumulator_value", "accumulator_decay_step", "accumulator_decay_rate")
_MOMENTS = ("beta1", "beta2", "epsilon")

RULES: Mapping[str, MakeRule] = {
    "AdadeltaOptimizer": _rule_with(optimizers.Adadelta, "rho", "epsilon"),
    "AdagradDecayOptimizer": _rule_with(optimizers.AdagradDecay, *_DECAY),
    "AdagradDecayOptimizerV2": _rule_with(optimizers.AdagradDecayV2, *_DECAY),
    "AdagradOptimizer": _rule_with(optimizers.Adagrad, "initial_accumulator_value"),
    "AdamAsyncOptimizer": _rule_with(optimizers.AdamAsync, *_MOMENTS, "apply_sparse_rmsprop"),
    "AdamOptimizer": _rule_with(optimizers.Adam, *_MOMENTS),
    "AdamWOptimizer": _rule_with(optimizers.AdamW, "weight_decay", *_MOMENTS),
    "FtrlOptimizer": _ftrl,
    "GradientDescentOptimizer": _rule_with(optimizers.SGD),
}
