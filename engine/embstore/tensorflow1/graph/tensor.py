"""What a graph is made of: tensors, which are computed, and operations, which are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np
from numpy.typing import DTypeLike, NDArray

from embstore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from embstore.tensorflow1.graph.variable import GraphVariable
    from embstore.variable import EmbeddingVariable

Array: TypeAlias = NDArray[Any]
Operand: TypeAlias = Union["Tensor", float, "Sequence[Any]", Array]
Rows: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.float32]]"  # ids (n,), values (n, dim)


class Run(Protocol):
    """One call of `Session.run`, as nodes of the graph see it."""

    def __getitem__(self, tensor: Tensor, /) -> Array:
        """The value of a tensor that was computed before: those of a node's inputs are."""

    def compute(self, wanted: Sequence[Tensor], /) -> None:
        """Makes sure that the tensors have values."""

    def variable(self, variable: GraphVariable, /) -> EmbeddingVariable:
        """The rows of a variable in the run's session."""

    def trains(self, variable: GraphVariable, /) -> bool: ...

    def row_gradients(self, loss: Tensor, variable: GraphVariable, /) -> Rows:
        """An id may come several times: once for each of its look-ups."""

    def add_row_gradients(self, variable: GraphVariable, rows: Rows, /) -> None: ...

    def steps(self, counter: Tensor, /) -> int: ...

    def count_step(self, counter: Tensor, /) -> None: ...

    def initialize(self, variable: GraphVariable, /) -> None: ...


class Tensor:
    """A value that a session computes from those of its `inputs`."""

    # Else numpy would take a Tensor for a scalar object and return an array of Tensors.
    __array_ufunc__ = None

    def __init__(self, *inputs: Tensor, name: str) -> None:
        self.inputs = inputs
        self.name = name

    def compute(self, _run: Run, /) -> Array:
        raise NotImplementedError

    def backward(self, _run: Run, _gradient: Array, /) -> Sequence[Array]:
        """The gradients of the first inputs, where this tensor's is the given one."""
        raise InvalidArgumentError(f"{self.name} has no gradient")

    def __add__(self, other: Operand) -> Tensor:
        return arithmetic.add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Tensor:
        return arithmetic.subtract(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return arithmetic.subtract(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return arithmetic.multiply(self, other)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r}>"


class Operation:
    """What a session does rather than computes; running it gives None."""

    # Before the run's tensors are computed, or after.
    comes_first = False

    def execute(self, _run: Run, /) -> None:
        raise NotImplementedError

    def trained_variables(self) -> Sequence[GraphVariable]:
        return ()


class Placeholder(Tensor):
    """A value that every run is fed with.

    shape: for the reader; it isn't looked at.
    """

    def __init__(self, dtype: DTypeLike, shape: object = None, name: str = "placeholder") -> None:
        super().__init__(name=name)
        self.dtype = np.dtype(dtype)
        self.shape = shape

    def compute(self, _run: Run, /) -> Array:
        raise InvalidArgumentError(f"the placeholder {self.name!r} is not in feed_dict")


class Constant(Tensor):
    def __init__(self, value: Array, name: str = "constant") -> None:
        super().__init__(name=name)
        self.value = value

    def compute(self, _run: Run, /) -> Array:
        return self.value


def as_tensor(value: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """`value`, made a constant unless it is a tensor; floats are float32, ints int64."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value, dtype)
    if dtype is None and array.dtype.kind in "iuf":
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return Constant(array)


def in_order(wanted: Sequence[Tensor], known: Sequence[Tensor] = ()) -> Iterator[Tensor]:
    """`wanted` and what they need beside `known`, each once and after its inputs."""
    seen = set(known)
    stack = [(tensor, False) for tensor in reversed(wanted)]  # long graphs would end a recursion
    while stack:
        tensor, inputs_are_done = stack.pop()
        if inputs_are_done:
            yield tensor
        elif tensor not in seen:
            seen.add(tensor)
            stack.append((tensor, True))
            stack.extend((x, False) for x in reversed(tensor.inputs))


from embstore.tensorflow1.graph import arithmetic  # noqa: E402  (it needs Tensor)
