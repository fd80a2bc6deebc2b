"""The area under the ROC curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmemlab.workloads.auc import roc_auc


def auc(labels: list[int], scores: list[float]) -> float | None:
    return roc_auc(np.array(labels, np.float32), np.array(scores, np.float32))


def test_perfect_reversed_and_blind_rankings() -> None:
    assert auc([0, 0, 1, 1], [1, 2, 3, 4]) == 1.0
    assert auc([1, 1, 0, 0], [1, 2, 3, 4]) == 0.0
    assert auc([0, 1, 0, 1], [5, 5, 5, 5]) == 0.5


def test_one_class_alone_has_no_area() -> None:
    assert auc([1, 1], [0.1, 0.2]) is None
    assert auc([0], [0.1]) is None


def test_a_score_without_a_rank_is_refused_and_infinity_has_one() -> None:
    with pytest.raises(ValueError, match="1 of 3 are NaN"):
        auc([0, 1, 1], [0.5, math.nan, 0.1])
    assert auc([0, 1], [-math.inf, math.inf]) == 1.0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2, max_size=40))
def test_it_is_the_share_of_pairs_in_order_with_ties_as_halves(rows: list[tuple[int, int]]) -> None:
    positives = [score for label, score in rows if label]
    negatives = [score for label, score in rows if not label]
    area = auc([label for label, _ in rows], [float(score) for _, score in rows])
    if not positives or not negatives:
        assert area is None
        return
    wins = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    assert area == pytest.approx(wins / (len(positives) * len(negatives)), abs=1e-12)
