"""The parameter that stands for a variable's rows, and the gradient that gathers for them."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from embstore.errors import ClosedError, InvalidArgumentError, UnsupportedError
from embstore.gpu.batches import BatchConditions
from embstore.gpu.steps import ApplyStep, apply_together
from embstore.table.attempts import Attempts
from embstore.table.many import apply_many
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = ["GradientPart", "Refusal", "Rows", "apply_all", "joined", "rows_lie_with", "rows_of"]


GradHook: TypeAlias = "Callable[[Tensor], Tensor | None]"


class Refusal(IntEnum):
    """Why a batch on a GPU isn't applied: what the host doesn't know when it asks for it."""

    OFFSETS = 1

    def message(self, name: str) -> str:
        """name: of the variable."""
        return (
            f"{name}: offsets must start at 0 and ascend to at most the number of ids; the bags "
            "that they made are nan, and rows weren't trained"
        )


@dataclass(frozen=True)
class GradientPart:
    """Gradients of rows, one for each time that an id was looked up."""

    number: int  # of the forward
    ids: Tensor  # int64 (n,), on the CPU, or on the GPU that has the rows
    grads: Tensor  # float32 (n, dim)
    of_all_replicas: bool = True  # False: other processes have parts of theirs, see replicas.py
    # What may be known on a GPU alone, with the ids:
    kept: Tensor | None = None  # bool (n,): False leaves an id out
    refused: Tensor | None = None  # int64 (1,): a Refusal, or 0

    def settled(self, name: str) -> GradientPart:
        """Returns the part without what is left out; raises why it is refused. Waits for a GPU.

        name: of the variable.
        """
        if self.refused is not None and (number := int(self.refused)) != 0:
            raise InvalidArgumentError(Refusal(number).message(name))
        if self.kept is None:
            return self if self.refused is None else replace(self, refused=None)
        return replace(
            self,
            ids=self.ids[self.kept],
            grads=self.grads[self.kept.to(self.grads.device)],
            kept=None,
            refused=None,
        )


class Rows(torch.nn.Parameter):
    """Stands for a variable's rows among a model's parameters; there is one for each variable.

    It has no rows itself: its shape is (0, dim). `grad` is the gradient that an
    `embstore.torch.Optimizer` has gathered, float32 (n, dim), a row for each of the n ids in the
    order of their look-ups: the first row of an id has the sum of its gradients, and its others
    are zeros; of batches without ids it is one row of zeros. None where there is none, and always
    where there is no such optimizer. It may be changed in place or set to None, as clipping,
    unscaling and `zero_grad` do. A hook (`register_hook`) gets the gradient of one backward pass.
    """

    def __new__(cls, variable: EmbeddingVariable) -> Self:
        values = torch.empty(0, variable.dim)
        if values.is_meta:  # of a model whose dense layers get memory later; its rows have some
            values = torch.empty(0, variable.dim, device="cpu")
        return super().__new__(cls, values)

    def __init__(self, variable: EmbeddingVariable) -> None:
        # Weak, since autograd's graph holds parameters, and never lets go of them where the
        # interpreter ends before the graph does.
        self._variable = weakref.ref(variable)
        self._name = variable.name
        self._lock = threading.Lock()
        self._parts: list[GradientPart] = []
        self._sum: GradientPart | None = None  # of all parts, where somebody has looked at it
        self._sum_was_zero: Tensor | None = None  # a bool: when that was made
        self._is_watched = False
        # Not those of the tensor, which autograd would call with a gradient of no rows.
        self._hooks: OrderedDict[int, GradHook] = OrderedDict()
        # The newest embstore.torch.Optimizer, also when it is gone.
        self.trained_by: weakref.ref[Any] | None = None

    __hash__ = object.__hash__  # Tensor's, of the same identity, is a Python function

    @property
    def gathers(self) -> bool:
        """From when an Optimizer was made, for good."""
        return self.trained_by is not None

    @property
    def variable(self) -> EmbeddingVariable:
        variable = self._variable()
        if variable is None:
            raise ClosedError(f"{self._name} doesn't exist any more: nothing held it")
        return variable

    @property
    def grad(self) -> Tensor | None:
        with self._lock:
            return _as_grad(self._looked_at()) if self._parts else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        with self._lock:
            if value is None:
                self._parts, self._sum = [], None
                return
            summed = self._looked_at() if self._parts else None
            if summed is None or value.shape != _as_grad(summed).shape:
                raise InvalidArgumentError(
                    f"the gradient of {self._name}'s rows can only be replaced by one of its own "
                    f"shape, got {tuple(value.shape)}"
                )
            if len(summed.ids):
                self._sum = replace(summed, grads=value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def register_hook(self, hook: GradHook) -> RemovableHandle:
        """Has `hook` called with the gradient of each backward pass, which is as `grad` has it;
        what it returns, unless that is None, takes its place. Returns a handle to remove the hook.

        It is called when the pass ends, also where there is no `embstore.torch.Optimizer`.
        """
        handle = RemovableHandle(self._hooks)
        self._hooks[handle.id] = hook
        return handle

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> NoReturn:
        del hook
        raise UnsupportedError(
            f"{self._name}: its Rows can't have a hook that runs after their gradient was "
            "accumulated, since that comes when the backward pass is through; use register_hook, "
            "which gets the gradient of each pass, or read rows.grad after backward()"
        )

    def watch(self, accumulated: Callable[[Tensor], None]) -> None:
        """Has `accumulated` called where a backward pass gives it a gradient; the first call
        counts.
        """
        if not self._is_watched:
            super().register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
            self._is_watched = True

    def through_hooks(self, part: GradientPart) -> GradientPart:
        """Returns what the hooks make of the gradient of one backward pass."""
        if not self._hooks:
            return part
        part = _summed(part)
        for hook in list(self._hooks.values()):
            grads = hook(part.grads)
            if grads is None:
                continue
            if not isinstance(grads, torch.Tensor) or grads.shape != part.grads.shape:
                is_tensor = isinstance(grads, torch.Tensor)
                got = tuple(grads.shape) if is_tensor else type(grads).__name__
                raise InvalidArgumentError(
                    f"a hook on {self._name}'s rows must return None or a gradient of the shape "
                    f"that it got, {tuple(part.grads.shape)}, got {got}"
                )
            # A copy: the hook may have kept it.
            grads = grads.detach().to(part.grads.device, torch.float32, copy=True)
            part = replace(part, grads=grads)
        return part

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

    def gathered(self, *, summed: bool = False) -> GradientPart | None:
        """All parts in the order of their forwards, as they are to be applied.

        summed: with the sums that `grad` has.
        """
        with self._lock:
            if summed and self._parts:
                self._looked_at()
            self._unsum()
            return joined(self._parts) if self._parts else None

    def _looked_at(self) -> GradientPart:
        if self._sum is None:
            with torch.inference_mode(False), torch.no_grad():  # it may be changed outside of that
                self._sum = _summed(joined(self._parts))
                self._sum_was_zero = ~self._sum.grads.any()
        return self._sum

    def _unsum(self) -> None:
        """Makes the sum, which may have been changed, the only part. Of one that was set to zeros,
        as `zero_grad(set_to_none=False)` does, nothing is left: its ids would be trained again.
        """
        if self._sum is None or self._sum_was_zero is None:
            return
        part = replace(self._sum, grads=self._sum.grads.detach().to(torch.float32))
        self._parts, self._sum = [part], None
        is_dropped = ~(part.grads.any() | self._sum_was_zero.to(part.grads.device))
        if not part.ids.is_cpu:  # the host doesn't know
            self._parts = [replace(part, kept=_kept(part) & ~is_dropped.to(part.ids.device))]
        elif is_dropped:
            self._parts = []

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


def _as_grad(summed: GradientPart) -> Tensor:
    """Its gradients; of no ids a row of zeros, since no numbers have no largest one to clip by."""
    return summed.grads if len(summed.ids) else summed.grads.new_zeros(1, summed.grads.shape[1])


def _summed(part: GradientPart) -> GradientPart:
    """Returns the part with an id's gradients summed in its first row, and zeros in its others.

    How many ids differ is known to a GPU alone, so the sums have a row for each id, and nothing
    waits for that number.
    """
    grads = part.grads
    if part.kept is not None:
        grads = grads.masked_fill(~part.kept.to(grads.device).unsqueeze(1), 0)
    firsts = _first_rows(part.ids, part.kept).to(grads.device)
    # Adds in the order of occurrence, on the CPU at least: as apply_gradients does.
    sums = torch.ops.aten.embedding_dense_backward(grads, firsts, len(part.ids), -1, False)
    return replace(part, grads=sums)


def _first_rows(ids: Tensor, kept: Tensor | None) -> Tensor:
    """Returns for each id where it comes first, among those that are kept as it is, or not."""
    ordered, order = torch.sort(ids, stable=True)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    if kept is not None:
        _, by_kept = torch.sort(kept.gather(0, order).byte(), stable=True)
        order = order.gather(0, by_kept)
        ordered, kept = ids.gather(0, order), kept.gather(0, order)
    begins[1:] = ordered[1:] != ordered[:-1]
    if kept is not None:
        begins[1:] |= kept[1:] != kept[:-1]
    positions = torch.arange(len(ids), device=ids.device)
    group_begins = positions.masked_fill(~begins, 0).cummax(0).values
    return torch.empty_like(order).scatter(0, order, order.gather(0, group_begins))


def joined(parts: Sequence[GradientPart]) -> GradientPart:
    """One part of several, in the order of their forwards."""
    if len(parts) == 1:
        return parts[0]
    ordered = sorted(parts, key=lambda part: part.number)
    of_ids, of_grads = ordered[-1].ids.device, ordered[-1].grads.device
    kept = None
    if any(part.kept is not None for part in ordered):
        kept = torch.cat([_kept(part).to(of_ids) for part in ordered])
    refused = [part.refused.to(of_ids) for part in ordered if part.refused is not None]
    return GradientPart(
        ordered[-1].number,
        torch.cat([part.ids.to(of_ids) for part in ordered]),
        torch.cat([part.grads.to(of_grads) for part in ordered]),
        all(part.of_all_replicas for part in ordered),
        kept,
        torch.cat(refused).amax(0, keepdim=True) if refused else None,
    )


def _kept(part: GradientPart) -> Tensor:
    return torch.ones_like(part.ids, dtype=torch.bool) if part.kept is None else part.kept


def rows_lie_with(variable: EmbeddingVariable, ids: Tensor) -> bool:
    """Whether the variable takes the ids where they are, in the memory of its GPU."""
    return not ids.is_cpu and variable.gpu == str(ids.device)


def apply_all(
    updates: Sequence[tuple[EmbeddingVariable, GradientPart]],
    global_step: int | None = None,
    left_out: Tensor | None = None,
) -> None:
    """Trains the rows of several variables, none twice: those on a GPU by one step there, others as
    `embstore.apply_many` does. Raises the first error; the other variables are trained.

    left_out: one number, of any device: unless it is 0, the applies count and change nothing.
    """
    steps = [
        _step_on_gpu(variable, part, left_out) for variable, part in updates if not part.ids.is_cpu
    ]
    attempts = Attempts()
    if steps:
        with attempts.one():
            apply_together(steps, global_step)
    here: list[tuple[EmbeddingVariable, GradientPart]] = []
    for variable, part in updates:
        if part.ids.is_cpu:
            with attempts.one():
                here.append((variable, part.settled(variable.name)))
    if here and left_out is not None and bool(left_out):
        for variable, _ in here:
            with attempts.one():
                variable.internals.leave_out_apply()
    else:
        with attempts.one():
            apply_many(
                [variable for variable, _ in here],
                [part.ids.numpy() for _, part in here],
                [part.grads.cpu().numpy() for _, part in here],
                global_step,
            )
    attempts.end()


def _step_on_gpu(
    variable: EmbeddingVariable, part: GradientPart, left_out: Tensor | None
) -> ApplyStep:
    variable.internals.check_trainable()
    if left_out is not None:
        left_out = (left_out != 0).reshape(1).long().to(part.ids.device, non_blocking=True)
    conditions = BatchConditions(
        None if part.kept is None else part.kept.long(),
        part.refused,
        tuple(refusal.message(variable.name) for refusal in Refusal),
        left_out,
    )
    return ApplyStep.of(variable, part.ids, part.grads.to(part.ids.device), conditions)


_making = threading.Lock()


def rows_of(variable: EmbeddingVariable) -> Rows:
    """The variable's parameter, the same one at every call."""
    # The variable itself keeps it. A WeakKeyDictionary would keep both for ever, if a hook of the
    # parameter holds the variable.
    kept = vars(variable)
    rows: Rows | None = kept.get("_torch_rows")
    if rows is None:
        with _making:
            rows = kept.get("_torch_rows")
            if rows is None:
                rows = kept["_torch_rows"] = Rows(variable)
    return rows
