"""The programs of DeepRec's pages run with one added import.

They are from "Embedding Variable" and "Multi-tier storage". They differ from the pages only in that
values are checked instead of printed, and that `tensorflow` is TensorFlow 2's
`tensorflow.compat.v1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es

tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("embstore.deeprec")

ADAGRAD = es.optimizers.Adagrad(0.1)
FTRL = es.optimizers.Ftrl(0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001)


def by_the_python_api(
    optimizer: es.optimizers.Optimizer, ids: Sequence[int], gradients: Any
) -> list[Any]:
    """Returns the rows that three steps on rows of ones read."""
    seen = []
    with es.get_embedding_variable(
        "plain", 3, initializer=es.initializers.Ones(), optimizer=optimizer
    ) as table:
        for _ in range(3):
            seen.append(table.lookup(ids, train=True))
            table.apply_gradients(ids, np.broadcast_to(np.float32(gradients), (len(ids), 3)).copy())
    return seen


def test_get_embedding_variable() -> None:
    var = tf.get_embedding_variable(
        "var_0",
        embedding_dim=3,
        initializer=tf.ones_initializer(tf.float32),
        partitioner=tf.fixed_size_partitioner(num_shards=4),
    )

    shape = [var1.total_count() for var1 in var]

    emb = tf.nn.embedding_lookup(var, tf.cast([0, 1, 2, 5, 6, 7], tf.int64))
    fun = tf.multiply(emb, 2.0, name="multiply")
    loss = tf.reduce_sum(fun, name="reduce_sum")
    opt = tf.train.AdagradOptimizer(0.1)

    g_v = opt.compute_gradients(loss)
    train_op = opt.apply_gradients(g_v)

    init = tf.global_variables_initializer()

    sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    with tf.Session(config=sess_config) as sess:
        sess.run([init])
        for rows in by_the_python_api(ADAGRAD, [0, 1, 2, 5, 6, 7], 2):
            seen, nothing, seen_loss = sess.run([emb, train_op, loss])
            assert (seen == rows).all()
            assert nothing is None
            assert seen_loss == pytest.approx(2 * rows.sum())
        (counts,) = sess.run([shape])
        assert sum(rows for rows, _ in counts) == 6
        assert [dim for _, dim in counts] == [3] * 4


def train_three_times(emb: Any, optimizer: Any, expected: Sequence[Any]) -> None:
    """The remaining part of all other programs."""
    fun = tf.multiply(emb, 2.0, name="multiply")
    loss = tf.reduce_sum(fun, name="reduce_sum")
    g_v = optimizer.compute_gradients(loss)
    train_op = optimizer.apply_gradients(g_v)
    init = tf.global_variables_initializer()

    with tf.Session() as sess:
        sess.run(init)
        for rows in expected:
            seen, nothing, seen_loss = sess.run([emb, train_op, loss])
            np.testing.assert_array_equal(seen, rows)
            assert nothing is None
            assert seen_loss == pytest.approx(2 * rows.sum())


def ftrl() -> Any:
    return tf.train.FtrlOptimizer(
        0.1, l1_regularization_strength=2.0, l2_regularization_strength=0.00001
    )


def one_id_an_example() -> dict[str, Any]:
    return {
        "col_emb": tf.SparseTensor(
            indices=[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]],
            values=tf.cast([1, 2, 3, 4, 5], tf.dtypes.int64),
            dense_shape=[5, 5],
        )
    }


def test_categorical_column_with_embedding() -> None:
    columns = tf.feature_column.categorical_column_with_embedding("col_emb", dtype=tf.dtypes.int64)
    weights = tf.feature_column.embedding_column(
        categorical_column=columns,
        dimension=3,
        initializer=tf.ones_initializer(tf.dtypes.float32),
    )
    emb = tf.feature_column.input_layer(one_id_an_example(), [weights])
    train_three_times(emb, ftrl(), by_the_python_api(FTRL, range(1, 6), 2))


def test_sparse_column_with_embedding() -> None:
    from tensorflow.contrib.layers.python.layers import feature_column, feature_column_ops
    from tensorflow.python.framework import ops  # noqa: F401

    columns = feature_column.sparse_column_with_embedding(
        column_name="col_emb", dtype=tf.dtypes.int64
    )
    weights = feature_column.embedding_column(
        sparse_id_column=columns,
        dimension=3,
        initializer=tf.ones_initializer(tf.dtypes.float32),
    )
    emb = feature_column_ops.input_from_feature_columns(
        columns_to_tensors=one_id_an_example(), feature_columns=[weights]
    )
    train_three_times(emb, ftrl(), by_the_python_api(FTRL, range(1, 6), 2))


def test_sequence_categorical_column_with_embedding() -> None:
    from tensorflow.python.feature_column import sequence_feature_column

    columns = sequence_feature_column.sequence_categorical_column_with_embedding(
        key="col_emb", dtype=tf.dtypes.int32
    )
    weights = tf.feature_column.embedding_column(
        categorical_column=columns,
        dimension=3,
        initializer=tf.ones_initializer(tf.dtypes.float32),
    )
    indices = [[0, 0], [0, 1], [1, 1], [2, 2], [3, 3], [4, 4]]
    values = [1, 3, 2, 3, 4, 5]
    ids = {
        "col_emb": tf.SparseTensor(
            indices=indices, values=tf.cast(values, tf.dtypes.int64), dense_shape=[5, 5]
        )
    }
    emb, length = tf.contrib.feature_column.sequence_input_layer(ids, [weights])
    expected = []
    for rows in by_the_python_api(FTRL, values, 2):
        layer = np.zeros((5, 5, 3), np.float32)
        layer[tuple(np.transpose(indices))] = rows
        expected.append(layer)
    train_three_times(emb, ftrl(), expected)
    with tf.Session() as sess:
        assert sess.run(length).tolist() == [2, 2, 3, 4, 5]


def test_weighted_categorical_column() -> None:
    categorical_column = tf.feature_column.categorical_column_with_embedding(
        "col_emb", dtype=tf.dtypes.int64
    )
    ids: dict[str, Any] = {
        "col_emb": tf.SparseTensor(
            indices=[[0, 0], [0, 1], [1, 1], [2, 2], [3, 3], [4, 3], [4, 4]],
            values=tf.cast([1, 3, 2, 3, 4, 5, 3], tf.dtypes.int64),
            dense_shape=[5, 5],
        )
    }
    ids["weight"] = [[2.0], [5.0], [4.0], [8.0], [3.0], [1.0], [2.5]]
    columns = tf.feature_column.weighted_categorical_column(categorical_column, "weight")
    weights = tf.feature_column.embedding_column(
        categorical_column=columns,
        dimension=3,
        initializer=tf.ones_initializer(tf.dtypes.float32),
    )
    emb = tf.feature_column.input_layer(ids, [weights])

    # Each example has the weighted mean of its rows.
    share = np.array([2 / 7, 5 / 7, 1, 1, 1, 1 / 3.5, 2.5 / 3.5], np.float32)[:, None]
    rows = by_the_python_api(FTRL, [1, 3, 2, 3, 4, 5, 3], 2 * share)
    expected = [
        np.array([w[0] + w[1], w[2], w[3], w[4], w[5] + w[6]]) for w in (share * r for r in rows)
    ]
    optimizer = ftrl()
    loss = tf.reduce_sum(tf.multiply(emb, 2.0, name="multiply"), name="reduce_sum")
    train_op = optimizer.apply_gradients(optimizer.compute_gradients(loss))
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in expected:
            np.testing.assert_allclose(sess.run([emb, train_op, loss])[0], step, rtol=1e-5)


@pytest.mark.parametrize("storage_type", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_multi_tier_storage_of_a_variable(tmp_path: Path, storage_type: str) -> None:
    from tensorflow.core.framework.embedding import config_pb2

    with tf.device("/cpu:0"):
        storage_option = tf.StorageOption(
            storage_type=getattr(config_pb2.StorageType, storage_type),
            storage_path=str(tmp_path / "ssd_utpy"),
            storage_size=[128],
        )
        ev_opt = tf.EmbeddingVariableOption(storage_option=storage_option)
        var = tf.get_embedding_variable(
            "var_0",
            embedding_dim=3,
            initializer=tf.ones_initializer(tf.float32),
            ev_option=ev_opt,
        )
        emb = tf.nn.embedding_lookup(var, tf.cast([0, 1, 2, 5, 6, 7], tf.int64))
        train_three_times(
            emb,
            tf.train.AdagradOptimizer(0.1),
            by_the_python_api(ADAGRAD, [0, 1, 2, 5, 6, 7], 2),
        )


@pytest.mark.parametrize("storage_type", ["DRAM_SSDHASH", "DRAM_LEVELDB"])
def test_multi_tier_storage_of_a_column(tmp_path: Path, storage_type: str) -> None:
    from tensorflow.core.framework.embedding import config_pb2

    with tf.device("/cpu:0"):
        storage_option = tf.StorageOption(
            storage_type=getattr(config_pb2.StorageType, storage_type),
            storage_path=str(tmp_path / "ssd_utpy"),
            storage_size=[128],
        )
        ev_opt = tf.EmbeddingVariableOption(storage_option=storage_option)
        columns = tf.feature_column.categorical_column_with_embedding(
            "col_emb", dtype=tf.dtypes.int64, ev_option=ev_opt
        )
        weights = tf.feature_column.embedding_column(
            categorical_column=columns,
            dimension=3,
            initializer=tf.ones_initializer(tf.dtypes.float32),
        )
        ids = {
            "col_emb": tf.SparseTensor(
                indices=[[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]],
                values=tf.cast([1, 2, 3, 4, 5], tf.dtypes.int64),
                dense_shape=[5, 4],  # as on the page, though a position is outside of it
            )
        }
        emb = tf.feature_column.input_layer(ids, [weights])
        train_three_times(
            emb, tf.train.AdagradOptimizer(0.1), by_the_python_api(ADAGRAD, range(1, 6), 2)
        )


def test_the_options_on_the_pages_are_accepted(tmp_path: Path) -> None:
    from tensorflow.contrib.layers.python.layers import feature_column
    from tensorflow.core.framework.embedding import config_pb2

    init_opt = tf.InitializerOption(
        initializer=tf.glorot_uniform_initializer, default_value_dim=10000
    )
    storage_option = tf.StorageOption(
        storage_type=config_pb2.StorageType.DRAM_SSDHASH,
        storage_path=str(tmp_path),
        storage_size=[512],
        cache_strategy=config_pb2.CacheStrategy.LRU,
    )
    filters = [
        tf.CounterFilter(filter_freq=3),
        tf.CBFFilter(
            filter_freq=3,
            max_element_size=2**10,
            false_positive_probability=0.01,
            counter_type=tf.dtypes.int64,
        ),
    ]
    evictions = [tf.GlobalStepEvict(steps_to_live=4000), tf.L2WeightEvict(l2_weight_threshold=1.0)]
    for i, (filter_option, evict_option) in enumerate(zip(filters, evictions, strict=True)):
        ev_opt = tf.EmbeddingVariableOption(
            filter_option=filter_option,
            evict_option=evict_option,
            init_option=init_opt,
            storage_option=storage_option,
        )
        emb_var = tf.get_embedding_variable(f"var{i}", embedding_dim=16, ev_option=ev_opt)
        feature_column.sparse_column_with_embedding("var", ev_option=ev_opt)
        tf.feature_column.categorical_column_with_embedding("var", ev_option=ev_opt)
        rows = tf.nn.embedding_lookup(emb_var, tf.constant([3], tf.int64))
        with tf.Session() as sess:
            sess.run(emb_var.initializer)
            assert (sess.run(rows) == 0).all()  # below the filter's threshold


def test_options_take_arguments_in_deeprecs_order() -> None:
    from tensorflow.core.framework.embedding import config_pb2

    evict, filtered = tf.GlobalStepEvict(7), tf.CounterFilter(3)
    storage = tf.StorageOption(None, None, [1 << 20], config_pb2.CacheType.LRU)
    initial = tf.InitializerOption(None, 8, 0.5)
    option = tf.EmbeddingVariableOption("", 1000, evict, None, filtered, storage, initial)
    assert option.evict_option is evict
    assert option.filter_option is filtered
    assert option.storage_option is storage
    assert option.init_option is initial
    assert storage.storage_type == config_pb2.DRAM == es.StorageType.DRAM
    assert storage.cache_strategy == es.CacheStrategy.LRU
    assert isinstance(option, es.EmbeddingVariableOption)
    with pytest.raises(es.errors.UnsupportedError, match="ckpt must be left out"):
        tf.EmbeddingVariableOption(ckpt="checkpoint")
    for off in (tf.CounterFilter(), tf.CBFFilter(), tf.GlobalStepEvict(), tf.L2WeightEvict()):
        kind = "filter_option" if "Filter" in type(off).__name__ else "evict_option"
        variable = tf.get_embedding_variable(
            f"var_{type(off).__name__}", 2, ev_option=tf.EmbeddingVariableOption(**{kind: off})
        )
        with tf.Session() as session:
            session.run(variable.initializer)
            rows = tf.nn.embedding_lookup(variable, tf.constant([3], tf.int64))
            assert (session.run(rows) != 0).all()
