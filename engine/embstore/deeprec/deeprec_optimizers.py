"""The optimizers that DeepRec has and TensorFlow doesn't.

`embstore.optimizers` trains the rows. The updates of dense variables are written here in
TensorFlow's operations, on top of its Adam and Adagrad.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow.compat.v1 as tf

from embstore.errors import InvalidArgumentError, UnsupportedError
from embstore.table import checks

__all__ = ["DEEPREC_OPTIMIZERS"]


class _WithPriorUpdate:
    """A mix-in that adds an operation on each dense variable before the update of a TensorFlow
    optimizer, which comes after it in a class's bases.
    """

    def _scope_after_prior_update(self, grad: Any, var: Any, *, is_sparse: bool) -> Any:
        """Returns the scope for TensorFlow's update. grad: a tensor; if sparse, its values."""
        raise NotImplementedError

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        with self._scope_after_prior_update(grad, var, is_sparse=False):
            return super()._apply_dense(grad, var)  # type: ignore[misc]

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        with self._scope_after_prior_update(grad, var, is_sparse=False):
            return super()._resource_apply_dense(grad, var)  # type: ignore[misc]

    def _apply_sparse(self, grad: Any, var: Any) -> Any:
        with self._scope_after_prior_update(grad.values, var, is_sparse=True):
            return super()._apply_sparse(grad, var)  # type: ignore[misc]

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        with self._scope_after_prior_update(grad, var, is_sparse=True):
            return super()._resource_apply_sparse(grad, var, indices)  # type: ignore[misc]


class AdamWOptimizer(_WithPriorUpdate, tf.train.AdamOptimizer):  # type: ignore[misc]
    """Adam that first subtracts learning_rate * weight_decay * weight from each weight (Loshchilov
    & Hutter 2017). If a variable has sparse gradients, all its rows decay.
    """

    def __init__(
        self,
        weight_decay: float,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str = "AdamW",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._weight_decay = checks.real("weight_decay", weight_decay, at_least=0)

    def _scope_after_prior_update(self, grad: Any, var: Any, *, is_sparse: bool) -> Any:
        del is_sparse
        # Waits for the gradient, which must be that of the weights before their decay.
        with tf.control_dependencies([grad]):
            part = tf.cast(self._lr_t, var.dtype.base_dtype) * self._weight_decay
            decay = tf.assign_sub(var, part * var, use_locking=self._use_locking)
        return tf.control_dependencies([decay])


class AdamAsyncOptimizer(_WithPriorUpdate, tf.train.AdamOptimizer):  # type: ignore[misc]
    """Adam. apply_sparse_rmsprop: trains rows of embedding variables by RMSprop; other variables
    with sparse gradients then raise UnsupportedError.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        apply_sparse_rmsprop: bool = False,
        name: str = "AdamAsync",
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, use_locking, name)
        self._is_rmsprop = checks.flag("apply_sparse_rmsprop", apply_sparse_rmsprop)

    def _scope_after_prior_update(self, grad: Any, var: Any, *, is_sparse: bool) -> Any:
        del grad
        if is_sparse and self._is_rmsprop:
            raise UnsupportedError(
                f"apply_sparse_rmsprop: {var.name} has sparse gradients and is no embedding "
                "variable; make it one by tf.get_embedding_variable, or leave the argument out"
            )
        return contextlib.nullcontext()


class AdagradDecayOptimizer(_WithPriorUpdate, tf.train.AdagradOptimizer):  # type: ignore[misc]
    """Adagrad whose accumulators decay: when global_step + 1 is a multiple of
    accumulator_decay_step, they first become max(accumulator * accumulator_decay_rate,
    initial_accumulator_value).
    """

    _default_name = "AdagradDecay"

    def __init__(
        self,
        learning_rate: Any,
        global_step: Any,
        initial_accumulator_value: float = 0.1,
        accumulator_decay_step: int = 100_000,
        accumulator_decay_rate: float = 0.9,
        use_locking: bool = False,
        name: str | None = None,
    ) -> None:
        name = self._default_name if name is None else name
        super().__init__(learning_rate, initial_accumulator_value, use_locking, name)
        if global_step is None:
            raise InvalidArgumentError(
                "global_step must be the variable that counts steps: "
                "tf.train.get_or_create_global_step()"
            )
        self._global_step = global_step
        self._every = checks.integer("accumulator_decay_step", accumulator_decay_step, at_least=1)
        self._rate = checks.real("accumulator_decay_rate", accumulator_decay_rate, above=0, below=1)

    def _step_of_rows(self, global_step: Any) -> Any:
        """Overrides the method of `TrainsRowsMixin`."""
        del global_step
        return self._global_step

    def _scope_after_prior_update(self, grad: Any, var: Any, *, is_sparse: bool) -> Any:
        del grad, is_sparse
        accumulator = self.get_slot(var, "accumulator")
        step = tf.cast(tf.identity(self._global_step), tf.int64)
        is_time = tf.equal((step + 1) % self._every, 0)

        def fade() -> Any:
            faded = tf.maximum(accumulator * self._rate, self._initial_accumulator_value)
            return tf.assign(accumulator, faded, use_locking=self._use_locking).op

        return tf.control_dependencies([tf.cond(is_time, fade, tf.no_op)])


class AdagradDecayOptimizerV2(AdagradDecayOptimizer):
    """The same as `AdagradDecayOptimizer`."""

    _default_name = "AdagradDecayV2"


DEEPREC_OPTIMIZERS = (
    AdagradDecayOptimizer,
    AdagradDecayOptimizerV2,
    AdamAsyncOptimizer,
    AdamWOptimizer,
)
