"""Chooses the moments to try: those that differ most come first."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from powercut.errors import PowercutError
from powercut.record import Record
from powercut.settings import Moment

__all__ = ["Tries", "at_points", "every_point", "random_moments", "sampled"]


@dataclass(frozen=True)
class Tries:
    """A number of tries. Each is a list of moments, cut one after another on one medium.

    moments: returns a try's moments by the number of the try, from 0. They are computed on demand:
        a user may want more tries than memory holds.
    """

    count: int
    moments: Callable[[int], Sequence[Moment]]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise PowercutError(f"tries: must be 1 or more, got {self.count}")
        self.moments(self.count - 1)  # checks the largest seed, which may be too large

    def __iter__(self) -> Iterator[Sequence[Moment]]:
        return map(self.moments, range(self.count))


def at_points(
    points: Sequence[int], seeds: int, first_seed: int = 0, *, after_us: int = 0
) -> Tries:
    """Returns tries of each point with each seed. after_us: see `Moment`, whose point is then 0."""
    return Tries(
        len(points) * seeds,
        lambda n: [Moment(points[n % len(points)], first_seed + n // len(points), after_us)],
    )


def every_point(record: Record, seeds: int, first_seed: int = 0) -> Tries:
    """Returns tries of every point with each seed."""
    _check_points(record)
    return at_points(range(1, record.point_count + 1), seeds, first_seed)


def sampled(record: Record, tries: int, rounds: int = 1, first_seed: int = 0) -> Tries:
    """Returns tries of one cut: first the first and last call of each call stack, then other points
    in random order, then all of them again with the next seed. With several rounds, each cut of a
    try has a random point. The result is the same for the same record and seed.
    """
    _check_points(record)
    if rounds == 1:
        order = list(dict.fromkeys([*_end_points(record), *_shuffled(record, first_seed)]))
        return replace(at_points(order, -(-tries // len(order)), first_seed), count=tries)

    def series(number: int) -> list[Moment]:
        chance = random.Random(f"{first_seed} {number}")
        points = (chance.randint(1, record.point_count) for _ in range(rounds))
        return [Moment(point, first_seed + number) for point in points]

    return Tries(tries, series)


def random_moments(record: Record, tries: int, first_seed: int = 0) -> Tries:
    """Returns tries at random times in a run as long as the recorded one."""
    longest = max(1, record.duration_us)

    def random_try(number: int) -> list[Moment]:
        chance = random.Random(f"{first_seed} {number}")
        return [Moment(0, first_seed + number, chance.randint(1, longest))]

    return Tries(tries, random_try)


def _check_points(record: Record) -> None:
    """Raises `PowercutError` if there is no cut point: tries without a cut would prove nothing."""
    if record.point_count == 0:
        raise PowercutError(
            "points: the program makes no call of these kinds, so no cut would come"
        )


def _end_points(record: Record) -> Iterator[int]:
    for place in record.places:
        yield place.points[-1]
    for place in record.places:
        yield place.points[0]


def _shuffled(record: Record, seed: int) -> Sequence[int]:
    points = list(range(1, record.point_count + 1))
    random.Random(seed).shuffle(points)
    return points
