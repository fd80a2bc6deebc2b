"""The parameter that stands for a variable's rows, and the gradients gathered for it."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

import torch
from torch.utils.hooks import RemovableHandle

from embstore.errors import ClosedError, InvalidArgumentError, UnsupportedError
from embstore.gpu.batches import BatchConditions
from embstore.gpu.steps import ApplyStep, apply_together
from embstore.table.attempts import Attempts
from embstore.table.many import apply_bags
from embstore.torch.bags import Bags
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = [
    "GradientPart",
    "Refusal",
    "Rows",
    "apply_all",
    "are_on_gpu_of_rows",
    "join_parts",
    "rows_of",
]


GradHook: TypeAlias = "Callable[[Tensor], Tensor | None]"


class Refusal(IntEnum):
    """The reasons that a GPU has for not applying a batch, which the host learns only later."""

    OFFSETS = 1

    def message(self, name: str) -> str:
        """Returns the error message. name: the variable's."""
        return (
            f"{name}: offsets must start at 0 and ascend to at most the number of ids; the bags "
            "that they made are nan, and rows weren't trained"
        )


class GradientPart(NamedTuple):
    """Gradients of rows, one for each looked-up id, equal ids included."""

    number: int  # the number of the forward pass
    # int64 (n,), with `bags` of the look-up's shape; on the CPU, or on the GPU that has the rows
    ids: Tensor
    grads: Tensor  # float32 (n, dim); with `bags` (bags, dim)
    is_reduced: bool = True  # False: other processes' parts are missing, see replicas.py
    # On the ids' device, and possibly unknown to the host:
    keep_mask: Tensor | None = None  # bool (n,): False leaves an id out
    refusal: Tensor | None = None  # int64 (1,): a Refusal, or 0
    # Bags whose ids share the gradient of their sum. They leave their padding out, without
    # `keep_mask`.
    bags: Bags | None = None

    def spread_to_ids(self) -> GradientPart:
        """Returns the part with a gradient for each id in place of each bag."""
        if self.bags is None:
            return self
        ids = self.ids.reshape(-1)
        return self._replace(
            ids=ids,
            grads=self.bags.spread_to_ids(self.ids, self.grads).reshape(-1, self.grads.shape[1]),
            keep_mask=self.bags.keep_mask(ids),
            bags=None,
        )

    def resolved(self, name: str) -> GradientPart:
        """Returns the part with its kept ids only. Waits for a GPU. Raises InvalidArgumentError,
        with the variable's name, if the part is refused.
        """
        if self.refusal is not None and (number := int(self.refusal)) != 0:
            raise InvalidArgumentError(Refusal(number).message(name))
        if self.keep_mask is None:
            return self if self.refusal is None else self._replace(refusal=None)
        return self._replace(
            ids=self.ids[self.keep_mask],
            grads=self.grads[self.keep_mask.to(self.grads.device)],
            keep_mask=None,
            refusal=None,
        )


