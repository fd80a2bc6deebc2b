"""Jagged tensors: sequences of various lengths in one tensor, with TorchRec's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING

import torch

from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.torch.modules import as_ids, as_offsets, check_offsets, check_weights

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

__all__ = ["JaggedTensor", "KeyedJaggedTensor", "KeyedTensor", "check_distinct"]


class JaggedTensor:
    """Sequences of various lengths in one tensor, as TorchRec's class of this name has them.

    values: (n, ...), the items of all sequences, one sequence after another: ids or rows.
    weights: floats (n,), one for each item.
    lengths: int64 or int32 (sequences,), the number of items in each. None: computed from
        `offsets`.
    offsets: int64 or int32 (sequences + 1,), where each sequence begins, then where the last ends.
    """

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> None:
        if lengths is None and offsets is None:
            raise InvalidArgumentError("lengths or offsets must be given, got None for both")
        self._values, self._weights = values, weights
        self._lengths = None if lengths is None else as_ids("lengths", lengths)
        self._offsets = None if offsets is None else as_offsets(offsets, ends_with_last=True)

    def values(self) -> Tensor:
        return self._values

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def lengths(self) -> Tensor:
        if self._lengths is None:
            assert self._offsets is not None
            self._lengths = self._offsets.diff()
        return self._lengths

    def offsets(self) -> Tensor:
        if self._offsets is None:
            self._offsets = _offsets_of(self.lengths())
        return self._offsets

    def to_dense(self) -> list[Tensor]:
        """Returns the items of each sequence. The host waits for a GPU."""
        return list(torch.split(self._values, self.lengths().tolist()))

    def to_padded_dense(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor:
        """Returns the items of each sequence, (sequences, desired_length, ...). Shorter sequences
        end with `padding_value`; longer ones lose their last items.

        desired_length: None: the length of the longest sequence; the host waits for a GPU.
        """
        values, offsets = self._values, self.offsets()
        sequences = len(offsets) - 1
        if desired_length is None:
            desired_length = int(self.lengths().max()) if sequences else 0
        length = checks.integer("desired_length", desired_length, at_least=0)
        # Each item is copied to its place, which has a faster gradient than places that look their
        # item up. Items that are cut off go to one more place at the end.
        item = torch.arange(len(values), device=values.device)
        sequence = torch.searchsorted(offsets[1:], item, right=True)
        column = item - offsets[sequence]
        is_cut = (column >= length) | (column < 0) | (sequence >= sequences)  # < 0: wrong offsets
        place = (sequence * length + column).masked_fill(is_cut, sequences * length)
        places = values.new_full((sequences * length + 1, *values.shape[1:]), padding_value)
        places.index_copy_(0, place, values)
        return places[:-1].view(sequences, length, *values.shape[1:])


class KeyedJaggedTensor:
    """Bags or sequences of ids of several features in two tensors, as TorchRec's class of this name
    has them.

    keys: the features' names.
    values: int64 or int32 (n,), the ids of all bags, feature by feature.
    lengths: int64 or int32 (features * bags,), the number of ids in each bag, in the same order.
    length_per_key: the number of ids of each feature. None: computed from `lengths`; the host waits
        for the GPU if they are there.
    weights: floats (n,) by which the ids' rows are multiplied, for bags of mode "sum".
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: Tensor,
        lengths: Tensor,
        length_per_key: Sequence[int] | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self._keys = _checked_keys(keys)
        self._values = as_ids("values", values)
        self._lengths = as_ids("lengths", lengths)
        for name, tensor in (("values", self._values), ("lengths", self._lengths)):
            if tensor.dim() != 1:
                raise InvalidArgumentError(f"{name} must be 1-D, got {tensor.dim()}-D")
        features = len(self._keys)
        if len(self._lengths) % features != 0:
            raise InvalidArgumentError(
                f"lengths must have one for each bag of each of {features} keys, got "
                f"{len(self._lengths)}"
            )
        counts = None if length_per_key is None else _checked_lengths(length_per_key)
        # With length_per_key, lengths on a GPU aren't checked: the host would have to wait.
        if counts is None or self._lengths.is_cpu:
            if (self._lengths < 0).any():  # its bag would take other bags' ids
                raise InvalidArgumentError(
                    f"lengths must be at least 0, got {int(self._lengths.min())}"
                )
            summed = self._lengths.view(features, -1).sum(dim=1).tolist()
            counts = summed if counts is None else counts
        else:
            summed = counts
        if counts != summed or len(counts) != features or sum(counts) != len(self._values):
            raise InvalidArgumentError(
                f"length_per_key must be how many of {len(self._values)} ids each of {features} "
                f"keys has, got {counts}"
            )
        self._length_per_key = counts
        if weights is not None:
            check_weights("weights", weights, self._values.shape, "values")
        self._weights = weights

    @classmethod
    def from_lengths_sync(
        cls, keys: Sequence[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None
    ) -> Self:
        """Returns the tensor of these arguments, which have TorchRec's order."""
        return cls(keys, values, lengths, weights=weights)

    @classmethod
    def from_offsets_sync(
        cls, keys: Sequence[str], values: Tensor, offsets: Tensor, weights: Tensor | None = None
    ) -> Self:
        """Returns the tensor whose bags begin at offsets (features * bags + 1,), of which the last
        is the number of ids.
        """
        offsets = as_offsets(offsets, ends_with_last=True)
        if offsets.is_cpu:
            check_offsets(offsets, len(values), ends_with_last=True)
        return cls(keys, values, offsets.diff(), weights=weights)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Returns the same bags on another device, where the numbers of ids need no wait."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        weights = None if self._weights is None else moved(self._weights)
        values, lengths = moved(self._values), moved(self._lengths)
        return type(self)(self._keys, values, lengths, self._length_per_key, weights)

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def lengths(self) -> Tensor:
        return self._lengths

    def length_per_key(self) -> list[int]:
        """Returns the number of ids of each feature."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Returns where each feature begins in `values()`, then where the last feature ends."""
        return list(accumulate(self._length_per_key, initial=0))

    def stride(self) -> int:
        """Returns the number of bags of each feature."""
        return len(self._lengths) // len(self._keys)

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def __getitem__(self, key: str) -> JaggedTensor:
        return self.to_dict()[key]

    def to_dict(self) -> dict[str, JaggedTensor]:
        """Returns each feature's bags."""
        counts, weights = self._length_per_key, self._weights
        parts = zip(
            self._keys,
            torch.split(self._values, counts),
            [None] * len(counts) if weights is None else torch.split(weights, counts),
            _offsets_of(self._lengths.view(len(self._keys), -1)),
            strict=True,
        )
        return {
            key: JaggedTensor(values, of_key, offsets=offsets)
            for key, values, of_key, offsets in parts
        }


class KeyedTensor:
    """The bags of several features, side by side, as TorchRec's class of this name has them."""

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        self._rows = dict(rows)
        self._values: Tensor | None = None

    def keys(self) -> list[str]:
        return list(self._rows)

    def values(self) -> Tensor:
        """Returns all features' bags, of shape (bags, the sum of all dims)."""
        if self._values is None:
            self._values = torch.cat(list(self._rows.values()), dim=1)
        return self._values

    def length_per_key(self) -> list[int]:
        """Returns the dim of each feature."""
        return [rows.shape[1] for rows in self._rows.values()]

    def offset_per_key(self) -> list[int]:
        return list(accumulate(self.length_per_key(), initial=0))

    def __getitem__(self, key: str) -> Tensor:
        """Returns one feature's bags, of shape (bags, dim)."""
        return self._rows[key]

    def to_dict(self) -> dict[str, Tensor]:
        return dict(self._rows)


def _checked_keys(keys: object) -> list[str]:
    names = list(keys) if isinstance(keys, Iterable) and not isinstance(keys, str) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"keys must be a list of features' names, got {keys!r}")
    check_distinct(names)
    return names


def _checked_lengths(length_per_key: Iterable[int]) -> list[int]:
    try:
        return [index(length) for length in length_per_key]
    except TypeError:
        raise InvalidArgumentError(
            f"length_per_key must be a list with an integer for each key, got {length_per_key!r}"
        ) from None


def check_distinct(keys: Collection[str]) -> None:
    """Raises InvalidArgumentError if a feature's name comes twice."""
    if len(set(keys)) != len(keys):
        again = next(key for key, times in Counter(keys).items() if times > 1)
        raise InvalidArgumentError(
            f"keys must differ, got {again!r} more than once; give each feature its own name"
        )


def _offsets_of(lengths: Tensor) -> Tensor:
    """Returns where each bag begins, and where the last ends, from lengths (..., bags)."""
    return torch.nn.functional.pad(lengths.cumsum(dim=-1), (1, 0))
