"""Look-ups that autograd knows: what flows back through them gathers, or trains at once."""

from __future__ import annotations

import itertools
import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._compile import _disable_dynamo

from embstore.errors import InvalidArgumentError
from embstore.torch import replicas
from embstore.torch.rows import (
    GradientPart,
    Refusal,
    Rows,
    apply_all,
    joined,
    rows_lie_with,
    rows_of,
)
from embstore.torch.step_checks import trained_at_once
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["lookup"]


def lookup(
    variable: EmbeddingVariable,
    ids: Tensor,
    *,
    training: bool,
    padding_idx: int | None,
    refused: Tensor | None = None,
) -> Tensor:
    """The rows of int64 `ids`: ids.shape + (dim,), on the ids' device, in the dtype of `Rows`.

    padding_idx: an id that gets no gradient.
    refused: int64 (1,) on the ids' device: a Refusal for which no row is trained, or 0.
    """
    if torch.compiler.is_compiling():  # torch.compile breaks its graph here
        return _outside_of_graphs(variable, ids, training, padding_idx, refused)
    return _eager_lookup(variable, ids, training, padding_idx, refused)


def _eager_lookup(
    variable: EmbeddingVariable,
    ids: Tensor,
    training: bool,
    padding_idx: int | None,
    refused: Tensor | None,
) -> Tensor:
    rows = rows_of(variable)
    kept_ids = ids.detach() if rows_lie_with(variable, ids) else ids.detach().cpu()
    if training and rows.requires_grad and torch.is_grad_enabled():
        values: Tensor = _Lookup.apply(  # type: ignore[no-untyped-call]
            rows, kept_ids.clone(), padding_idx, refused, replicas.current(variable)
        )
    else:
        values = _read(variable, kept_ids, train=False)
    return values.to(ids.device, rows.dtype)


# As torch.compiler.disable, but without the seconds that it takes where nothing is compiled.
_outside_of_graphs = _disable_dynamo(_eager_lookup)


class _Lookup(torch.autograd.Function):
    """Rows of a variable, with a backward that hands their gradients to the pass."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Rows,
        ids: Tensor,
        padding_idx: int | None,
        refused: Tensor | None,
        group: replicas.Replicas | None,
    ) -> Tensor:
        ctx.rows, ctx.group, ctx.number = rows, group, next(_forward_numbers)
        ctx.ids, ctx.padding_idx, ctx.refused = ids, padding_idx, refused
        return _read(rows.variable, ids, train=True)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        rows: Rows = ctx.rows
        # The tensor itself, not a view: autograd may write into one that nobody else holds.
        _current_pass().add(
            rows, ctx.group, _Gathered(ctx.number, ctx.ids, grad, ctx.padding_idx, ctx.refused)
        )
        # Of the parameter itself, which has no rows. It says to whoever asks, such as
        # DistributedDataParallel, that the parameter had its turn.
        return torch.zeros_like(rows), None, None, None, None


class _Gathered(NamedTuple):
    """What flowed back through one look-up."""

    number: int
    ids: Tensor
    grad: Tensor
    padding_idx: int | None
    refused: Tensor | None


@dataclass(eq=False)
class _Pass:
    """What one backward pass has gathered."""

    parts: dict[Rows, list[_Gathered]] = field(default_factory=dict)
    groups: dict[Rows, replicas.Replicas] = field(default_factory=dict)

    def add(self, rows: Rows, group: replicas.Replicas | None, part: _Gathered) -> None:
        self.parts.setdefault(rows, []).append(part)
        if group is not None:
            self.groups[rows] = group

    def end(self) -> None:
        at_once: list[tuple[EmbeddingVariable, GradientPart]] = []
        # By name, so that replicas, which wait for each other, take them in one order.
        for rows in sorted(self.parts, key=lambda rows: rows.variable.name):
            group = self.groups.get(rows)
            part = joined([_part(rows, gathered, group) for gathered in self.parts[rows]])
            if group is not None and group.synchronizes:
                part = group.mean(joined([*rows.take_parts_of_this_replica(), part]))
            if rows.gathers:
                rows.add_part(part)
            elif part.of_all_replicas:
                at_once.append((rows.variable, _to_train_at_once(rows.variable, part)))
            else:
                raise InvalidArgumentError(
                    f"{rows.variable.name}: in no_sync() its replicas would be trained apart, "
                    "since a backward pass trains at once; make an embstore.torch.Optimizer, "
                    "which gathers"
                )
        for variable, _ in at_once:
            trained_at_once(variable)
        apply_all(at_once)


def _part(rows: Rows, gathered: _Gathered, group: replicas.Replicas | None) -> GradientPart:
    ids = gathered.ids.reshape(-1)
    part = GradientPart(
        gathered.number,
        ids,
        gathered.grad.detach().reshape(-1, rows.variable.dim).to(torch.float32),
        of_all_replicas=group is None,
        kept=None if gathered.padding_idx is None else ids != gathered.padding_idx,
        refused=gathered.refused,
    )
    # Replicas wait for each other's numbers of ids anyway.
    return part if group is None else part.settled(rows.variable.name)


def _to_train_at_once(variable: EmbeddingVariable, part: GradientPart) -> GradientPart:
    """The part, which is refused unless it is finite."""
    if not part.ids.is_cpu:
        return _refused_unless_finite(part)
    part = part.settled(variable.name)
    # A sum is finite only where its parts are, and fast; a finite one may still overflow.
    if not part.grads.sum().isfinite() and not part.grads.isfinite().all():
        raise InvalidArgumentError(Refusal.NOT_FINITE.message(variable.name))
    return part


def _refused_unless_finite(part: GradientPart) -> GradientPart:
    """The part, which a GPU finds out about."""
    unfit = ~part.grads.to(part.ids.device).isfinite().all(dim=1)
    if part.kept is not None:
        unfit = unfit & part.kept
    refused = unfit.any().reshape(1).long() * Refusal.NOT_FINITE.value
    if part.refused is not None:
        refused = torch.maximum(refused, part.refused)
    return replace(part, refused=refused)


# By autograd's number of the backward pass. Only the callback that ends a pass owns its entry, so
# a pass that fails, and never comes to its end, takes what it had gathered along.
_passes: weakref.WeakValueDictionary[int, _Pass] = weakref.WeakValueDictionary()
_passes_lock = threading.Lock()
_forward_numbers = itertools.count()


def _current_pass() -> _Pass:
    number = torch._C._current_graph_task_id()
    with _passes_lock:
        current = _passes.get(number)
        if current is None:
            current = _passes[number] = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(current.end)
    return current


def _read(variable: EmbeddingVariable, ids: Tensor, train: bool) -> Tensor:
    """On the device of the ids."""
    if not ids.is_cpu:
        found: Tensor = variable.lookup(ids, train=train)
        return found
    return torch.from_numpy(variable.lookup(ids.numpy(), train=train))
