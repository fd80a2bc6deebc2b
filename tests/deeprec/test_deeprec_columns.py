"""Feature columns over embedding variables, together with TensorFlow's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import evaluated

import embstore as es

tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("embstore.deeprec")

EXAMPLES = [[1, 2, 2], [], [5], [7, 1]]
TABLE = es.initializers.RandomNormal(seed=3)((4096, 2))


def sparse(rows: list[list[Any]], dtype: Any = tf.int64) -> Any:
    indices = [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    return tf.SparseTensor(
        np.array(indices, np.int64).reshape(-1, 2),
        tf.constant([value for row in rows for value in row], dtype),
        [len(rows), max(map(len, rows))],
    )


def column(key: str = "item", dimension: int = 2, combiner: str = "mean", **options: Any) -> Any:
    return tf.feature_column.embedding_column(
        tf.feature_column.categorical_column_with_embedding(key, **{"dtype": tf.int64, **options}),
        dimension,
        combiner,
        es.initializers.RandomNormal(seed=3),
    )


@pytest.mark.parametrize(
    ("combiner", "divisor"), [("sum", np.ones_like), ("mean", np.abs), ("sqrtn", np.sqrt)]
)
def test_an_examples_rows_are_combined(combiner: str, divisor: Callable[[Any], Any]) -> None:
    layer = tf.feature_column.input_layer({"item": sparse(EXAMPLES)}, [column(combiner=combiner)])
    (found,) = evaluated(layer)
    expected = [
        TABLE[ids].sum(axis=0) / divisor(len(ids)) if ids else np.zeros(2) for ids in EXAMPLES
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_columns_are_ordered_by_name_among_tensorflows_own() -> None:
    features = {
        "b": sparse([[1], [2]]),
        "a": sparse([[3], [4]]),
        "n": [[5.0], [6.0]],
        "own": sparse([[7], [8]]),
    }
    columns = [
        column("b", 3),
        tf.feature_column.numeric_column("n"),
        column("a", 2),
        tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_identity("own", 9), 1
        ),
    ]
    together = tf.feature_column.input_layer(features, columns)
    alone = [tf.feature_column.input_layer(features, [columns[i]]) for i in (2, 0)]
    names = [variable.op.name for variable in tf.get_collection("embedding_variables")]
    assert names[:2] == [
        "input_layer/a_embedding/embedding_weights",
        "input_layer/b_embedding/embedding_weights",
    ]
    found, a, b = evaluated(together, *alone)
    assert found.shape == (2, 2 + 3 + 1 + 1)
    assert (found[:, :2] == a).all()
    assert (found[:, 2:5] == b).all()
    assert (found[:, 5] == [5, 6]).all()


def test_strings_become_keys_by_deeprecs_hash() -> None:
    texts = [["café", "x"], ["x"], ["café"]]
    layer = tf.feature_column.input_layer(
        {"item": sparse(texts, tf.string)}, [column(combiner="sum", dtype=tf.string)]
    )
    hashes = tf.strings.to_hash_bucket_fast(tf.constant(["café", "x"]), 2**63 - 1)
    (both, x, cafe), keys = evaluated(layer, hashes)
    np.testing.assert_allclose(both, x + cafe, rtol=1e-6)
    np.testing.assert_allclose([cafe, x], TABLE[keys % 4096], rtol=1e-6)


def test_ids_may_be_dense_and_of_any_integers() -> None:
    features = {"item": tf.constant([[1, 2], [5, -1]], tf.int32)}  # -1 is no id, as in TensorFlow
    (found,) = evaluated(
        tf.feature_column.input_layer(features, [column(combiner="sum", dtype=tf.int32)])
    )
    np.testing.assert_allclose(found, [TABLE[1] + TABLE[2], TABLE[5]], rtol=1e-6)
    features = {"item": sparse([[-1], [-3]])}
    (found,) = evaluated(tf.feature_column.input_layer(features, [column(combiner="sum")]))
    np.testing.assert_allclose(found, TABLE[[4095, 4093]], rtol=1e-6)


def test_a_columns_options_apply_to_its_variable() -> None:
    option = tf.EmbeddingVariableOption(filter_option=tf.CounterFilter(2))
    columns = [column(partition_num=3, ev_option=option)]
    layer = tf.feature_column.input_layer({"item": sparse(EXAMPLES)}, columns)
    (variable,) = tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES)
    assert len(variable) == 3
    assert variable.ev_option is option
    assert (evaluated(layer)[0] == 0).all()
    assert tf.feature_column.make_parse_example_spec(columns) == {
        "item": tf.io.VarLenFeature(tf.int64)
    }


def test_a_layer_may_be_made_again_with_the_same_rows() -> None:
    layers = []
    for reuse in (None, True):
        with tf.variable_scope("model", reuse=reuse):
            layers.append(tf.feature_column.input_layer({"item": sparse(EXAMPLES)}, [column()]))
    assert len(tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES)) == 1
    one, other = evaluated(*layers)
    assert (one == other).all()


def test_a_layer_that_is_not_trainable_has_fixed_rows() -> None:
    tf.feature_column.input_layer({"item": sparse(EXAMPLES)}, [column()], trainable=False)
    assert tf.trainable_variables() == []


def test_rows_of_a_column_are_trained_as_by_the_python_api() -> None:
    layer = tf.feature_column.input_layer({"item": sparse(EXAMPLES)}, [column(combiner="sum")])
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    loss = tf.reduce_sum(layer * weights)
    train = tf.train.AdagradOptimizer(0.1).minimize(loss)
    (variable,) = tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES)
    ids = [key for example in EXAMPLES for key in example]
    gradients = np.concatenate([[weights[i]] * len(e) for i, e in enumerate(EXAMPLES) if e])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        found = variable.table(session).export()
    with es.get_embedding_variable(
        "plain",
        2,
        initializer=es.initializers.RandomNormal(seed=3),
        optimizer=es.optimizers.Adagrad(0.1),
    ) as plain:
        for _ in range(3):
            plain.apply_gradients(ids, gradients)
        for name, expected in plain.export().items():
            assert (found[name] == expected).all(), name


def test_sequences_are_concatenated() -> None:
    features = {"item": sparse([[1, 2], [5]]), "other": sparse([[3, 3], [4]])}
    columns = [
        tf.feature_column.embedding_column(
            tf.feature_column.sequence_categorical_column_with_embedding(key, dtype=tf.int64),
            2,
            initializer=es.initializers.RandomNormal(seed=3),
        )
        for key in ("item", "other")
    ]
    layer, lengths = evaluated(*tf.contrib.feature_column.sequence_input_layer(features, columns))
    assert lengths.tolist() == [2, 1]
    assert layer.shape == (2, 2, 4)
    assert (layer[0] == np.concatenate([TABLE[[1, 2]], TABLE[[3, 3]]], axis=1)).all()
    assert (layer[1] == [[*TABLE[5], *TABLE[4]], [0] * 4]).all()
    features["other"] = sparse([[3], [4, 4]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="sequences of an example differ"):
        evaluated(tf.contrib.feature_column.sequence_input_layer(features, columns)[1])


def test_the_older_names_accept_their_own_options() -> None:
    from tensorflow.contrib import layers

    older = layers.sparse_column_with_embedding("item", tf.int64, steps_to_live=7)
    assert older.ev_option.evict_option == es.GlobalStepEvict(7)
    option = tf.EmbeddingVariableOption()
    assert layers.sparse_column_with_embedding("item", evconfig=option).ev_option is option
    rows = layers.input_from_feature_columns(
        {"item": sparse(EXAMPLES)}, [layers.embedding_column(older, 2)], scope="scope"
    )
    assert evaluated(rows)[0].shape == (4, 2)
    assert tf.global_variables()[0].name.startswith("scope/")
    with pytest.raises(ImportError):
        from tensorflow.contrib.layers import fully_connected  # noqa: F401


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "floats": (
        lambda: tf.feature_column.input_layer({"item": sparse([[1.5]], tf.float32)}, [column()]),
        r"features\['item'\] must hold int64 values",
    ),
    "strings": (
        lambda: tf.feature_column.input_layer({"item": sparse([["a"]], tf.string)}, [column()]),
        r"features\['item'\] must hold int64 values",
    ),
    "combiner": (lambda: column(combiner="max"), "combiner must be"),
    "dtype": (lambda: column(dtype=tf.float32), "dtype must be string or of integers"),
    "dimension": (lambda: column(dimension=0), "dimension must be at least 1"),
    "key": (lambda: column(key=""), "key must be a string"),
    "partitions": (lambda: column(partition_num=0), "partition_num must be at least 1"),
    "option": (lambda: column(ev_option=3), "ev_option must be a tf.EmbeddingVariableOption"),
    "linear model": (
        lambda: tf.feature_column.linear_model(
            {"item": sparse(EXAMPLES)},
            [tf.feature_column.categorical_column_with_embedding("item", tf.int64)],
        ),
        "item: every int64 is a key, so the column has no number of buckets",
    ),
    "checkpoint": (
        lambda: tf.feature_column.embedding_column(
            tf.feature_column.categorical_column_with_embedding("item"), 2, ckpt_to_load_from="a"
        ),
        "ckpt_to_load_from: rows come",
    ),
    "sequence": (
        lambda: tf.contrib.feature_column.sequence_input_layer(
            {"item": sparse(EXAMPLES)}, [tf.feature_column.numeric_column("item")]
        ),
        "item isn't a sequence column",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_columns_are_refused(what: str) -> None:
    make, message = REFUSED[what]
    with pytest.raises(es.errors.EmbStoreError, match=message):
        make()
