"""Rows drawn from a seed: their skew, and the labels that a model can learn."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from pmemlab.workloads.auc import roc_auc
from pmemlab.workloads.batches import DataError
from pmemlab.workloads.synthetic import ACCESS_SKEW, SyntheticSource, draw_ranks


def test_accesses_are_as_skewed_as_in_the_openembedding_paper() -> None:
    """The top 0.05 / 0.1 / 1 % of all keys take 85.7 / 89.5 / 95.7 % of the accesses."""
    keys_per_column = 20_000
    source = SyntheticSource(seed=3, keys_per_column=keys_per_column)
    keys = np.concatenate([batch.keys for batch in islice(source.train_batches(4096), 25)])
    accesses = np.sort(
        np.concatenate([np.unique(column, return_counts=True)[1] for column in keys.T])
    )[::-1]
    for share_of_keys, share_of_accesses in ACCESS_SKEW[:3]:
        top = round(share_of_keys * keys_per_column * keys.shape[1])
        assert accesses[:top].sum() / keys.size == pytest.approx(share_of_accesses, abs=0.003)


def test_a_more_popular_rank_is_never_drawn_less() -> None:
    uniforms = (np.arange(2_000_000) + 0.5) / 2_000_000
    counts = np.bincount(draw_ranks(uniforms, 2_000), minlength=2_000)
    assert counts.sum() == len(uniforms)
    assert (np.diff(counts) <= 1).all()  # 1: the grid's own rounding
    assert counts[0] / len(uniforms) == pytest.approx(ACCESS_SKEW[0][1], abs=1e-4)


def test_every_rank_is_within_the_keys() -> None:
    extremes = np.array([0.0, np.finfo(float).tiny, np.nextafter(1.0, 0.0)])
    assert draw_ranks(extremes, 5_000).tolist() == [0, 0, 4_999]


def test_one_seed_gives_one_set_of_rows() -> None:
    first, again = (next(SyntheticSource(seed=1).train_batches(50)) for _ in range(2))
    other = next(SyntheticSource(seed=2).train_batches(50))
    for field in ("labels", "dense", "keys"):
        assert np.array_equal(getattr(first, field), getattr(again, field))
    assert not np.array_equal(first.keys, other.keys)


def test_held_out_rows_are_the_same_whatever_the_batch_size() -> None:
    source = SyntheticSource(held_out_rows=100)
    small, large = (
        np.concatenate([batch.keys for batch in source.held_out_batches(size)]) for size in (7, 100)
    )
    assert np.array_equal(small, large)
    assert not np.array_equal(large, next(source.train_batches(100)).keys)


def test_columns_share_no_key_and_keys_take_the_whole_of_int64() -> None:
    keys = next(SyntheticSource().train_batches(2_000)).keys
    per_column = [set(column.tolist()) for column in keys.T]
    assert sum(map(len, per_column)) == len(set.union(*per_column))
    assert keys.min() < -(2**62) < 2**62 < keys.max()


def test_labels_follow_from_the_keys() -> None:
    """The mean label of a key, learnt on some rows, ranks others far better than chance."""
    source = SyntheticSource(seed=5, keys_per_column=20_000, held_out_rows=4_000)
    train = next(source.train_batches(20_000))
    test = next(source.held_out_batches(4_000))
    assert 0.1 < train.labels.mean() < 0.6
    scores = np.zeros(len(test))
    for column in range(26):
        keys, index = np.unique(train.keys[:, column], return_inverse=True)
        mean = np.bincount(index, weights=train.labels) / np.bincount(index)
        found = np.minimum(np.searchsorted(keys, test.keys[:, column]), len(keys) - 1)
        known = keys[found] == test.keys[:, column]
        scores += np.where(known, mean[found], train.labels.mean())
    auc = roc_auc(test.labels, scores.astype(np.float32))
    assert auc is not None
    assert auc > 0.7


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"keys_per_column": 100}, "keys_per_column is 100; it must be at least 2000"),
        ({"held_out_rows": 0}, "held_out_rows is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_an_unusable_argument_is_named(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        SyntheticSource(**arguments)
