"""Which moments are tried: of all that a run has, those that differ most come first."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from powercut.errors import PowercutError
from powercut.record import Record
from powercut.settings import Moment

__all__ = ["every_point", "random_moments", "rounds", "sampled_points"]


def every_point(record: Record, seeds: int, first_seed: int = 0) -> list[Moment]:
    """Each point with each of the seeds."""
    _check(record, seeds)
    return [
        Moment(point, seed)
        for seed in range(first_seed, first_seed + seeds)
        for point in range(1, record.point_count + 1)
    ]


def sampled_points(record: Record, tries: int, first_seed: int = 0) -> list[Moment]:
    """`tries` moments: each call stack's first and last call, then others by chance, then all of
    them again with the next seed. The same for the same record and seed.
    """
    _check(record, tries)
    order = list(dict.fromkeys([*_ends(record), *_shuffled(record, first_seed)]))
    return [
        Moment(order[number % len(order)], first_seed + number // len(order))
        for number in range(tries)
    ]


def random_moments(record: Record, tries: int, first_seed: int = 0) -> list[Moment]:
    """`tries` random times in a run as long as the recorded one."""
    chance = random.Random(first_seed)
    longest = max(1, record.duration_us)
    return [Moment(0, first_seed + number, chance.randint(1, longest)) for number in range(tries)]


def rounds(record: Record, tries: int, count: int, first_seed: int = 0) -> list[list[Moment]]:
    """`tries` series of `count` random points."""
    _check(record, tries)
    chance = random.Random(first_seed)
    return [
        [Moment(chance.randint(1, record.point_count), first_seed + number) for _ in range(count)]
        for number in range(tries)
    ]


def _check(record: Record, tries: int) -> None:
    """No try would prove nothing."""
    if tries < 1:
        raise PowercutError(f"tries: must be 1 or more, got {tries}")
    if record.point_count == 0:
        raise PowercutError(
            "points: the program makes no call of these kinds, so no cut would come"
        )


def _ends(record: Record) -> Iterator[int]:
    for place in record.places:
        yield place.points[-1]
    for place in record.places:
        yield place.points[0]


def _shuffled(record: Record, seed: int) -> Sequence[int]:
    points = list(range(1, record.point_count + 1))
    random.Random(seed).shuffle(points)
    return points
