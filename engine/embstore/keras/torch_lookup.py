"""Look-ups that PyTorch's autograd knows."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import torch

from embstore.graph_breaks import outside_of_graphs
from embstore.keras.first_use import make_as_compiled
from embstore.keras.steps import Assigned, train_tables
from embstore.keras.table import Table, looked_up_together

if TYPE_CHECKING:
    from torch import Tensor

    from embstore.keras.rows import Rows

__all__ = ["lookup", "together", "train"]


@outside_of_graphs
def lookup(table: Table, rows: Rows, ids: Tensor, training: bool) -> Tensor:
    del training  # autograd knows
    if ids.is_meta:  # Keras asks for shapes alone, to build a model of a class of its own
        return torch.empty((*ids.shape, table.dim), device="meta")
    make_as_compiled([(table, rows)])
    kept_ids = ids.detach().cpu()
    parameter = rows.value
    if _trains(rows):
        table.check_stand_in(parameter.detach().cpu().numpy())
        if parameter.grad is None:
            table.forget()
        values: Tensor = _Lookup.apply(parameter, kept_ids.clone(), table)  # type: ignore[no-untyped-call]
    else:
        values = torch.from_numpy(table.lookup(kept_ids.numpy(), train=False))
    return values.to(ids.device)


def _trains(rows: Rows) -> bool:
    return bool(torch.is_grad_enabled() and rows.value.requires_grad)


def together(
    look_ups: Sequence[tuple[Table, Rows, Tensor]], training: bool
) -> contextlib.AbstractContextManager[Any]:
    """As `backend.together`."""
    del training
    if torch.compiler.is_compiling():
        return contextlib.nullcontext()
    make_as_compiled((table, rows) for table, rows, ids in look_ups if not ids.is_meta)
    with contextlib.ExitStack() as both:
        for trains in (False, True):
            of_these = [
                (table, ids.detach().cpu().numpy())
                for table, rows, ids in look_ups
                if _trains(rows) == trains and not ids.is_meta
            ]
            if of_these:
                both.enter_context(looked_up_together(of_these, train=trains))
        return both.pop_all()


def train(
    assigned: Sequence[Assigned], optimizer: Any, dense_grads: Sequence[Any]
) -> Sequence[Any]:
    """Trains the tables at once, and returns the dense gradients."""
    train_tables(
        [each.table for each in assigned],
        [keras.ops.convert_to_numpy(each.looked_up) for each in assigned],
        [float(each.loss_scale) for each in assigned],
        float(optimizer.learning_rate),
        optimizer,
    )
    return dense_grads


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ids: Tensor, table: Table) -> Tensor:
        ctx.ids, ctx.table, ctx.device = ids, table, parameter.device
        ctx.number = table.next_number()
        return torch.from_numpy(table.lookup(ids.numpy(), train=True))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        values = grad.detach().to("cpu", torch.float32).contiguous().numpy()
        # With the tensor itself: autograd may write into one that nobody else holds.
        mark = ctx.table.gather(ctx.number, ctx.ids.numpy(), values, owner=grad)
        return torch.from_numpy(mark).to(ctx.device), None, None
