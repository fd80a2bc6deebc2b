"""Batches that concern several shards in this process."""

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
    "counts",
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
    """Looks up shards of several variables. Returns the error of each, or None.

    ids (n,): from begins[i] to begins[i + 1] those of shard i; occurrences (n,): as of
        `LocalShard.lookup`. rows (floats,): the rows, one after the other, whatever their dim.
    """
    tables = [shard.table for shard in shards]
    errors = _core.look_up_together(tables, ids, begins, rows, train, occurrences)
    for shard, error, count in zip(shards, errors, counts(begins, occurrences), strict=True):
        if error is None:
            shard.note_look_up(count)
    return errors


def counts(begins: Sequence[int], occurrences: NDArray[np.uint32] | None) -> list[int]:
    """Of each part from begins[i] to begins[i + 1], how many ids it stands for."""
    if occurrences is None:
        return [end - begin for begin, end in pairwise(begins)]
    until = np.zeros(occurrences.size + 1, np.int64)
    np.cumsum(occurrences, out=until[1:])
    of_parts: list[int] = np.diff(until[np.asarray(begins)]).tolist()
    return of_parts


class GradientPart(NamedTuple):
    """A part of a batch of gradients of one shard, which others may have parts of.

    occurrences: how often each id occurred in the batch; None: once. counted: how often all did.
    """

    ids: NDArray[np.int64]  # (n,)
    grads: NDArray[np.float32]  # (n, dim)
    occurrences: NDArray[np.uint32] | None  # (n,)
    counted: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """All of an apply that may fail, done of a batch of one shard; nothing has changed yet.

    It holds back saves and restores of its shard: it is to be ended soon, by the thread that
    prepared it, by `commit_together` or `abort`.
    """

    shard: LocalShard
    parts: Sequence[GradientPart]  # whose memory it refers to
    _apply: _core.PreparedApply

    def abort(self) -> None:
        """Does nothing where it was committed."""
        self._apply.abort()


def prepare_together(
    batches: Sequence[tuple[LocalShard, Sequence[GradientPart]]], scale: float
) -> list[Prepared | Exception]:
    """Prepares a batch of each of several shards, or returns its error: so a batch that goes to
    several shards is applied by all of them or by none.

    scale: what gradients are multiplied by where a batch has several parts. Of one that has one,
    the gradients stay as they are until it is over.
    """
    made = _core.prepare_together(
        [(shard.table, [part[:3] for part in parts]) for shard, parts in batches], scale
    )
    return [
        found if isinstance(found, Exception) else Prepared(shard, parts, found)
        for (shard, parts), found in zip(batches, made, strict=True)
    ]


def commit_together(prepared: Sequence[Prepared], global_step: int | None) -> None:
    """What is left of an apply, of batches that were prepared by this thread. Can't fail."""
    _core.commit_together([each._apply for each in prepared], global_step)
    for each in prepared:
        each.shard.note_applied(sum(part.counted for part in each.parts))


def apply_to_all(
    batch: Sequence[tuple[LocalShard, NDArray[np.int64], NDArray[np.float32]]],
    global_step: int | None,
) -> None:
    """Applies one batch of a variable: all of its parts, or none.

    batch: of each shard ids (n,) and gradients (n, dim).
    """
    parts = [(shard, [GradientPart(ids, grads, None, ids.size)]) for shard, ids, grads in batch]
    made = prepare_together(parts, 1.0)
    prepared = [each for each in made if isinstance(each, Prepared)]
    try:
        for each in made:
            if isinstance(each, Exception):
                raise each
        commit_together(prepared, global_step)
    except BaseException:
        for one in prepared:
            one.abort()
        raise
