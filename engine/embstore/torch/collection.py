"""Bags and sequences of several features, with TorchRec's names: one look-up and one update for all
tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

import torch

from embstore.errors import InvalidArgumentError
from embstore.graph_breaks import outside_of_graphs
from embstore.torch.jagged import JaggedTensor, KeyedTensor, check_distinct
from embstore.torch.lookup import Request, lookup
from embstore.torch.modules import (
    Embedding,
    EmbeddingBag,
    as_ids,
    as_offsets,
    check_offsets,
    check_runs,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["EmbeddingBagCollection", "EmbeddingCollection"]


class JaggedProtocol(Protocol):
    """The methods of TorchRec's JaggedTensor and of `JaggedTensor` that a collection calls."""

    def values(self) -> Tensor: ...
    def weights_or_none(self) -> Tensor | None: ...
    def lengths(self) -> Tensor: ...
    def offsets(self) -> Tensor: ...


class KeyedJaggedProtocol(Protocol):
    """The methods of TorchRec's KeyedJaggedTensor and of `KeyedJaggedTensor` that a collection
    calls.
    """

    def keys(self) -> Sequence[str]: ...
    def to_dict(self) -> Mapping[str, JaggedProtocol]: ...


IdsOfFeature: TypeAlias = "Tensor | tuple[Any, ...] | JaggedProtocol"
Features: TypeAlias = "Mapping[str, IdsOfFeature] | KeyedJaggedProtocol"


class _Collection(torch.nn.Module):
    """Modules of several features. All tables in a GPU's memory are looked up by one step on the
    GPU and trained by another; all other tables by one call each.
    """

    # The argument of __init__, which is an attribute as well, and the class of its modules.
    _argument: ClassVar[str]
    _module: ClassVar[type[Embedding | EmbeddingBag]]
    _items: ClassVar[tuple[str, ...]]  # of the tuple by which a dict may give a feature's ids

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        super().__init__()
        argument, wanted = self._argument, f"an embstore.torch.{self._module.__name__}"
        if not isinstance(modules, Mapping):
            raise InvalidArgumentError(
                f"{argument} must be a dict with {wanted} for each feature's name, got "
                f"{type(modules).__name__}"
            )
        if not modules:
            raise InvalidArgumentError(f"{argument} must have {wanted}, got none")
        for name, module in modules.items():
            if not isinstance(module, self._module):
                raise InvalidArgumentError(
                    f"{argument}[{name!r}] must be {wanted}, got {type(module).__name__}"
                )
        self.features = list(modules)
        self.add_module(argument, torch.nn.ModuleList(modules.values()))

    @property
    def serves(self) -> bool:
        """Whether all modules serve in eval mode (see `Embedding`). A set value is that of all."""
        return all(module.serves for module in self._own_modules())

    @serves.setter
    def serves(self, serves: bool) -> None:
        for module in self._own_modules():
            module.serves = serves

    def _own_modules(self) -> Any:
        return getattr(self, self._argument)

    def _ask(self, module: Any, *ids: Any) -> Any:
        """Checks one feature's ids. Returns what `forward` needs to look them up."""
        raise NotImplementedError

    def _ask_jagged(self, module: Any, ids: JaggedProtocol) -> Any:
        """Returns what `_ask` returns, for ids in a `JaggedTensor`."""
        raise NotImplementedError

    def _ask_each(self, features: Features) -> dict[str, Any]:
        """Returns what `_ask` returns for each feature of the collection, in its order."""
        if hasattr(features, "to_dict"):
            check_distinct(features.keys())
            features = features.to_dict()
        if not isinstance(features, Mapping):
            raise InvalidArgumentError(
                "features must be a dict with the ids of each feature's name, or a "
                f"KeyedJaggedTensor, got {type(features).__name__}"
            )
        modules = self._own_modules()
        check_runs(modules[0])
        asked = {}
        for name, module in zip(self.features, modules, strict=True):
            if name not in features:
                raise InvalidArgumentError(f"features has no {name!r}, which the collection has")
            ids: Any = features[name]
            items = ids if isinstance(ids, tuple) else (ids,)
            if not 1 <= len(items) <= len(self._items):
                raise InvalidArgumentError(
                    f"features[{name!r}] must be ids, or a tuple of "
                    f"{', '.join(self._items[:-1])} and {self._items[-1]}, got a tuple of "
                    f"{len(items)}"
                )
            try:
                if hasattr(ids, "weights_or_none"):
                    asked[name] = self._ask_jagged(module, ids)
                else:
                    asked[name] = self._ask(module, *items)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"features[{name!r}]: {error}") from error
        return asked

    def extra_repr(self) -> str:
        return f"features={self.features}"


