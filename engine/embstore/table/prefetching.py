"""Prefetches the rows of a training loop's next batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from embstore.errors import InvalidArgumentError
from embstore.table import checks
from embstore.table.many import prefetch_many
from embstore.table.prefetched import MAX_BATCHES
from embstore.variable import EmbeddingVariable

__all__ = ["prefetching"]

_BatchT = TypeVar("_BatchT")

IdsOfBatch: TypeAlias = "Callable[[_BatchT], checks.Ids | Sequence[np.ndarray[Any, Any]]]"


def prefetching(
    batches: Iterable[_BatchT],
    ids_of: Mapping[EmbeddingVariable, IdsOfBatch[_BatchT]],
    *,
    depth: int = 1,
) -> Iterator[_BatchT]:
    """Yields the batches in order, and requests the rows of the next while one is trained.

        for ids, labels in es.prefetching(batches, {items: lambda batch: batch[0]}):
            rows = items.lookup(ids, train=True)
            ...
            items.apply_gradients(ids, grads)

    ids_of: for each variable a function of a batch that returns the ids that will be looked up for
        training. It returns a list or tuple with one array for each look-up if there are several,
        and an empty list if there is none.
    depth: number of batches, from 1 to 15, that are read and requested ahead.

    Look-ups return the same bits as without prefetching (`EmbeddingVariable.prefetch`). An error of
    `batches` or of ids_of is raised after all batches that were read before it. If the loop ends
    early, requests are given up; batches that were read ahead are not returned to `batches`.

    Raises InvalidArgumentError.
    """
    ahead = checks.integer("depth", depth, at_least=1, at_most=MAX_BATCHES - 1)
    try:
        ready = iter(batches)
    except TypeError:
        raise InvalidArgumentError(
            f"batches must be iterable, got {type(batches).__name__}"
        ) from None
    if not isinstance(ids_of, Mapping):
        raise InvalidArgumentError(
            f"ids_of must be a dict with a function for each variable, got {type(ids_of).__name__}"
        )
    for variable, ids in ids_of.items():
        if not isinstance(variable, EmbeddingVariable):
            raise InvalidArgumentError(
                f"ids_of must have embstore.EmbeddingVariables for keys, got {variable!r}"
            )
        if not callable(ids):
            raise InvalidArgumentError(
                f"ids_of[{variable.name}] must be a function of a batch, got {ids!r}"
            )
    return _prefetched(ready, dict(ids_of), ahead)


def _prefetched(
    batches: Iterator[_BatchT],
    ids_of: Mapping[EmbeddingVariable, IdsOfBatch[_BatchT]],
    depth: int,
) -> Iterator[_BatchT]:
    ready: deque[_BatchT] = deque()
    failed: Exception | None = None
    try:
        while failed is None:
            try:
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                prefetch_many(
                    [
                        (variable, look_ups)
                        for variable, ids in ids_of.items()
                        if (look_ups := _look_ups(ids(batch)))
                    ]
                )
            except Exception as error:
                failed = error
                break
            ready.append(batch)
            if len(ready) > depth:
                yield ready.popleft()
        while ready:
            yield ready.popleft()
        if failed is not None:
            raise failed
    except BaseException:
        for variable in ids_of:
            variable.internals.forget_prefetched()
        raise


def _look_ups(ids: Any) -> Sequence[Any]:
    """Returns the ids of each look-up of one batch and variable; an empty list if there is none."""
    if isinstance(ids, (list, tuple)) and all(getattr(each, "shape", ()) != () for each in ids):
        return ids
    return [ids]
