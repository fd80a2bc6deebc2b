"""Embedding variables in a graph, and their rows as tensors."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from embstore import _checks
from embstore._variable_making import get_embedding_variable
from embstore.errors import InvalidArgumentError
from embstore.initializers import Initializer
from embstore.optimizers import Optimizer
from embstore.options import EmbeddingVariableOption
from embstore.tensorflow1.graph.tensor import Array, Operand, Operation, Run, Tensor, as_tensor
from embstore.variable import EmbeddingVariable


class GraphVariable:
    """A variable to be made: it has rows in the sessions that initialized it.

    It is trained by the first `Trainer` that it is handed to. It takes the place of an earlier
    variable of its name.
    """

    def __init__(
        self,
        name: str,
        embedding_dim: int,
        *,
        initializer: Initializer | None = None,
        ev_option: EmbeddingVariableOption | None = None,
        partition_num: int = 1,
    ) -> None:
        self.name = _checks.variable_name(name)
        self.dim = embedding_dim
        self.optimizer: Optimizer | None = None
        self._initializer = initializer
        self._ev_option = ev_option
        self._partition_num = partition_num
        _by_name[name] = self

    def make(self) -> EmbeddingVariable:
        return get_embedding_variable(
            self.name,
            self.dim,
            initializer=self._initializer,
            optimizer=self.optimizer,
            ev_option=self._ev_option,
            partition_num=self._partition_num,
        )

    def total_count(self) -> Tensor:
        """int64 (2,): rows, dim."""
        return _TotalCount(self)

    def __repr__(self) -> str:
        return f"<GraphVariable {self.name!r} dim={self.dim}>"


# Those that somebody still holds.
_by_name: weakref.WeakValueDictionary[str, GraphVariable] = weakref.WeakValueDictionary()


class Initialize(Operation):
    """Makes every variable that there is by now, empty."""

    comes_first = True

    def __init__(self) -> None:
        self._variables = list(_by_name.values())

    def execute(self, run: Run, /) -> None:
        for variable in self._variables:
            run.initialize(variable)


def embedding_lookup(variable: GraphVariable, ids: Operand, name: str = "lookup") -> Tensor:
    """The rows of int64 `ids`: ids.shape + (dim,)."""
    if not isinstance(variable, GraphVariable):
        raise InvalidArgumentError(
            f"variable must be an embstore.graph.GraphVariable, got {type(variable).__name__}"
        )
    return Lookup(variable, as_tensor(ids), name)


class Lookup(Tensor):
    def __init__(self, variable: GraphVariable, ids: Tensor, name: str) -> None:
        super().__init__(ids, name=name)
        self.variable = variable

    def compute(self, run: Run, /) -> Array:
        train = run.trains(self.variable)
        return run.variable(self.variable).lookup(run[self.inputs[0]], train=train)

    def backward(self, run: Run, gradient: Array, /) -> Sequence[Array]:
        ids = run[self.inputs[0]].reshape(-1)
        rows = gradient.reshape(-1, self.variable.dim).astype(np.float32)
        run.add_row_gradients(self.variable, (ids, rows))
        return ()


class _TotalCount(Tensor):
    def __init__(self, variable: GraphVariable) -> None:
        super().__init__(name=f"{variable.name}_total_count")
        self._variable = variable

    def compute(self, run: Run, /) -> Array:
        return np.array(run.variable(self._variable).total_count(), np.int64)