class EmbeddingBagCollection(_Collection):
    """`EmbeddingBag`s of several features. All tables in a GPU's memory are looked up by one step
    on the GPU and trained by another; all other tables by one call each.

    bags: each feature's name and module. Several features may share a module, and several modules
        may share a variable.
    """

    _argument, _module = "bags", EmbeddingBag
    _items = ("ids", "offsets", "per_sample_weights")

    def __init__(self, bags: Mapping[str, EmbeddingBag]) -> None:
        super().__init__(bags)

    @outside_of_graphs  # the arguments' checks too: each would break the graph for each feature
    def forward(self, features: Features) -> KeyedTensor:
        """Returns the bags of all features, in the collection's order.

        features: a dict that has the arguments of `EmbeddingBag` by the features' names: ids
            (bags, length), or a tuple of ids (n,), offsets (bags,) and possibly per_sample_weights
            (n,), or a `JaggedTensor`. Or a `KeyedJaggedTensor`. Both may be TorchRec's or this
            package's. All features must have the same number of bags. Features that the collection
            doesn't have are ignored.
        """
        requests: dict[str, Request] = self._ask_each(features)
        counts = {name: request.result_count for name, request in requests.items()}
        first = self.features[0]
        for name, count in counts.items():
            if count != counts[first]:
                raise InvalidArgumentError(
                    f"features must have as many bags each: {first!r} has {counts[first]}, "
                    f"{name!r} has {count}"
                )
        return KeyedTensor(dict(zip(requests, lookup(list(requests.values())), strict=True)))

    def _ask(self, module: EmbeddingBag, *ids: Any) -> Request:
        return module.request(*ids)

    def _ask_jagged(self, module: EmbeddingBag, ids: JaggedProtocol) -> Request:
        offsets = ids.offsets() if module.include_last_offset else ids.offsets()[:-1]
        return module.request(ids.values(), offsets, ids.weights_or_none())


class EmbeddingCollection(_Collection):
    """`Embedding`s of several features, for sequences. All tables in a GPU's memory are looked up
    by one step on the GPU and trained by another; all other tables by one call each.

    embeddings: each feature's name and module. Several features may share a module, and several
        modules may share a variable.
    """

    _argument, _module = "embeddings", Embedding
    _items = ("ids", "offsets")

    def __init__(self, embeddings: Mapping[str, Embedding]) -> None:
        super().__init__(embeddings)

    @outside_of_graphs  # the arguments' checks too: each would break the graph for each feature
    def forward(self, features: Features) -> dict[str, JaggedTensor]:
        """Returns the rows of each feature's ids, in the collection's order.

        features: a dict that has by the features' names: ids (sequences, length); ids (n,), of
            which each is a sequence; a tuple of ids (n,) and offsets (sequences,), where each
            sequence begins; or a `JaggedTensor`. Or a `KeyedJaggedTensor`. Both may be TorchRec's
            or this package's; their weights are ignored, and their lengths are not checked on a
            GPU. Features that the collection doesn't have are ignored.
        """
        asked: dict[str, tuple[Request, Tensor]] = self._ask_each(features)
        found = lookup([request for request, _ in asked.values()])
        return {
            name: JaggedTensor(rows, offsets=offsets)
            for (name, (_, offsets)), rows in zip(asked.items(), found, strict=True)
        }

    def _ask(
        self, module: Embedding, ids: object, begins: Tensor | None = None
    ) -> tuple[Request, Tensor]:
        """Returns the look-up of the ids, and the offsets of the result's `JaggedTensor`."""
        ids = as_ids("ids", ids)
        if begins is not None:
            offsets = torch.nn.functional.pad(as_offsets(begins), (0, 1), value=len(ids))
            return self._ask_jagged(module, JaggedTensor(ids, offsets=offsets))
        if ids.dim() not in (1, 2):
            raise InvalidArgumentError(f"ids must be 1-D or 2-D, got {ids.dim()}-D")
        lengths = ids.new_full((len(ids),), ids.shape[1] if ids.dim() == 2 else 1)
        return self._ask_jagged(module, JaggedTensor(ids.reshape(-1), lengths=lengths))

    def _ask_jagged(self, module: Embedding, ids: JaggedProtocol) -> tuple[Request, Tensor]:
        request = module.request(ids.values())
        offsets = as_offsets(ids.offsets(), ends_with_last=True)  # TorchRec's may be int32
        if request.ids.dim() != 1:
            raise InvalidArgumentError(f"ids must be 1-D, got {request.ids.dim()}-D")
        if offsets.is_cpu:  # the host would have to wait for a GPU
            check_offsets(offsets, len(request.ids), ends_with_last=True)
        return request, offsets.to(request.ids.device)
