"""Look-ups that PyTorch's autograd can differentiate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import torch

from embstore.graph_breaks import outside_of_graphs
from embstore.keras.first_use import make_with_model_optimizer
from embstore.keras.steps import AssignedGradient, train_tables
from embstore.keras.table import Floats, Table, look_up_many

if TYPE_CHECKING:
    from torch import Tensor

    from embstore.keras.rows import Rows

__all__ = ["lookup", "train"]


@outside_of_graphs
def lookup(look_ups: Sequence[tuple[Table, Rows, Tensor]], training: bool) -> list[Tensor]:
    del training  # autograd decides
    if any(ids.is_meta for _, _, ids in look_ups):
        # Keras asks only for shapes, to build a model of a user's class.
        return [torch.empty((*ids.shape, table.dim), device="meta") for table, _, ids in look_ups]
    make_with_model_optimizer((table, rows) for table, rows, _ in look_ups)
    trained = [torch.is_grad_enabled() and rows.value.requires_grad for _, rows, _ in look_ups]
    for (table, rows, _), is_trained in zip(look_ups, trained, strict=True):
        if is_trained:
            table.check_stand_in(rows.value.detach().cpu().numpy())
            if rows.value.grad is None:
                table.forget()
    keys = [ids.detach().cpu() for _, _, ids in look_ups]
    read: dict[int, Floats] = {}
    for train in (False, True):
        alike = [i for i, is_trained in enumerate(trained) if is_trained == train]
        of_tables = [(look_ups[i][0], keys[i].numpy()) for i in alike]
        read.update(zip(alike, look_up_many(of_tables, train=train), strict=True))
    found = []
    for i, (table, rows, ids) in enumerate(look_ups):
        values = torch.from_numpy(read[i])
        if trained[i]:
            values = _Lookup.apply(rows.value, keys[i].clone(), table, read[i])  # type: ignore[no-untyped-call]
        found.append(values.to(ids.device))
    return found


def train(
    assigned: Sequence[AssignedGradient], optimizer: Any, dense_grads: Sequence[Any]
) -> Sequence[Any]:
    """Trains the tables now, and returns the dense gradients."""
    train_tables(
        [each.table for each in assigned],
        [keras.ops.convert_to_numpy(each.mark_sum) for each in assigned],
        [float(each.loss_scale) for each in assigned],
        float(optimizer.learning_rate),
        optimizer,
    )
    return dense_grads


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ids: Tensor, table: Table, rows: Floats) -> Tensor:
        ctx.ids, ctx.table, ctx.device = ids, table, parameter.device
        ctx.number = table.next_number()
        return torch.from_numpy(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        values = grad.detach().to("cpu", torch.float32).contiguous().numpy()
        # Keeps the tensor too: autograd may write into a tensor without other references.
        mark = ctx.table.gather(ctx.number, ctx.ids.numpy(), values, owner=grad)
        return torch.from_numpy(mark).to(ctx.device), None, None, None
