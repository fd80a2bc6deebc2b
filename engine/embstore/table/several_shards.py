"""Look-ups and updates of several shards in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.table.shard import LocalShard

__all__ = [
    "GradientPart",
    "Prepared",
    "apply_to_all",
    "commit_together",
    "ids_per_part",
    "look_up_together",
    "prepare_together",
]


def look_up_together(
    shards: Sequence[LocalShard],
    ids: NDArray[np.int64],
    begins: Sequence[int],
    rows: NDArray[np.float32],
    train: bool,
    occurrences: NDArray[np.uint32] | None,
) -> list[Exception | None]:
    """Looks up ids in shards of several variables. Returns each shard's error or None.

    ids (n,): those of shard i lie from begins[i] to begins[i + 1]. occurrences (n,): as in
        `LocalShard.lookup`. rows (floats,): gets the rows, one after the other, of any dim.
    """
    tables = [shard.table for shard in shards]
    errors = _core.look_up_together(tables, ids, begins, rows, train, occurrences)
    for shard, error, count in zip(shards, errors, ids_per_part(begins, occurrences), strict=True):
        if error is None:
            shard.note_look_up(count)
    return errors


def ids_per_part(begins: Sequence[int], occurrences: NDArray[np.uint32] | None) -> list[int]:
    """Returns the number of ids that each part, from begins[i] to begins[i + 1], stands for."""
    if occurrences is None:
        return [end - begin for begin, end in pairwise(begins)]
    running_total = np.zeros(occurrences.size + 1, np.int64)
    np.cumsum(occurrences, out=running_total[1:])
    per_part: list[int] = np.diff(running_total[np.asarray(begins)]).tolist()
    return per_part


class GradientPart(NamedTuple):
    """A part of a gradient batch for one shard, which may consist of several workers' parts.

    occurrences: how often each id occurred in the batch; None: once. id_count: the sum of these.
    """

    ids: NDArray[np.int64]  # (n,)
    grads: NDArray[np.float32]  # (n, dim)
    occurrences: NDArray[np.uint32] | None  # (n,)
    id_count: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A prepared apply of one shard: every step that may fail is done, and no row has changed.

    It holds back saves and restores of its shard, so the thread that prepared it must end it soon
    with `commit_together` or `abort`.
    """

    shard: LocalShard
    parts: Sequence[GradientPart]  # keeps their memory alive, which _apply refers to
    _apply: _core.PreparedApply

    def abort(self) -> None:
        """Gives the apply up. Does nothing after a commit."""
        self._apply.abort()


def prepare_together(
    batches: Sequence[tuple[LocalShard, Sequence[GradientPart]]], scale: float
) -> list[Prepared | Exception]:
    """Prepares one batch for each of several shards, so that all of them apply it or none does.
    Returns each shard's Prepared or error.

    scale: factor of the gradients if a batch has several parts. The gradients of a single part are
        not scaled; they must not change until the apply is over.
    """
    results = _core.prepare_together(
        [(shard.table, [part[:3] for part in parts]) for shard, parts in batches], scale
    )
    return [
        found if isinstance(found, Exception) else Prepared(shard, parts, found)
        for (shard, parts), found in zip(batches, results, strict=True)
    ]


def commit_together(prepared: Sequence[Prepared], global_step: int | None) -> None:
    """Applies batches that this thread prepared. Can't fail."""
    _core.commit_together([each._apply for each in prepared], global_step)
    for each in prepared:
        each.shard.note_applied(sum(part.id_count for part in each.parts))


def apply_to_all(
    batch: Sequence[tuple[LocalShard, NDArray[np.int64], NDArray[np.float32]]],
    global_step: int | None,
) -> None:
    """Applies one batch of a variable: all of its parts, or none.

    batch: for each shard its ids (n,) and gradients (n, dim).
    """
    parts = [(shard, [GradientPart(ids, grads, None, ids.size)]) for shard, ids, grads in batch]
    results = prepare_together(parts, 1.0)
    prepared = [each for each in results if isinstance(each, Prepared)]
    try:
        for each in results:
            if isinstance(each, Exception):
                raise each
        commit_together(prepared, global_step)
    except BaseException:
        for one in prepared:
            one.abort()
        raise
