"""A sum of marks shows which marks are in it, and no other vector passes for such a sum."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")

from embstore.keras.marks import MAX_MARKS, SIZE, count_of, mark, marks_in

pytestmark = pytest.mark.any_backend


def test_a_sum_shows_its_marks() -> None:
    random = np.random.RandomState(1)
    for count in (1, 2, 7, 100, MAX_MARKS):
        numbers = random.permutation(MAX_MARKS)[:count]
        total = np.zeros(SIZE, np.float32)
        for number in numbers:
            total += mark(int(number) + 5 * MAX_MARKS)
        found = marks_in(total)
        assert found is not None
        assert sorted(found) == sorted(numbers.tolist())
        assert count_of(total) == count


def test_a_vector_that_is_no_sum_of_marks_is_refused() -> None:
    # Numbers at this distance share an element of the vector, where their bits could be confused.
    one, next_round, third = mark(3), mark(3 + SIZE - 2), mark(3 + 2 * (SIZE - 2))
    two_thirds = np.float32(2 / 3) * one + np.float32(1 / 3) * third
    for total in (
        2 * one,
        one + one,
        (one + next_round) / 2,
        two_thirds,
        2 * next_round - one,
        next_round - one,
        -one,
        one * np.float32(0.999),
        np.minimum(one, 1),
        np.minimum(one + next_round, 1),
    ):
        assert marks_in(np.asarray(total, np.float32)) is None, total
    assert marks_in(np.zeros(SIZE, np.float32)) == []
