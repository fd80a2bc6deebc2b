"""`torch.nn`'s embedding modules over a variable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from embstore import _checks
from embstore.errors import InvalidArgumentError
from embstore.torch.lookup import lookup
from embstore.torch.rows import Refusal, rows_lie_with, rows_of
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Embedding", "EmbeddingBag"]

_COMBINERS = ("sum", "mean", "sqrtn")


class _OfVariable(torch.nn.Module):
    """What both modules have: the variable, and its `Rows` as the only parameter."""

    def __init__(self, variable: EmbeddingVariable, padding_idx: int | None) -> None:
        super().__init__()
        if not isinstance(variable, EmbeddingVariable):
            raise InvalidArgumentError(
                "variable must be an embstore.EmbeddingVariable (see get_embedding_variable), "
                f"got {type(variable).__name__}"
            )
        if padding_idx is not None:
            padding_idx = _checks.integer("padding_idx", padding_idx, at_least=-(2**63))
        self.variable = variable
        self.padding_idx = padding_idx
        self.rows = rows_of(variable)

    def _lookup(self, ids: Tensor, refused: Tensor | None = None) -> Tensor:
        return lookup(
            self.variable,
            ids,
            training=self.training,
            padding_idx=self.padding_idx,
            refused=refused,
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Nothing: rows are saved by `embstore.save`."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        _local_metadata: Any,
        strict: bool,
        _missing_keys: list[str],
        unexpected_keys: list[str],
        _error_msgs: list[str],
    ) -> None:
        if strict:
            unexpected_keys.extend(key for key in state_dict if key.startswith(prefix))

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.variable!r}{padding}"


class Embedding(_OfVariable):
    """`torch.nn.Embedding` over a variable: ids of any shape -> ids.shape + (dim,).

    padding_idx: an id whose row reads as it is and gets no gradient; any id, a negative one too,
        is itself.
    """

    def __init__(self, variable: EmbeddingVariable, padding_idx: int | None = None) -> None:
        super().__init__(variable, padding_idx)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: int64 or int32."""
        return self._lookup(_as_ids("ids", ids))


class EmbeddingBag(_OfVariable):
    """Rows combined by bag, as `torch.nn.EmbeddingBag` takes them; an empty bag gives zeros.

    combiner: "sum"; "mean", the sum over the bag's number of ids; or "sqrtn", the sum over that
        number's square root, as TensorFlow has it.
    padding_idx: an id that is left out of its bag, of the number of ids too.
    """

    def __init__(
        self,
        variable: EmbeddingVariable,
        combiner: str = "mean",
        padding_idx: int | None = None,
    ) -> None:
        super().__init__(variable, padding_idx)
        if combiner not in _COMBINERS:
            raise InvalidArgumentError(f"combiner must be one of {_COMBINERS}, got {combiner!r}")
        self.combiner = combiner

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        """Gives (bags, dim).

        ids: int64 or int32 (bags, length); or (n,) with `offsets`, int64 or int32 (bags,): where
            each bag starts. Of wrong offsets with ids on the GPU that has the rows, all bags are
            nan and no row is trained; what the variable is asked for after the update raises why.
        """
        ids = _as_ids("ids", ids)
        if ids.dim() == 2:
            if offsets is not None:
                raise InvalidArgumentError(
                    "offsets must be None where ids are 2-D: every row is a bag"
                )
            rows, counted = self._rows_of_bags(ids)
            return self._scale(rows.sum(dim=1), counted.sum(dim=1))
        if ids.dim() != 1:
            raise InvalidArgumentError(f"ids must be 1-D or 2-D, got {ids.dim()}-D")
        offsets = _as_offsets(ids, offsets)
        refused = _refused(ids, offsets)
        if refused is not None and not (
            offsets.device == ids.device and rows_lie_with(self.variable, ids)
        ):
            if int(refused) != 0:
                raise InvalidArgumentError(
                    f"offsets must start at 0 and ascend to at most {len(ids)}, the number of ids"
                )
            refused = None
        rows, counted = self._rows_of_bags(ids, refused)
        bags = _bags(ids, offsets)
        sums = rows.new_zeros(len(offsets), self.variable.dim).index_add(0, bags, rows)
        if refused is not None:
            sums = sums.masked_fill(refused != 0, torch.nan)
        return self._scale(sums, torch.zeros_like(offsets).index_add(0, bags, counted))

    def _rows_of_bags(self, ids: Tensor, refused: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The rows, zeros for padding; and for each id a 1, or a 0 where it is padding."""
        rows = self._lookup(ids, refused)
        if self.padding_idx is None:
            return rows, torch.ones_like(ids)
        padding = ids == self.padding_idx
        return rows.masked_fill(padding.unsqueeze(-1), 0), (~padding).long()

    def _scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        if self.combiner == "sum":
            return sums
        divisor = lengths.unsqueeze(1).clamp(min=1).to(sums.dtype)
        return sums / (divisor.sqrt() if self.combiner == "sqrtn" else divisor)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, combiner={self.combiner!r}"


def _as_ids(name: str, ids: object) -> Tensor:
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        got = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise InvalidArgumentError(
            f"{name} must be an int64 or int32 tensor, got {got}; convert with {name}.long()"
        )
    if ids.layout != torch.strided or ids.is_nested:
        kind = "nested" if ids.is_nested else str(ids.layout).removeprefix("torch.")
        raise InvalidArgumentError(
            f"{name} must be a dense tensor, got a {kind} one; bags of various lengths are one "
            "dense tensor of ids and the offsets at which they start: EmbeddingBag takes both"
        )
    return ids.long()


def _as_offsets(ids: Tensor, offsets: Tensor | None) -> Tensor:
    if offsets is None:
        raise InvalidArgumentError(
            "offsets must say where each bag starts where ids are 1-D, got None"
        )
    offsets = _as_ids("offsets", offsets)
    if offsets.dim() != 1:
        raise InvalidArgumentError(f"offsets must be 1-D, got {offsets.dim()}-D")
    if len(offsets) == 0 and len(ids) > 0:
        raise InvalidArgumentError(f"offsets is empty, but there are {len(ids)} ids")
    return offsets


def _refused(ids: Tensor, offsets: Tensor) -> Tensor | None:
    """Returns int64 (1,): whether bags can't start there, as a Refusal or 0. None: no bags."""
    if len(offsets) == 0:
        return None
    ends = torch.cat((offsets[1:], offsets.new_full((1,), len(ids))))
    wrong = (ends < offsets).any() | (offsets[:1] != 0)
    return wrong.long() * Refusal.OFFSETS.value


def _bags(ids: Tensor, offsets: Tensor) -> Tensor:
    """Returns the number of each id's bag, of any offsets one that there is."""
    positions = torch.arange(len(ids), device=ids.device)
    return (torch.searchsorted(offsets.contiguous(), positions, right=True) - 1).clamp(min=0)
