"""Look-ups of sparse ids have TensorFlow's results, for every int64, and count each id once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import evaluated

import embstore as es

tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("embstore.deeprec")

TABLE = np.random.RandomState(5).normal(size=(9, 3)).astype(np.float32)
# Five examples: two ids; none; one id twice; an id of weight 0; an id of weight 0 beside another.
INDICES = [[0, 0], [0, 3], [2, 0], [2, 1], [3, 0], [4, 0], [4, 1]]
VALUES = [1, 8, 4, 4, 0, 2, 3]
WEIGHTS = [1.0, 2.5, 0.5, 2.0, 0.0, 0.0, 3.0]


def variable_and_tensor() -> tuple[Any, Any]:
    """Returns an embedding variable and a TensorFlow tensor with the same rows."""
    option = tf.EmbeddingVariableOption(
        init_option=tf.InitializerOption(es.initializers.Constant(TABLE), len(TABLE))
    )
    return tf.get_embedding_variable("rows", 3, ev_option=option), tf.constant(TABLE)


def sparse(values: list[Any], dtype: Any) -> Any:
    return tf.SparseTensor(INDICES, tf.constant(values, dtype), [5, 4])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", [{}, {"max_norm": 0.5}, {"default_id": 6}], ids=str)
def test_safe_look_ups_give_tensorflows_results(
    combiner: str, weighted: bool, options: dict[str, Any]
) -> None:
    ids = sparse(VALUES, tf.int64)
    weights = sparse(WEIGHTS, tf.float32) if weighted else None
    ours, theirs = evaluated(
        *[
            tf.nn.safe_embedding_lookup_sparse(params, ids, weights, combiner, **options)
            for params in variable_and_tensor()
        ]
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert (theirs[1] == 0).all() is not ("default_id" in options)


def test_the_row_of_empty_bags_is_trained_only_if_a_bag_is_empty() -> None:
    variable = tf.get_embedding_variable("items", 2, initializer=tf.ones_initializer())
    bags = tf.placeholder(tf.int64, [None])
    ids = tf.SparseTensor(tf.stack([bags, tf.zeros_like(bags)], 1), bags + 1, [2, 1])
    rows = tf.nn.safe_embedding_lookup_sparse(variable, ids, combiner="sum", default_id=7)
    train = tf.train.GradientDescentOptimizer(0.5).minimize(tf.reduce_sum(rows))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train, {bags: [0, 1]})
        assert session.run(variable.export().keys).tolist() == [1, 2]
        session.run(train, {bags: [0]})
        assert session.run(variable.get_frequency([1, 2, 7])).tolist() == [4, 3, 1]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sparse_look_ups_give_tensorflows_results(combiner: str, weighted: bool) -> None:
    ids = sparse(VALUES, tf.int64)
    weights = sparse([w + 1 for w in WEIGHTS], tf.float32) if weighted else None
    ours, theirs = evaluated(
        *[
            tf.nn.embedding_lookup_sparse(params, ids, weights, combiner=combiner)
            for params in variable_and_tensor()
        ]
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_arguments_may_be_given_by_position_as_before() -> None:
    variable, dense = variable_and_tensor()
    ids, weights = sparse(VALUES, tf.int64), sparse(WEIGHTS, tf.float32)
    for params in (variable, dense):
        tf.nn.embedding_lookup_sparse(params, ids, weights, "mod", "name", "sum")
        tf.nn.safe_embedding_lookup_sparse(params, ids, weights, "sum", None, "name")
        tf.nn.embedding_lookup(params, tf.constant([1], tf.int64), "mod", "name")


def test_a_batch_without_ids_gives_zeros() -> None:
    variable, _ = variable_and_tensor()
    ids = tf.SparseTensor(np.empty((0, 2), np.int64), tf.constant([], tf.int64), [2, 1])
    (found,) = evaluated(tf.nn.safe_embedding_lookup_sparse(variable, ids))
    assert found.tolist() == [[0] * 3] * 2


def test_negative_ids_are_keys_like_any_others() -> None:
    variable, _ = variable_and_tensor()
    values = [-1, -(1 << 63), (1 << 63) - 1, -8, -9, 0, -18]
    (found,) = evaluated(
        tf.nn.safe_embedding_lookup_sparse(variable, sparse(values, tf.int64), combiner="sum")
    )
    rows = TABLE[[value % 9 for value in values]]
    expected = [rows[0] + rows[1], 0 * rows[0], rows[2] + rows[3], rows[4], rows[5] + rows[6]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_ids_that_a_mean_leaves_out_get_no_row() -> None:
    variable, _ = variable_and_tensor()
    layer = tf.nn.safe_embedding_lookup_sparse(
        variable, sparse(VALUES, tf.int64), sparse(WEIGHTS, tf.float32), "mean"
    )
    train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(layer))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(variable.export()).keys.tolist() == [1, 3, 4, 8]
        assert session.run(variable.get_frequency([1, 3, 4, 8])).tolist() == [1, 1, 2, 1]


def test_rows_longer_than_max_norm_are_shortened() -> None:
    ids = tf.constant([[1, 2], [3, 1]], tf.int64)
    ours, theirs = evaluated(
        *[tf.nn.embedding_lookup(params, ids, max_norm=0.5) for params in variable_and_tensor()]
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_tensorflows_own_variables_are_looked_up_as_before() -> None:
    table = tf.get_variable("table", TABLE.shape, partitioner=tf.fixed_size_partitioner(3))
    parts = tf.nn.embedding_lookup(table, [0, 8, 4], partition_strategy="div")
    whole = tf.gather(tf.concat(list(table), 0), [0, 8, 4])
    found, expected = evaluated(parts, whole)
    assert (found == expected).all()


def test_look_ups_of_several_variables_or_another_kind_of_ids_are_refused() -> None:
    one, other = (tf.get_embedding_variable(name, 2) for name in "ab")
    with pytest.raises(es.errors.InvalidArgumentError, match="params must be one embedding"):
        tf.nn.embedding_lookup([one, other], tf.constant([1], tf.int64))
    parts = tf.get_embedding_variable("c", 2, partitioner=tf.fixed_size_partitioner(2))
    with pytest.raises(es.errors.InvalidArgumentError, match=r"whose partition c/part_1 is"):
        tf.nn.embedding_lookup(list(parts)[1], tf.constant([1], tf.int64))
    with pytest.raises(es.errors.InvalidArgumentError, match=r"must be a tf\.SparseTensor"):
        tf.nn.embedding_lookup_sparse(one, tf.constant([[1]], tf.int64), None)
    for ids in (sparse(VALUES, tf.int64), tf.ragged.constant([[1], [2, 3]], tf.int64)):
        with pytest.raises(es.errors.InvalidArgumentError, match=r"a must be a dense tensor, got"):
            tf.nn.embedding_lookup(one, ids)


def test_a_look_up_counts_once_when_it_trains_and_when_it_serves() -> None:
    variable, _ = variable_and_tensor()
    ids = tf.placeholder(tf.int64, [None])
    serving = tf.nn.embedding_lookup(variable, ids)
    training = tf.nn.embedding_lookup(variable, ids)
    train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(training))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        table = variable.table(session)
        calls: list[bool] = []
        plain = table.lookup

        def lookup(ids: Any, *, train: bool = False) -> Any:
            calls.append(train)
            return plain(ids, train=train)

        table.lookup = lookup
        session.run(train, {ids: [1, 1, 2]})
        session.run(training, {ids: [1]})
        session.run(serving, {ids: [2]})
        assert calls == [True, True, False]
        assert table.get_frequency([1, 2]).tolist() == [2, 1]
