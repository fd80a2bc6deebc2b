"""Batches that concern several shards: those elsewhere work at the same time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from embstore._shard import Shard
from embstore.errors import EmbStoreError

__all__ = ["Later", "Part", "apply_to_all", "look_up_later", "wait_for_all"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Part:
    """Of a batch of gradients, for one shard."""

    shard: Shard
    ids: NDArray[np.int64]
    grads: NDArray[np.float32]
    occurrences: NDArray[np.uint32] | None


class Later(Generic[_T]):
    """What a shard was asked for, and answers when it is waited for: once, or it is given up."""

    def __init__(self, wait: Callable[[], _T], give_up: Callable[[], None] = lambda: None) -> None:
        self.wait = wait
        self.give_up = give_up

    @classmethod
    def begin(cls, begin: Callable[[], Later[_T]]) -> Later[_T]:
        """What couldn't even be asked for says so when it is waited for: others were asked too."""
        try:
            return begin()
        except EmbStoreError as error:
            return cls(partial(_raise, error))

    @classmethod
    def in_turn(cls, begin: Callable[[], Later[_T]]) -> Later[_T]:
        """Begins when it is waited for: after the shards before it have answered."""
        begun: list[Later[_T]] = []

        def wait() -> _T:
            begun.append(begin())
            return begun[0].wait()

        def give_up() -> None:
            for later in begun:
                later.give_up()

        return cls(wait, give_up)


def look_up_later(
    shard: Shard,
    ids: NDArray[np.int64],
    train: bool,
    out: NDArray[np.float32] | None = None,
    occurrences: NDArray[np.uint32] | None = None,
    ahead: int = 0,
) -> Later[NDArray[np.float32]]:
    """A shard elsewhere begins at once, or after so many more pushes; one here when it is waited
    for.
    """
    if (later := getattr(shard, "lookup_later", None)) is not None:
        return Later.begin(partial(later, ids, train, out, occurrences, ahead))
    return Later(partial(shard.lookup, ids, train, out))


def apply_to_all(parts: Sequence[Part], global_step: int | None) -> None:
    """One batch of a variable, of which each part is applied, or none."""
    with contextlib.ExitStack() as prepared:

        def prepare(shard: Shard, later: Later[int]) -> Later[int]:
            def wait() -> int:
                number = later.wait()
                prepared.callback(shard.abort_apply, number)
                return number

            return Later(wait, later.give_up)

        numbers = wait_for_all([prepare(part.shard, _prepare_later(part)) for part in parts])
        wait_for_all(
            [
                _commit_later(part.shard, number, global_step)
                for part, number in zip(parts, numbers, strict=True)
            ]
        )


def wait_for_all(laters: Sequence[Later[_T]]) -> list[_T]:
    """What each of them answers. All are waited for before the first of their errors is raised: a
    shard elsewhere has done what it was asked for.
    """
    answers: list[_T] = []
    refused: EmbStoreError | None = None
    for i, later in enumerate(laters):
        try:
            answers.append(later.wait())
        except EmbStoreError as error:
            refused = refused or error
        except BaseException:
            for rest in laters[i:]:
                rest.give_up()
            raise
    if refused is not None:
        raise refused
    return answers


def _prepare_later(part: Part) -> Later[int]:
    if (later := getattr(part.shard, "prepare_later", None)) is not None:
        return Later.begin(partial(later, part.ids, part.grads, part.occurrences))
    return Later(partial(part.shard.prepare_apply, part.ids, part.grads))


def _commit_later(shard: Shard, number: int, global_step: int | None) -> Later[None]:
    if (later := getattr(shard, "commit_later", None)) is not None:
        return Later.begin(partial(later, number, global_step))
    return Later(partial(shard.commit_apply, number, global_step))


def _raise(error: EmbStoreError) -> NoReturn:
    raise error