class Rows(torch.nn.Parameter):
    """A parameter that stands for a variable's rows in a model; each variable has one.

    It holds no rows: its shape is (0, dim). `grad` is the gradient that an
    `embstore.torch.Optimizer` has gathered, float32 (n, dim), with a row for each of n looked-up
    ids, in the order of look-ups. The first row of an id has the sum of its gradients, its other
    rows are zeros. Without ids `grad` is one row of zeros. It is None before the first backward
    pass, and without an Optimizer. It may be changed in place or set to None, as clipping,
    unscaling and `zero_grad` do. A hook (`register_hook`) gets the gradient of one backward pass.
    """

    def __new__(cls, variable: EmbeddingVariable) -> Self:
        values = torch.empty(0, variable.dim)
        if values.is_meta:  # a model whose dense layers get memory later
            values = torch.empty(0, variable.dim, device="cpu")
        return super().__new__(cls, values)

    def __init__(self, variable: EmbeddingVariable) -> None:
        # Weak, since autograd's graph holds parameters, and never lets go of them where the
        # interpreter ends before the graph does.
        self._variable = weakref.ref(variable)
        self._name = variable.name
        self._lock = threading.Lock()
        self._parts: list[GradientPart] = []
        self._sum: GradientPart | None = None  # the sum of all parts, once `grad` was read
        self._sum_was_zero: Tensor | None = (
            None  # bool (1,): whether _sum was zero when it was made
        )
        self._is_watched = False
        # Apart from the tensor's hooks, which autograd calls with an empty gradient.
        self._hooks: OrderedDict[int, GradHook] = OrderedDict()
        # The newest embstore.torch.Optimizer, even if it has been deleted.
        self.trained_by: weakref.ref[Any] | None = None

    __hash__ = object.__hash__  # as Tensor's, which is a slower Python function

    @property
    def gathers(self) -> bool:
        """Whether gradients gather: from the first Optimizer on, and for good."""
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
            return _as_grad(self._sum_parts()) if self._parts else None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        with self._lock:
            if value is None:
                self._parts, self._sum = [], None
                return
            summed = self._sum_parts() if self._parts else None
            if summed is None or value.shape != _as_grad(summed).shape:
                raise InvalidArgumentError(
                    f"the gradient of {self._name}'s rows can only be replaced by one of its own "
                    f"shape, got {tuple(value.shape)}"
                )
            if len(summed.ids):
                self._sum = summed._replace(grads=value)

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    def register_hook(self, hook: GradHook) -> RemovableHandle:
        """Registers a hook on the gradient of each backward pass, which has the form of `grad`. The
        hook may return another gradient in its place. Returns a handle that removes the hook.

        The hook runs when the pass ends, with and without an `embstore.torch.Optimizer`.
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
        """Has `accumulated` called when a backward pass accumulates a gradient. Calls after the
        first one have no effect.
        """
        if not self._is_watched:
            super().register_post_accumulate_grad_hook(accumulated)  # type: ignore[no-untyped-call]
            self._is_watched = True

    def run_hooks(self, part: GradientPart) -> GradientPart:
        """Returns the gradient of one backward pass after all hooks."""
        if not self._hooks:
            return part
        part = _sum_equal_ids(part)
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
            part = part._replace(grads=grads)
        return part

    def add_part(self, part: GradientPart) -> None:
        with self._lock:
            self._replace_parts_by_sum()
            self._parts.append(part)

    def take_unreduced_parts(self) -> list[GradientPart]:
        """Removes and returns the parts that lack the other replicas' gradients."""
        with self._lock:
            self._replace_parts_by_sum()
            taken = [part for part in self._parts if not part.is_reduced]
            self._parts = [part for part in self._parts if part.is_reduced]
            return taken

    def gathered(self, *, summed: bool = False) -> GradientPart | None:
        """Returns all parts as one, in the order of their forward passes, or None.

        summed: whether the gradients of equal ids are summed, as in `grad`.
        """
        with self._lock:
            if summed and self._parts:
                self._sum_parts()
            self._replace_parts_by_sum()
            return join_parts(self._parts) if self._parts else None

    def _sum_parts(self) -> GradientPart:
        if self._sum is None:
            with torch.inference_mode(False), torch.no_grad():  # callers may change it in place
                self._sum = _sum_equal_ids(join_parts(self._parts))
                self._sum_was_zero = ~self._sum.grads.any()
        return self._sum

    def _replace_parts_by_sum(self) -> None:
        """Replaces all parts by the sum, which the caller may have changed. Drops it if the caller
        set it to zeros, as `zero_grad(set_to_none=False)` does: its ids would be trained again.
        """
        if self._sum is None or self._sum_was_zero is None:
            return
        part = self._sum._replace(grads=self._sum.grads.detach().to(torch.float32))
        self._parts, self._sum = [part], None
        is_dropped = ~(part.grads.any() | self._sum_was_zero.to(part.grads.device))
        if not part.ids.is_cpu:  # without a wait for the GPU
            self._parts = [
                part._replace(keep_mask=_keep_mask_of(part) & ~is_dropped.to(part.ids.device))
            ]
        elif is_dropped:
            self._parts = []

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents  # there are none
        return f"Rows({self._variable()!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        variable = self.variable
        if memo.get(id(variable)) is variable:  # the caller of deepcopy wants to share it
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
    """Returns the gradients, or a row of zeros without ids: clipping takes a maximum of them."""
    return summed.grads if len(summed.ids) else summed.grads.new_zeros(1, summed.grads.shape[1])


def _sum_equal_ids(part: GradientPart) -> GradientPart:
    """Returns the part with each id's gradients summed in its first row, and zeros in its others.

    The number of rows stays the same, so that the host needn't wait until a GPU has counted the
    distinct ids.
    """
    part = part.spread_to_ids()
    grads = part.grads
    if part.keep_mask is not None:
        grads = grads.masked_fill(~part.keep_mask.to(grads.device).unsqueeze(1), 0)
    firsts = _first_rows(part.ids, part.keep_mask).to(grads.device)
    # On the CPU this adds in the order of the batch, as apply_gradients does.
    sums = torch.ops.aten.embedding_dense_backward(grads, firsts, len(part.ids), -1, False)
    return part._replace(grads=sums)


