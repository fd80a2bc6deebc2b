"""Gradients of a loss for the rows that it was computed from, and what is done with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from embstore.errors import InvalidArgumentError
from embstore.optimizers import Optimizer, check_optimizer
from embstore.tensorflow1.graph.tensor import Array, Operation, Run, Tensor, in_order
from embstore.tensorflow1.graph.variable import GraphVariable, Lookup

# What it is when a run trains: a tensor's value (of a placeholder, say), or what a call returns.
ChangingRate: TypeAlias = "Tensor | Callable[[], float]"


class GlobalStep(Tensor):
    """How often the session has trained with it."""

    def __init__(self) -> None:
        super().__init__(name="global_step")

    def compute(self, run: Run, /) -> Array:
        return np.array(run.steps(self), np.int64)


class Gradient(Tensor):
    """float32 (n, dim): a loss's gradient for each id of each look-up of a variable."""

    def __init__(self, loss: Tensor, variable: GraphVariable) -> None:
        super().__init__(loss, name=f"{variable.name}_gradient")
        self.variable = variable

    def compute(self, run: Run, /) -> Array:
        return run.row_gradients(self.inputs[0], self.variable)[1]


class Trainer:
    """Trains variables by one optimizer of `embstore.optimizers`.

    learning_rate: takes the place of the optimizer's own, anew at every run.
    """

    def __init__(self, optimizer: Optimizer, learning_rate: ChangingRate | None = None) -> None:
        check_optimizer(optimizer)
        if learning_rate is not None and not is_changing_rate(learning_rate):
            raise InvalidArgumentError(
                "learning_rate must be a tensor or a callable that returns a number, got "
                f"{learning_rate!r}; a rate that never changes is the optimizer's"
            )
        self.optimizer = optimizer
        self.learning_rate = learning_rate

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[GraphVariable] | None = None
    ) -> list[tuple[Gradient, GraphVariable]]:
        """One for each of `var_list`, or of all variables that `loss` is computed from."""
        reached = dict.fromkeys(
            tensor.variable for tensor in in_order([loss]) if isinstance(tensor, Lookup)
        )
        wanted = list(reached) if var_list is None else list(var_list)
        missing = [variable.name for variable in wanted if variable not in reached]
        if missing or not wanted:
            raise InvalidArgumentError(
                f"loss isn't computed from {', '.join(missing) or 'the rows of a variable'}"
            )
        return [(Gradient(loss, variable), variable) for variable in wanted]

    def apply_gradients(
        self,
        grads_and_vars: Sequence[tuple[Gradient, GraphVariable]],
        global_step: GlobalStep | None = None,
        name: str = "train",
    ) -> Operation:
        """One step of training. `global_step`, which it counts up, is the rows' version."""
        for gradient, variable in grads_and_vars:
            if not isinstance(gradient, Gradient) or gradient.variable is not variable:
                raise InvalidArgumentError(
                    f"the gradient of {variable.name} must be what compute_gradients gave for it"
                )
            if variable.optimizer not in (None, self.optimizer):
                raise InvalidArgumentError(
                    f"{variable.name} is trained by {variable.optimizer} already; "
                    "its rows hold the slots of that optimizer"
                )
            variable.optimizer = self.optimizer
        gradients = [gradient for gradient, _ in grads_and_vars]
        return _Train(gradients, self.learning_rate, global_step, name)

    def minimize(
        self,
        loss: Tensor,
        global_step: GlobalStep | None = None,
        var_list: Sequence[GraphVariable] | None = None,
    ) -> Operation:
        """`compute_gradients`, then `apply_gradients`."""
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)


class _Train(Operation):
    def __init__(
        self,
        gradients: Sequence[Gradient],
        learning_rate: ChangingRate | None,
        global_step: GlobalStep | None,
        name: str,
    ) -> None:
        self.name = name
        self._learning_rate = learning_rate
        self._gradients = gradients
        self._global_step = global_step

    def trained_variables(self) -> Sequence[GraphVariable]:
        return [gradient.variable for gradient in self._gradients]

    def execute(self, run: Run, /) -> None:
        # All gradients before the first variable changes: a run that fails there trains nothing.
        rows = [run.row_gradients(g.inputs[0], g.variable) for g in self._gradients]
        rate = None if self._learning_rate is None else _value(self._learning_rate, run)
        step = None if self._global_step is None else run.steps(self._global_step)
        for gradient, (ids, values) in zip(self._gradients, rows, strict=True):
            if rate is not None:
                run.variable(gradient.variable).learning_rate = rate
            run.variable(gradient.variable).apply_gradients(ids, values, global_step=step)
        if self._global_step is not None:
            run.count_step(self._global_step)


def is_changing_rate(learning_rate: object) -> bool:
    return isinstance(learning_rate, Tensor) or callable(learning_rate)


def _value(learning_rate: ChangingRate, run: Run) -> float:
    if not isinstance(learning_rate, Tensor):
        return learning_rate()
    run.compute([learning_rate])
    value = run[learning_rate]
    if value.size != 1:
        raise InvalidArgumentError(
            f"learning_rate must be one number, but {learning_rate.name!r} has the shape "
            f"{value.shape}"
        )
    return float(value.item())
