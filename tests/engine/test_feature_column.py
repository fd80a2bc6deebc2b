"""Feature columns, and DeepRec's programs by their own names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import embstore as es
import embstore.deeprec as tf
from embstore import feature_column, graph

# Adagrad at 0.1 with gradients of 2, before the first, second and third step.
BEFORE_STEPS = [1.0, 0.9012271, 0.8309542]


def sparse(rows: list[list[Any]], dtype: Any = np.int64) -> feature_column.SparseTensor:
    indices = [[i, j] for i, row in enumerate(rows) for j in range(len(row))]
    return feature_column.SparseTensor(
        np.array(indices, np.int64).reshape(-1, 2),
        np.array([value for row in rows for value in row], dtype),
        [len(rows), max(map(len, rows))],
    )


def run_once(tensor: graph.Tensor) -> NDArray[np.float32]:
    with graph.Session() as session:
        session.run(graph.Initialize())
        result: NDArray[np.float32] = session.run(tensor)
        return result


def column(
    key: str = "item", dimension: int = 2, combiner: str = "mean", **options: Any
) -> feature_column.EmbeddingColumn:
    options.setdefault("dtype", np.int64)
    return feature_column.embedding_column(
        feature_column.categorical_column_with_embedding(key, **options),
        dimension,
        combiner,
        es.initializers.RandomNormal(seed=3),
    )


@pytest.mark.parametrize(
    ("combiner", "divisor"), [("sum", np.ones_like), ("mean", np.abs), ("sqrtn", np.sqrt)]
)
def test_an_examples_rows_are_combined(combiner: str, divisor: Callable[[int], float]) -> None:
    table = es.initializers.RandomNormal(seed=3)((4096, 2))
    examples = [[1, 2, 2], [], [5], [7, 1]]
    rows = run_once(
        feature_column.input_layer({"item": sparse(examples)}, [column(combiner=combiner)])
    )
    expected = [
        table[ids].sum(axis=0) / divisor(len(ids)) if ids else np.zeros(2) for ids in examples
    ]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_gradients_reach_the_rows_as_torchs_do(combiner: str) -> None:
    torch = pytest.importorskip("torch")
    examples = [[1, 2, 2], [], [5], [7, 1]]
    layer = feature_column.input_layer({"item": sparse(examples)}, [column(combiner=combiner)])
    weights = np.arange(8, dtype=np.float32).reshape(4, 2)
    loss = graph.reduce_sum(layer * weights)
    ((gradient, _),) = graph.Trainer(es.optimizers.SGD(1.0)).compute_gradients(loss)
    found = run_once(gradient)

    rows = torch.ones((6, 2), requires_grad=True)
    parts = torch.split(rows, [3, 0, 1, 2])
    lengths = torch.tensor([[3.0], [1.0], [1.0], [2.0]])  # nothing is divided by 1
    exponent = {"sum": 0.0, "mean": 1.0, "sqrtn": 0.5}[combiner]
    pooled = torch.stack([part.sum(0) for part in parts]) / lengths**exponent
    (pooled * torch.tensor(weights)).sum().backward()
    np.testing.assert_allclose(found, rows.grad, rtol=1e-6)


def test_columns_stand_side_by_side_in_the_order_of_their_names() -> None:
    features = {"b": sparse([[1], [2]]), "a": sparse([[3], [4]])}
    a, b = column("a", 2), column("b", 3)
    together = run_once(feature_column.input_layer(features, [b, a]))
    alone = [run_once(feature_column.input_layer(features, [part])) for part in (a, b)]
    assert (together == np.concatenate(alone, axis=1)).all()


def test_strings_are_keys_by_their_digest() -> None:
    layer = feature_column.input_layer(
        {"item": sparse([["café", "x"], ["x"], ["café"]], object)},
        [column(combiner="sum", dtype=np.str_)],
    )
    both, x, cafe = run_once(layer)
    np.testing.assert_allclose(both, x + cafe, rtol=1e-6)
    assert (x != cafe).all()


def test_a_partitioned_column_has_the_same_rows() -> None:
    features = {"item": sparse([[1, 5], [2]])}
    whole = run_once(feature_column.input_layer(features, [column()]))
    split = run_once(feature_column.input_layer(features, [column(partition_num=3)]))
    assert (whole == split).all()


def test_features_that_do_not_fit_are_refused_in_words() -> None:
    def refused(match: str, feature: Any, **options: Any) -> None:
        with pytest.raises(es.errors.InvalidArgumentError, match=match):
            run_once(feature_column.input_layer({"item": feature}, [column(**options)]))

    tensor = feature_column.SparseTensor
    refused(
        r"index \[4, 4\] lies outside of the dense_shape \[5, 4\]", tensor([[4, 4]], [1], [5, 4])
    )
    refused("must have indices of", tensor([[0, 0]], [1, 2], [5, 4]))
    refused("must hold int64 values, got float32", tensor([[0, 0]], [1.5], [5, 4]))
    refused("must hold strings", tensor([[0, 0]], [1], [5, 4]), dtype=np.str_)
    refused("must be a SparseTensor, got ndarray", np.ones(3))
    with pytest.raises(es.errors.InvalidArgumentError, match="combiner must be one of"):
        column(combiner="max")
    with pytest.raises(es.errors.InvalidArgumentError, match="dtype must be int64, int32"):
        column(dtype=np.float32)
    with pytest.raises(es.errors.InvalidArgumentError, match="dimension"):
        column(dimension=0)


def storage(path: Path, storage_type: es.StorageType) -> es.EmbeddingVariableOption:
    # Room for four rows of dim 3 with Adagrad's slot.
    return tf.EmbeddingVariableOption(
        storage_option=tf.StorageOption(
            storage_type=storage_type, storage_path=str(path), storage_size=[128]
        )
    )


def trained_three_times(rows: graph.Tensor) -> None:
    """As the guide goes on: a loss of twice the rows, Adagrad, three steps."""
    loss = tf.reduce_sum(tf.multiply(rows, 2.0, name="multiply"), name="reduce_sum")
    optimizer = tf.train.AdagradOptimizer(0.1)
    train = optimizer.apply_gradients(optimizer.compute_gradients(loss))
    init = tf.global_variables_initializer()
    config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    with tf.Session(config=config) as session:
        session.run([init])
        for expected in BEFORE_STEPS:
            seen, nothing, seen_loss = session.run([rows, train, loss])
            np.testing.assert_allclose(seen, expected, rtol=1e-6)
            np.testing.assert_allclose(seen_loss, 2 * expected * seen.size, rtol=1e-6)
            assert nothing is None


TIERED = [tf.config_pb2.StorageType.DRAM_SSDHASH, tf.config_pb2.StorageType.DRAM_LEVELDB]


@pytest.mark.parametrize("storage_type", TIERED, ids=lambda storage_type: storage_type.name)
def test_the_guides_program_with_a_variable_runs(
    tmp_path: Path, storage_type: es.StorageType
) -> None:
    with tf.device("/cpu:0"):
        variable = tf.get_embedding_variable(
            "var_0",
            embedding_dim=3,
            initializer=tf.ones_initializer(tf.float32),
            ev_option=storage(tmp_path, storage_type),
        )
        ids = tf.cast([0, 1, 2, 5, 6, 7], tf.int64)
        trained_three_times(tf.nn.embedding_lookup(variable, ids))


@pytest.mark.parametrize("storage_type", TIERED, ids=lambda storage_type: storage_type.name)
def test_the_guides_program_with_a_column_runs(
    tmp_path: Path, storage_type: es.StorageType
) -> None:
    option = storage(tmp_path, storage_type)
    categorical = tf.feature_column.categorical_column_with_embedding(
        "col_emb", dtype=tf.dtypes.int64, ev_option=option
    )
    weights = tf.feature_column.embedding_column(
        categorical_column=categorical,
        dimension=3,
        initializer=tf.ones_initializer(tf.dtypes.float32),
    )
    features = {
        "col_emb": tf.SparseTensor(
            indices=[[i, i] for i in range(5)],
            values=tf.cast([1, 2, 3, 4, 5], tf.dtypes.int64),
            dense_shape=[5, 5],
        )
    }
    trained_three_times(tf.feature_column.input_layer(features, [weights]))


def test_the_older_interface_names_the_same_columns() -> None:
    categorical = tf.feature_column.sparse_column_with_embedding(
        column_name="item", dtype=tf.dtypes.int64
    )
    weights = tf.feature_column.embedding_column(sparse_id_column=categorical, dimension=2)
    assert run_once(tf.feature_column.input_layer({"item": sparse([[1]])}, [weights])).shape == (
        1,
        2,
    )


def test_a_device_that_is_not_the_cpu_is_refused() -> None:
    with pytest.raises(es.errors.UnsupportedError, match="gpu"), tf.device("/gpu:0"):
        pass


@pytest.mark.parametrize(
    ("trainer", "optimizer"),
    [
        (tf.train.AdagradOptimizer(0.1), es.optimizers.Adagrad(0.1)),
        (
            tf.train.FtrlOptimizer(0.1, l1_regularization_strength=2.0, name="ftrl"),
            es.optimizers.Ftrl(0.1, l1_regularization_strength=2.0),
        ),
        (
            tf.train.AdagradDecayOptimizer(0.1, tf.train.get_or_create_global_step()),
            es.optimizers.AdagradDecay(0.1),
        ),
        (tf.train.GradientDescentOptimizer(0.1), es.optimizers.SGD(0.1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_optimizers_go_by_tensorflows_names(
    trainer: graph.Trainer, optimizer: es.optimizers.Optimizer
) -> None:
    assert trainer.optimizer == optimizer


def test_programs_find_this_face_under_the_names_that_they_use() -> None:
    import embstore.tensorflow1.deeprec as face

    assert es.feature_column.input_layer is tf.feature_column.input_layer
    assert es.deeprec is tf
    assert es.graph.Session is tf.Session
    assert {name: getattr(tf, name) for name in face.__all__} == {
        name: getattr(face, name) for name in face.__all__
    }