def _first_rows(ids: Tensor, keep_mask: Tensor | None) -> Tensor:
    """Returns the position of each id's first occurrence. Kept ids and others are told apart."""
    ordered, order = torch.sort(ids, stable=True)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    if keep_mask is not None:
        _, mask_order = torch.sort(keep_mask.gather(0, order).byte(), stable=True)
        order = order.gather(0, mask_order)
        ordered, keep_mask = ids.gather(0, order), keep_mask.gather(0, order)
    begins[1:] = ordered[1:] != ordered[:-1]
    if keep_mask is not None:
        begins[1:] |= keep_mask[1:] != keep_mask[:-1]
    positions = torch.arange(len(ids), device=ids.device)
    group_begins = positions.masked_fill(~begins, 0).cummax(0).values
    return torch.empty_like(order).scatter(0, order, order.gather(0, group_begins))


def join_parts(parts: Sequence[GradientPart]) -> GradientPart:
    """Joins parts, in the order of their forward passes."""
    if len(parts) == 1:
        return parts[0]
    ordered = sorted((part.spread_to_ids() for part in parts), key=lambda part: part.number)
    ids_device, grads_device = ordered[-1].ids.device, ordered[-1].grads.device
    keep_mask = None
    if any(part.keep_mask is not None for part in ordered):
        keep_mask = torch.cat([_keep_mask_of(part).to(ids_device) for part in ordered])
    refusal = [part.refusal.to(ids_device) for part in ordered if part.refusal is not None]
    return GradientPart(
        ordered[-1].number,
        torch.cat([part.ids.to(ids_device) for part in ordered]),
        torch.cat([part.grads.to(grads_device) for part in ordered]),
        all(part.is_reduced for part in ordered),
        keep_mask,
        torch.cat(refusal).amax(0, keepdim=True) if refusal else None,
    )


def _keep_mask_of(part: GradientPart) -> Tensor:
    return torch.ones_like(part.ids, dtype=torch.bool) if part.keep_mask is None else part.keep_mask


def are_on_gpu_of_rows(variable: EmbeddingVariable, ids: Tensor) -> bool:
    """Returns whether the ids lie in the memory of the GPU that holds the variable's rows."""
    return not ids.is_cpu and variable.gpu == str(ids.device)


def apply_all(
    updates: Sequence[tuple[EmbeddingVariable, GradientPart]],
    global_step: int | None = None,
    skip: Tensor | None = None,
) -> None:
    """Trains the rows of several distinct variables: variables on a GPU by one step there, others
    by `embstore.apply_many`. Raises the first error after the other variables have been trained.

    skip: one number on any device; if it isn't 0, the applies are counted but change nothing.
    """
    steps = [
        _step_on_gpu(variable, part, skip) for variable, part in updates if not part.ids.is_cpu
    ]
    attempts = Attempts()
    if steps:
        with attempts.attempt():
            apply_together(steps, global_step)
    on_cpu: list[tuple[EmbeddingVariable, GradientPart]] = []
    for variable, part in updates:
        if part.ids.is_cpu:
            with attempts.attempt():
                if variable.internals.table is None:
                    part = part.spread_to_ids()
                on_cpu.append((variable, part.resolved(variable.name)))
    if on_cpu and skip is not None and bool(skip):
        for variable, _ in on_cpu:
            with attempts.attempt():
                variable.internals.count_skipped_apply()
    else:
        with attempts.attempt():
            apply_bags(
                [variable for variable, _ in on_cpu],
                [part.ids.reshape(-1).numpy() for _, part in on_cpu],
                [part.grads.contiguous().cpu().numpy() for _, part in on_cpu],
                [None if part.bags is None else part.bags.for_core(part.ids) for _, part in on_cpu],
                global_step,
            )
    attempts.raise_first()


def _step_on_gpu(variable: EmbeddingVariable, part: GradientPart, skip: Tensor | None) -> ApplyStep:
    variable.internals.check_trainable()
    if skip is not None:
        skip = (skip != 0).reshape(1).long().to(part.ids.device, non_blocking=True)
    ids, keep_mask, numbers = part.ids.reshape(-1), part.keep_mask, None
    if part.bags is not None:
        keep_mask, numbers = part.bags.keep_mask(ids), part.bags.numbers(part.ids).reshape(-1)
    conditions = BatchConditions(
        None if keep_mask is None else keep_mask.long(),
        part.refusal,
        tuple(refusal.message(variable.name) for refusal in Refusal),
        skip,
    )
    return ApplyStep.of(variable, ids, part.grads.to(ids.device), conditions, numbers)


_making = threading.Lock()


def rows_of(variable: EmbeddingVariable) -> Rows:
    """Returns the variable's parameter, the same object at each call."""
    # It is an attribute of the variable. A WeakKeyDictionary would keep both alive for ever if a
    # hook of the parameter held the variable.
    attributes = vars(variable)
    rows: Rows | None = attributes.get("_torch_rows")
    if rows is None:
        with _making:
            rows = attributes.get("_torch_rows")
            if rows is None:
                rows = attributes["_torch_rows"] = Rows(variable)
    return rows
