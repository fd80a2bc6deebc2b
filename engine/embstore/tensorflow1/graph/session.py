"""Where tensors are computed, and variables have their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from embstore.errors import ClosedError, InvalidArgumentError
from embstore.optimizers import Optimizer
from embstore.tensorflow1.graph.tensor import (
    Array,
    Operand,
    Operation,
    Placeholder,
    Rows,
    Tensor,
    in_order,
)
from embstore.tensorflow1.graph.variable import GraphVariable, Lookup
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Session:
    """Computes tensors, and owns the rows of the variables that it initialized.

    A context manager. Closing it closes its variables, which gives their memory and files back.
    """

    def __init__(self, target: str = "", graph: object = None, config: object = None) -> None:
        if target or graph is not None:
            raise InvalidArgumentError(
                "target and graph must be left out: there is one graph, in this process"
            )
        del config  # of devices and threads, among which there is no choice
        self._variables: dict[GraphVariable, tuple[EmbeddingVariable, Optimizer | None]] = {}
        self._steps: dict[Tensor, int] = {}
        self._closed = False

    def run(self, fetches: Any, feed_dict: Mapping[Tensor, Operand] | None = None) -> Any:
        """What `fetches`, any nest of lists, tuples and dicts, come to; operations give None.

        Variables are initialized first and trained last, so values are those of before the
        training. Every tensor is computed once. A look-up counts and promotes as serving does,
        unless the run trains its variable.
        """
        if self._closed:
            raise ClosedError("the session is closed")
        wanted = list(_flattened(fetches))
        tensors = [fetch for fetch in wanted if isinstance(fetch, Tensor)]
        operations = [fetch for fetch in wanted if isinstance(fetch, Operation)]
        run = _Run(self, operations, feed_dict or {})
        for operation in operations:
            if operation.comes_first:
                operation.execute(run)
        run.compute(tensors)
        for operation in operations:
            if not operation.comes_first:
                operation.execute(run)
        return _mapped(fetches, run.result)

    def initialize(self, variable: GraphVariable) -> None:
        """Makes `variable`, empty; the rows that it had in this session are dropped."""
        if variable in self._variables:
            self._variables.pop(variable)[0].close()
        self._variables[variable] = (variable.make(), variable.optimizer)

    def variable(self, variable: GraphVariable) -> EmbeddingVariable:
        """The rows of `variable` in this session."""
        if variable not in self._variables:
            raise InvalidArgumentError(
                f"{variable.name} has no rows in this session; "
                "run global_variables_initializer() in it first"
            )
        made, optimizer = self._variables[variable]
        if optimizer != variable.optimizer:
            raise InvalidArgumentError(
                f"{variable.name} was initialized before apply_gradients() chose its optimizer; "
                "run global_variables_initializer() after that"
            )
        return made

    def close(self) -> None:
        """Closes the session's variables. Closing it again does nothing."""
        self._closed = True
        while self._variables:
            self._variables.popitem()[1][0].close()

    def steps(self, counter: Tensor) -> int:
        return self._steps.get(counter, 0)

    def count_step(self, counter: Tensor) -> None:
        self._steps[counter] = self.steps(counter) + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Run:
    """One call of `Session.run`: the values so far."""

    def __init__(
        self,
        session: Session,
        operations: Sequence[Operation],
        feed: Mapping[Tensor, Operand],
    ) -> None:
        self.variable = session.variable
        self.initialize = session.initialize
        self.steps = session.steps
        self.count_step = session.count_step
        self._trained = {v for operation in operations for v in operation.trained_variables()}
        self._values: dict[Tensor, Array] = {
            tensor: np.asarray(value, tensor.dtype if isinstance(tensor, Placeholder) else None)
            for tensor, value in feed.items()
        }
        self._gradients: dict[Tensor, dict[GraphVariable, Rows]] = {}
        self._gathered: dict[GraphVariable, list[Rows]] = {}

    def __getitem__(self, tensor: Tensor, /) -> Array:
        return self._values[tensor]

    def trains(self, variable: GraphVariable, /) -> bool:
        return variable in self._trained

    def compute(self, wanted: Sequence[Tensor]) -> None:
        for tensor in list(in_order(wanted, list(self._values))):
            self._values[tensor] = tensor.compute(self)

    def add_row_gradients(self, variable: GraphVariable, rows: Rows, /) -> None:
        self._gathered.setdefault(variable, []).append(rows)

    def row_gradients(self, loss: Tensor, variable: GraphVariable, /) -> Rows:
        if loss not in self._gradients:
            self.compute([loss])
            self._gathered = {}
            self._go_back_from(loss)
            self._gradients[loss] = {
                trained: _joined(parts) for trained, parts in self._gathered.items()
            }
        return self._gradients[loss][variable]

    def _go_back_from(self, loss: Tensor) -> None:
        ordered = list(in_order([loss]))
        needs_gradient: set[Tensor] = (
            set()
        )  # what rows were used for; nothing else needs to have a gradient
        for tensor in ordered:
            if isinstance(tensor, Lookup) or not needs_gradient.isdisjoint(tensor.inputs):
                needs_gradient.add(tensor)
        gradients = {loss: np.ones_like(self._values[loss])}
        for tensor in reversed(ordered):
            if tensor not in needs_gradient or tensor not in gradients:
                continue
            of_inputs = tensor.backward(self, gradients.pop(tensor))
            for x, gradient in zip(tensor.inputs, of_inputs, strict=False):
                gradients[x] = gradients[x] + gradient if x in gradients else gradient

    def result(self, fetch: Tensor | Operation) -> Any:
        if isinstance(fetch, Operation):
            return None
        value = self._values[fetch]
        return value[()] if value.ndim == 0 else value


def _joined(parts: Sequence[Rows]) -> Rows:
    """In the order of the look-ups, which is the reverse of the way back."""
    ids, values = zip(*reversed(parts), strict=True)
    return np.concatenate(ids), np.concatenate(values)


def _flattened(fetches: Any) -> Iterator[Tensor | Operation]:
    if isinstance(fetches, (Tensor, Operation)):
        yield fetches
    elif isinstance(fetches, Mapping):
        yield from _flattened(list(fetches.values()))
    elif isinstance(fetches, (list, tuple)):
        for fetch in fetches:
            yield from _flattened(fetch)
    else:
        raise InvalidArgumentError(
            f"fetches must be tensors and operations, got {type(fetches).__name__}"
        )


def _mapped(fetches: Any, result: Callable[[Tensor | Operation], Any]) -> Any:
    if isinstance(fetches, Mapping):
        return {name: _mapped(fetch, result) for name, fetch in fetches.items()}
    if isinstance(fetches, (list, tuple)):
        return type(fetches)(_mapped(fetch, result) for fetch in fetches)
    return result(fetches)
