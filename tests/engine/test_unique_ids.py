"""A batch whose keys are sent once each gives the same results."""

from __future__ import annotations

import numpy as np
import pytest
from engine_storage import MakeVariable
from exports import assert_same
from hypothesis import given
from hypothesis import strategies as st

import embstore as es
from embstore import _core
from embstore.errors import InvalidArgumentError
from embstore.table.several_shards import (
    GradientPart,
    Prepared,
    commit_together,
    prepare_together,
)
from embstore.table.shard import LocalShard

INT64 = np.iinfo(np.int64)


@given(
    st.lists(st.one_of(st.integers(-3, 3), st.integers(int(INT64.min), int(INT64.max)))),
    st.integers(1, 9),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_unique_ids_have_each_key_once_and_give_each_id_its_row(
    ids: list[int], dim: int, seed: int, partitions: int
) -> None:
    batch = np.array(ids, np.int64)
    unique = _core.UniqueIds(batch, partitions)
    in_order = np.array(list(dict.fromkeys(ids)), np.int64)  # in order of first occurrence
    order, begins = _core.keys_by_partition(in_order, partitions)
    keys = in_order[order].tolist()
    assert unique.keys().tolist() == keys
    assert unique.begins() == begins
    assert unique.occurrences().tolist() == [ids.count(key) for key in keys]

    random = np.random.default_rng(seed)
    rows = random.standard_normal((len(keys), dim)).astype(np.float32)
    out = np.empty((len(ids), dim), np.float32)
    unique.spread(rows, out)
    for row, key in zip(out, ids, strict=True):
        np.testing.assert_array_equal(row, rows[keys.index(key)])

    gradients = random.standard_normal((len(ids), dim)).astype(np.float32)
    sums = np.empty((len(keys), dim), np.float32)
    unique.sum(gradients, sums)
    for key, total in zip(keys, sums, strict=True):
        first, *others = gradients[batch == key]
        for gradient in others:  # in this order: another one gives other bits
            first = first + gradient
        np.testing.assert_array_equal(total, first)


@pytest.mark.parametrize("filter_option", [None, es.CounterFilter(3)])
def test_a_table_that_gets_keys_once_is_like_one_that_gets_every_id(
    make_variable: MakeVariable, filter_option: es.CounterFilter | None
) -> None:
    every, once = (make_variable(filter=filter_option) for _ in range(2))
    shard = once._shards[0]
    assert isinstance(shard, LocalShard)
    random = np.random.default_rng(1)
    for _ in range(5):
        ids = random.zipf(1.4, 200).astype(np.int64)
        gradients = random.standard_normal((200, 3)).astype(np.float32)
        unique = _core.UniqueIds(ids)
        keys, occurrences = unique.keys(), unique.occurrences()
        sums = np.empty((keys.size, 3), np.float32)
        unique.sum(gradients, sums)
        rows = np.empty((200, 3), np.float32)
        unique.spread(shard.lookup(keys, True, occurrences), rows)
        np.testing.assert_array_equal(rows, every.lookup(ids, train=True))
        every.apply_gradients(ids, gradients)
        part = GradientPart(keys, sums, occurrences, 200)
        (prepared,) = prepare_together([(shard, [part])], 1.0)
        assert isinstance(prepared, Prepared)
        commit_together([prepared], None)
    assert_same(once.export(), every.export())
    for counter in ("hits", "misses", "without_row", "waiting_keys"):
        assert once.stats()[counter] == every.stats()[counter], counter


def test_arrays_that_dont_fit_the_batch_are_refused() -> None:
    unique = _core.UniqueIds(np.array([1, 2, 1]))
    for shapes in ((3, 3), (2, 2)):
        with pytest.raises(InvalidArgumentError, match="shapes don't fit 2 keys of 3 ids"):
            unique.spread(*(np.empty((rows, 4), np.float32) for rows in shapes))
    with pytest.raises(InvalidArgumentError, match="shapes don't fit 2 keys of 3 ids"):
        unique.sum(np.empty((3, 4), np.float32), np.empty((2, 5), np.float32))


def test_a_look_up_needs_as_many_occurrences_as_ids(make_variable: MakeVariable) -> None:
    shard = make_variable()._shards[0]
    assert isinstance(shard, LocalShard)
    with pytest.raises(InvalidArgumentError, match="occurrences: has 1 for 2 ids"):
        shard.lookup(np.arange(2), True, np.ones(1, np.uint32))
