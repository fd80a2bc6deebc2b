"""TensorFlow's optimizers, extended to train rows of embedding variables."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import NDArray

from embstore.deeprec.reading import on_cpu
from embstore.deeprec.rules import RULES, MakeRule
from embstore.deeprec.tables import table_of
from embstore.deeprec.variable import EmbeddingVariable
from embstore.errors import InvalidArgumentError, UnsupportedError

__all__ = ["TrainsRowsMixin", "extend_optimizer"]

_PLACEHOLDER_RATE = 1.0  # stands in a rule for a rate that is a tensor; any that all rules allow


class TrainsRowsMixin:
    """A mix-in for a TensorFlow optimizer, which comes after it in a class's bases.

    That optimizer trains dense variables. One of `embstore.optimizers` trains rows, with the same
    arguments. The operation that `apply_gradients` returns does both.
    """

    make_rule: MakeRule | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        bound = inspect.signature(super().__init__).bind(*arguments, **options)
        bound.apply_defaults()
        self._arguments: Mapping[str, Any] = bound.arguments

    def compute_gradients(
        self, loss: Any, var_list: Any = None, *arguments: Any, **options: Any
    ) -> list[tuple[Any, Any]]:
        """Computes gradients like TensorFlow's method. The gradient of an embedding variable is a
        tf.IndexedSlices of the ids that were looked up, repeated ids included.
        """
        requested = tf.trainable_variables() if var_list is None else tf.nest.flatten(var_list)
        variables = list(requested)
        targets = [v.rows if isinstance(v, EmbeddingVariable) else v for v in variables]
        pairs = super().compute_gradients(loss, targets, *arguments, **options)  # type: ignore[misc]
        # There may be more pairs than requested: TensorFlow adds ports of a streaming model.
        named = [(pair[0], variable) for pair, variable in zip(pairs, variables, strict=False)]
        for gradient, variable in named:
            if gradient is not None and isinstance(variable, EmbeddingVariable):
                self._check_trains_rows(variable)
        return named + list(pairs[len(named) :])

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        global_step: Any = None,
        name: str | None = None,
    ) -> Any:
        """Applies gradients like TensorFlow's method. The value of `global_step` before its
        increment becomes the rows' version; without it, versions count a variable's updates.
        """
        pairs = list(grads_and_vars)
        row_pairs = [pair for pair in pairs if isinstance(pair[1], EmbeddingVariable)]
        dense = [pair for pair in pairs if not isinstance(pair[1], EmbeddingVariable)]
        if not row_pairs:
            return super().apply_gradients(dense, global_step, name)  # type: ignore[misc]
        with tf.name_scope(name, self.get_name()) as scope:  # type: ignore[attr-defined]
            updates = [
                self._train(variable, gradient, self._step_of_rows(global_step))
                for gradient, variable in row_pairs
                if gradient is not None
            ]
            if not updates and not any(gradient is not None for gradient, _ in dense):
                raise InvalidArgumentError(
                    "grads_and_vars has no gradient for any variable: "
                    f"{', '.join(str(variable.name) for _, variable in pairs)}"
                )
            with tf.control_dependencies(updates):
                if any(gradient is not None for gradient, _ in dense):
                    return super().apply_gradients(dense, global_step, name)  # type: ignore[misc]
                if global_step is None:
                    train = tf.group(*updates, name=scope)
                else:
                    train = tf.assign_add(global_step, 1, name=scope).op
        tf.add_to_collection(tf.GraphKeys.TRAIN_OP, train)
        return train

    def _step_of_rows(self, global_step: Any) -> Any:
        return global_step

    def _train(self, variable: EmbeddingVariable, gradient: Any, step: Any) -> Any:
        make_rule = self._check_trains_rows(variable)
        if not isinstance(gradient, tf.IndexedSlices):
            raise InvalidArgumentError(
                f"grads_and_vars: the gradient of {variable.op.name} must be a tf.IndexedSlices, "
                f"as compute_gradients gives it, got {type(gradient).__name__}"
            )
        rate = self._arguments["learning_rate"]
        rate = rate() if callable(rate) else rate
        is_constant = isinstance(rate, (int, float, np.number))
        rule_rate = float(rate) if is_constant else _PLACEHOLDER_RATE
        variable.set_optimizer(make_rule({**self._arguments, "learning_rate": rule_rate}))
        inputs = [variable.number, tf.cast(gradient.indices, tf.int64), gradient.values]
        # A constant needs no input tensor.
        rates = [] if is_constant else [tf.convert_to_tensor(rate)]
        steps = [] if step is None else [tf.cast(tf.identity(step), tf.int64)]

        def train(
            number: np.int64,
            ids: NDArray[np.int64],
            values: NDArray[np.float32],
            *rate_and_step: NDArray[Any],
        ) -> None:
            table = table_of(int(number))
            rate_now = _as_number(rate_and_step[0]) if rates else rule_rate
            if table.optimizer is None:
                raise InvalidArgumentError(
                    f"{variable.op.name} was initialized before apply_gradients() chose its "
                    "optimizer; run its initializer after that"
                )
            if table.learning_rate != np.float32(rate_now):  # also after a restore
                table.learning_rate = rate_now
            table.apply_gradients(
                ids, values, global_step=int(rate_and_step[len(rates)]) if steps else None
            )

        with on_cpu(), tf.name_scope(f"update_{variable.op.name}"):
            return tf.numpy_function(train, [*inputs, *rates, *steps], [])

    def _check_trains_rows(self, variable: EmbeddingVariable) -> MakeRule:
        make_rule = type(self).make_rule
        if make_rule is None:
            raise UnsupportedError(
                f"{variable.op.name}: rows can't be trained by {type(self).__name__}, but by "
                f"{', '.join(RULES)}; take one of these, or leave embedding variables out of "
                "var_list"
            )
        return make_rule


def _as_number(rate: NDArray[Any]) -> float:
    if np.size(rate) != 1:
        raise InvalidArgumentError(
            f"learning_rate must be one number, got a tensor of the shape {np.shape(rate)}"
        )
    return float(np.reshape(rate, ()))


def extend_optimizer(original: type, make_rule: MakeRule | None) -> type:
    """Returns a TensorFlow optimizer, under the same name, that trains rows too.

    make_rule: None: rows can't be trained by it, and it raises an error that says so.
    """
    members: dict[str, Any] = {
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "make_rule": None if make_rule is None else staticmethod(make_rule),
    }
    return type(original.__name__, (TrainsRowsMixin, original), members)
