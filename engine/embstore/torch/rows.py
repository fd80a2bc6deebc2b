"""The parameter that stands for a variable's rows, and the gradient that gathers for them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from embstore.errors import ClosedError, InvalidArgumentError, UnsupportedError
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = ["GradientPart", "Rows", "apply", "joined", "rows_lie_with", "rows_of"]


@dataclass(frozen=True)
class GradientPart:
    """Gradients of rows, one for each time that an id was looked up."""

    number: int  # of the forward
    ids: Tensor  # int64 (n,), on the CPU, or on the GPU that has the rows
    grads: Tensor  # float32 (n, dim)
    of_all_replicas: bool = True  # False: other processes have parts of theirs, see replicas.py


class Rows(torch.nn.Parameter):
    """Stands for a variable's rows among a model's parameters; there is one for each variable.

    It has no rows itself: its shape is (0, dim). `grad` is the gradient that an
    `embstore.torch.Optimizer` has gathered, float32 (n, dim), a row for each of the n different
    ids, ascending; None where there is none, and always where there is no such optimizer. It may
    be changed in place or set to None, as clipping, unscaling and `zero_grad` do.
    """

    def __new__(cls, variable: EmbeddingVariable) -> Self:
        return super().__new__(cls, torch.empty(0, variable.dim))

    def __init__(self, variable: EmbeddingVariable) -> None:
        # Weak, since autograd's graph holds parameters, and never lets go of them where the
        # interpreter ends before the graph does.
        self._variable = weakref.ref(variable)
        self._name = variable.name
        self._lock = threading.Lock()
        self._parts: list[GradientPart] = []
        self._sum: _Sum | None = None  # of all the parts, where somebody has looked at it
        self.gathers = False  # Set for good by an embstore.torch.Optimizer.

    @property
    def variable(self) -> EmbeddingVariable:
        variable = self._variable()
        if variable is None:
            raise ClosedError(f"{self._name} doesn't exist any more: nothing held it")
        return variable

    @property
    def grad(self) -> Tensor | None:
        with self._lock:
            return self._summed().grads if self._parts else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        with self._lock:
            if value is None:
                self._parts, self._sum = [], None
                return
            summed = self._summed() if self._parts else None
            if summed is None or value.shape != summed.grads.shape:
                raise InvalidArgumentError(
                    f"the gradient of {self._name}'s rows can only be replaced by one of its own "
                    f"shape, got {tuple(value.shape)}"
                )
            summed.grads = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def add_part(self, part: GradientPart) -> None:
        with self._lock:
            self._unsum()
            self._parts.append(part)

    def take_parts_of_this_replica(self) -> list[GradientPart]:
        """Removes and returns what wasn't gathered over all replicas yet."""
        with self._lock:
            self._unsum()
            taken = [part for part in self._parts if not part.of_all_replicas]
            self._parts = [part for part in self._parts if part.of_all_replicas]
            return taken

    def gathered(self) -> GradientPart | None:
        """All parts in the order of their forwards, as they are to be applied."""
        with self._lock:
            if not self._parts:
                return None
            return joined(self._parts) if self._sum is None else self._sum.as_part(self._parts)

    def _summed(self) -> _Sum:
        if self._sum is None:
            self._sum = _Sum.of(joined(self._parts))
        return self._sum

    def _unsum(self) -> None:
        """Makes the sum, which may have been changed, the only part."""
        if self._sum is not None:
            self._parts, self._sum = [self._sum.as_part(self._parts)], None

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents  # there are none
        return f"Rows({self._variable()!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        variable = self.variable
        if memo.get(id(variable)) is variable:  # whoever copies wants the variable shared
            return self
        raise UnsupportedError(_CANT_BE_COPIED.format(self._name))

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise UnsupportedError(_CANT_BE_COPIED.format(self._name))


_CANT_BE_COPIED = (
    "{}, whose rows lie in the tiers of this process, can't be copied or pickled with its module; "
    "copy.deepcopy(model, {{id(variable): variable}}) makes a copy that shares the variable, and "
    "embstore.save and restore bring the rows into another"
)


@dataclass
class _Sum:
    """Gradients summed by id."""

    ids: Tensor  # of every occurrence, in order
    firsts: Tensor  # where each different id comes first, by ascending id
    grads: Tensor  # of each different id

    @staticmethod
    def of(part: GradientPart) -> _Sum:
        keys, inverse = torch.unique(part.ids, return_inverse=True)
        n = len(part.ids)
        positions = torch.arange(n, device=part.ids.device)
        firsts = torch.full((len(keys),), n, device=part.ids.device)
        firsts = firsts.scatter_reduce(0, inverse, positions, "amin")
        # Adds in the order of occurrence, on the CPU at least: as apply_gradients does.
        grads = torch.ops.aten.embedding_dense_backward(
            part.grads, inverse.to(part.grads.device), len(keys), -1, False
        )
        return _Sum(part.ids, firsts, grads)

    def as_part(self, of: Sequence[GradientPart]) -> GradientPart:
        """Every occurrence again, so that it counts; the first of an id has the gradient."""
        grads = self.grads.new_zeros((len(self.ids), self.grads.shape[1]), dtype=torch.float32)
        grads[self.firsts.to(grads.device)] = self.grads.detach().to(torch.float32)
        return GradientPart(
            max(part.number for part in of),
            self.ids,
            grads,
            all(part.of_all_replicas for part in of),
        )


def joined(parts: Sequence[GradientPart]) -> GradientPart:
    """One part of several, in the order of their forwards."""
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(parts, key=lambda part: part.number)
    device = ordered[-1].grads.device
    return GradientPart(
        ordered[-1].number,
        torch.cat([part.ids.to(ordered[-1].ids.device) for part in ordered]),
        torch.cat([part.grads.to(device) for part in ordered]),
        all(part.of_all_replicas for part in ordered),
    )


def rows_lie_with(variable: EmbeddingVariable, ids: Tensor) -> bool:
    """Whether the variable takes the ids where they are, in the memory of its GPU."""
    return ids.is_cuda and variable.gpu == f"cuda:{ids.device.index}"


def apply(variable: EmbeddingVariable, part: GradientPart, global_step: int | None = None) -> None:
    """Trains the variable's rows, where the ids are: on a GPU, nothing waits for it."""
    if part.ids.is_cuda:
        variable.apply_gradients(part.ids, part.grads.to(part.ids.device), global_step)
    else:
        variable.apply_gradients(part.ids.numpy(), part.grads.cpu().numpy(), global_step)


_rows: weakref.WeakKeyDictionary[EmbeddingVariable, Rows] = weakref.WeakKeyDictionary()
_rows_lock = threading.Lock()


def rows_of(variable: EmbeddingVariable) -> Rows:
    """The variable's parameter, the same one at every call."""
    with _rows_lock:
        rows = _rows.get(variable)
        if rows is None:
            rows = _rows[variable] = Rows(variable)
        return rows
