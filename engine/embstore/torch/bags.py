"""Bags: groups of ids whose rows are combined into one, and the gradients of these rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from embstore.table.many import BagsOfIds

__all__ = ["MODES", "Bags"]

MODES = ("sum", "mean", "sqrtn")


class Bags(NamedTuple):
    """How the rows of a look-up's ids are combined.

    mode: one of MODES.
    offsets: int64 (bags,), where each bag begins: ascending, from 0 to at most the number of ids.
        None: the ids have the shape (bags, length), and each row of ids is a bag.
    weights: floats, one for each id, by which the rows are multiplied.
    padding_idx: an id that is left out of its bag.
    refusal: int64 (1,) on the device of `offsets`. If it is not 0, all bags are nan.
    """

    mode: str
    offsets: Tensor | None = None
    weights: Tensor | None = None
    padding_idx: int | None = None
    refusal: Tensor | None = None

    def on_device_of(self, ids: Tensor) -> Bags:
        """Returns the same bags with offsets on the device of the ids."""
        if self.offsets is None or self.offsets.device == ids.device:
            return self
        return self._replace(offsets=self.offsets.to(ids.device))

    def with_own_offsets(self) -> Bags:
        """Returns the same bags with a copy of the offsets, which the caller may overwrite before
        the backward pass.
        """
        return self if self.offsets is None else self._replace(offsets=self.offsets.clone())

    def are_single_ids(self, ids: Tensor) -> bool:
        """Returns whether each bag is one id of a (bags, 1) tensor."""
        return self.offsets is None and ids.shape[1] == 1

    def bag_offsets(self, ids: Tensor) -> Tensor:
        """Returns where each bag begins among the ids, int64 (bags,)."""
        if self.offsets is not None:
            return self.offsets
        return torch.arange(ids.shape[0], device=ids.device) * ids.shape[1]

    def for_core(self, ids: Tensor) -> BagsOfIds:
        """Returns the bags of ids on the CPU as `embstore.table.many` takes them."""
        return self.bag_offsets(ids).numpy(), self.padding_idx

    def numbers(self, ids: Tensor) -> Tensor:
        """Returns the number of each id's bag, int64 of the ids' shape."""
        if self.offsets is None:
            return torch.arange(ids.shape[0], device=ids.device).unsqueeze(1).expand(ids.shape)
        return torch.repeat_interleave(self._lengths(ids), output_size=ids.shape[0])

    def keep_mask(self, ids: Tensor) -> Tensor | None:
        """Returns which ids aren't padding, bool of the ids' shape; None without a padding_idx."""
        return None if self.padding_idx is None else ids != self.padding_idx

    def combine(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Combines rows of shape ids.shape + (dim,) into bags of shape (bags, dim)."""
        if self.weights is not None:
            rows = rows * self.weights.unsqueeze(-1)
        if self.padding_idx is not None:
            rows = rows.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0)
        if rows.requires_grad:
            sums: Tensor = _SumRows.apply(self.with_own_offsets(), ids, rows)  # type: ignore[no-untyped-call]
        else:
            sums = self._sum(rows)
        return self.divide(ids, sums)

    def spread_to_ids(self, ids: Tensor, sum_grads: Tensor) -> Tensor:
        """Returns the gradients of the rows, ids.shape + (dim,), from those of the bags' sums,
        (bags, dim). The gradient of a padding id is undefined.
        """
        if self.offsets is None:  # a copy, since autograd may write into sum_grads later
            id_grads = sum_grads.unsqueeze(1).expand(-1, ids.shape[1], -1)
            return id_grads.clone(memory_format=torch.contiguous_format)
        # The gradient of sum() is one number with strides of 0, from which index_select takes ten
        # times as long.
        return sum_grads.contiguous().index_select(0, self.numbers(ids))

    def divide(self, ids: Tensor, sums: Tensor) -> Tensor:
        """Divides sums (bags, dim) as the mode says: the sums of rows to get the bags, or the bags'
        gradients to get those of the sums.
        """
        return sums if self.mode == "sum" else sums / self._divisors(ids, sums.dtype)

    def _sum(self, rows: Tensor) -> Tensor:
        if self.offsets is None:
            return rows.squeeze(1) if rows.shape[1] == 1 else rows.sum(dim=1)
        # embedding_bag adds the rows of a bag in their order, on a GPU too.
        positions = torch.arange(rows.shape[0], device=rows.device)
        sums = torch.embedding_bag(rows, positions, self.offsets)[0]
        return sums if self.refusal is None else sums.masked_fill(self.refusal != 0, torch.nan)

    def _lengths(self, ids: Tensor) -> Tensor:
        if self.offsets is None:
            return ids.new_full(ids.shape[:1], ids.shape[1])
        return self.offsets.diff(append=self.offsets.new_full((1,), ids.shape[0]))

    def _divisors(self, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns what the sum of each bag is divided by, (bags, 1)."""
        counted = self._lengths(ids)
        if self.padding_idx is not None:
            padding = (ids == self.padding_idx).long()
            if self.offsets is None:
                counted = counted - padding.sum(dim=1)
            else:
                counted = counted.index_add(0, self.numbers(ids), padding, alpha=-1)
        divisors = counted.unsqueeze(1).clamp(min=1).to(dtype)
        return divisors if self.mode == "mean" else divisors.sqrt()


class _SumRows(torch.autograd.Function):
    """Sums rows that have gradients. embedding_bag's own backward takes twice the time."""

    @staticmethod
    def forward(ctx: Any, bags: Bags, ids: Tensor, rows: Tensor) -> Tensor:
        ctx.bags, ctx.ids = bags, ids
        return bags._sum(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.bags.spread_to_ids(ctx.ids, grad)
