"""Bags of several features, with TorchRec's names: one look-up and one update for all tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch

from embstore.errors import InvalidArgumentError
from embstore.torch.lookup import Request, lookup
from embstore.torch.modules import EmbeddingBag, as_ids, check_runs, check_weights

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EmbeddingBagCollection", "KeyedJaggedTensor", "KeyedTensor"]

_MAX_ARGUMENTS = 3  # EmbeddingBag.forward takes three

BagsOfFeature: TypeAlias = "Tensor | tuple[Any, ...]"


class JaggedProtocol(Protocol):
    """The methods that TorchRec's KeyedJaggedTensor and this module's share."""

    def keys(self) -> Sequence[str]: ...
    def values(self) -> Tensor: ...
    def lengths(self) -> Tensor: ...
    def offset_per_key(self) -> Sequence[int]: ...
    def weights_or_none(self) -> Tensor | None: ...


class KeyedJaggedTensor:
    """Bags of several features in two tensors, as TorchRec's class of this name has them.

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
        self._offset_per_key = list(accumulate(counts, initial=0))
        if weights is not None:
            check_weights("weights", weights, self._values.shape, "values")
        self._weights = weights

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def lengths(self) -> Tensor:
        return self._lengths

    def offset_per_key(self) -> list[int]:
        """Returns where each feature begins in `values()`, then where the last feature ends."""
        return self._offset_per_key

    def weights_or_none(self) -> Tensor | None:
        return self._weights


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


class EmbeddingBagCollection(torch.nn.Module):
    """`EmbeddingBag`s of several features. All tables in a GPU's memory are looked up by one step
    on the GPU and trained by another; all other tables by one call each.

    bags: each feature's name and module. Several features may share a module, and several modules
        may share a variable.
    """

    def __init__(self, bags: Mapping[str, EmbeddingBag]) -> None:
        super().__init__()
        if not isinstance(bags, Mapping):
            raise InvalidArgumentError(
                "bags must be a dict with an embstore.torch.EmbeddingBag for each feature's name, "
                f"got {type(bags).__name__}"
            )
        if not bags:
            raise InvalidArgumentError("bags must have an embstore.torch.EmbeddingBag, got none")
        for name, bag in bags.items():
            if not isinstance(bag, EmbeddingBag):
                raise InvalidArgumentError(
                    f"bags[{name!r}] must be an embstore.torch.EmbeddingBag, got "
                    f"{type(bag).__name__}"
                )
        self.features = list(bags)
        self.bags = torch.nn.ModuleList(bags.values())

    def forward(self, features: Mapping[str, BagsOfFeature] | JaggedProtocol) -> KeyedTensor:
        """Returns the bags of all features, in the collection's order.

        features: a dict that has the arguments of `EmbeddingBag` by the features' names: ids
            (bags, length), or a tuple of ids (n,), offsets (bags,) and possibly per_sample_weights
            (n,). Or a `KeyedJaggedTensor`, TorchRec's or this module's. All features must have the
            same number of bags. Features that the collection doesn't have are ignored.
        """
        if isinstance(features, Mapping):
            by_feature = features
        elif hasattr(features, "offset_per_key"):
            by_feature = self._split_by_feature(features)
        else:
            raise InvalidArgumentError(
                "features must be a dict with the ids of each feature's name, or a "
                f"KeyedJaggedTensor, got {type(features).__name__}"
            )
        requests: list[Request] = []
        modules = self._modules_of_features()
        check_runs(modules[0][1])
        for name, module in modules:
            if name not in by_feature:
                raise InvalidArgumentError(f"features has no {name!r}, which the collection has")
            bags = by_feature[name]
            arguments = bags if isinstance(bags, tuple) else (bags,)
            if not 1 <= len(arguments) <= _MAX_ARGUMENTS:
                raise InvalidArgumentError(
                    f"features[{name!r}] must be ids, or a tuple of ids, offsets and "
                    f"per_sample_weights, got a tuple of {len(arguments)}"
                )
            try:
                requests.append(module.request(*arguments))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"features[{name!r}]: {error}") from error
            first, newest = requests[0].result_count, requests[-1].result_count
            if newest != first:
                raise InvalidArgumentError(
                    f"features must have as many bags each: {self.features[0]!r} has {first}, "
                    f"{name!r} has {newest}"
                )
        return KeyedTensor(dict(zip(self.features, lookup(requests), strict=True)))

    def _modules_of_features(self) -> list[tuple[str, EmbeddingBag]]:
        return [
            (name, module)
            for name, module in zip(self.features, self.bags, strict=True)
            if isinstance(module, EmbeddingBag)
        ]

    def _split_by_feature(self, features: JaggedProtocol) -> dict[str, BagsOfFeature]:
        """Returns each feature's ids, offsets and weights, as the feature's module takes them."""
        keys, values, weights = features.keys(), features.values(), features.weights_or_none()
        _check_distinct(keys)
        lengths = as_ids("lengths", features.lengths()).view(len(keys), -1)
        offsets = torch.nn.functional.pad(lengths.cumsum(dim=1), (1, 0))
        bounds = pairwise(features.offset_per_key())
        with_end = {
            name for name, module in self._modules_of_features() if module.include_last_offset
        }
        return {
            key: (
                values[begin:end],
                feature_offsets if key in with_end else feature_offsets[:-1],
                None if weights is None else weights[begin:end],
            )
            for key, feature_offsets, (begin, end) in zip(keys, offsets, bounds, strict=True)
        }

    def extra_repr(self) -> str:
        return f"features={self.features}"


def _checked_keys(keys: object) -> list[str]:
    names = list(keys) if isinstance(keys, Iterable) and not isinstance(keys, str) else []
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"keys must be a list of features' names, got {keys!r}")
    _check_distinct(names)
    return names


def _checked_lengths(length_per_key: Iterable[int]) -> list[int]:
    try:
        return [index(length) for length in length_per_key]
    except TypeError:
        raise InvalidArgumentError(
            f"length_per_key must be a list with an integer for each key, got {length_per_key!r}"
        ) from None


def _check_distinct(keys: Sequence[str]) -> None:
    if len(set(keys)) != len(keys):
        again = next(key for key, times in Counter(keys).items() if times > 1)
        raise InvalidArgumentError(
            f"keys must differ, got {again!r} more than once; give each feature its own name"
        )
