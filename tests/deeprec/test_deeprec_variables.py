"""Embedding variables as variables of a graph: names, scopes, sessions and errors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embstore as es

tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("embstore.deeprec")


def keys(*values: int) -> Any:
    return tf.constant(values, tf.int64)


def trained(variable: Any, *ids: int) -> Any:
    """Returns the operation that subtracts 1 from the rows of the ids."""
    loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, keys(*ids)))
    return tf.train.GradientDescentOptimizer(1.0).minimize(loss, var_list=[variable])


def test_each_session_has_its_own_rows() -> None:
    variable = tf.get_embedding_variable("var", 2, initializer=tf.zeros_initializer())
    train = trained(variable, 5)
    rows = tf.nn.embedding_lookup(variable, keys(5))
    with tf.Session() as one, tf.Session() as other:
        for session in (one, other):
            session.run(variable.initializer)
        one.run(train)
        assert one.run(rows).tolist() == [[-1, -1]]
        assert other.run(rows).tolist() == [[0, 0]]


def test_a_reused_variable_keeps_its_options() -> None:
    def option(filter_freq: int, storage: Any) -> Any:
        return tf.EmbeddingVariableOption(
            filter_option=tf.CounterFilter(filter_freq), storage_option=storage
        )

    with tf.variable_scope("tower", reuse=tf.AUTO_REUSE):
        made = tf.get_embedding_variable("var", 2, ev_option=option(3, None))
        for same in (None, option(3, None), option(3, tf.StorageOption()), made.ev_option):
            assert tf.get_embedding_variable("var", 2, ev_option=same) is made
        for other, named in (
            (option(4, None), r"tower/var exists with the filter_option .*freq=3.*, got .*freq=4"),
            (es.EmbeddingVariableOption(), "the filter_option .*, got None"),
            (option(3, tf.StorageOption(cache_strategy="LRU")), "the storage_option .*LFU.*LRU"),
        ):
            with pytest.raises(es.errors.InvalidArgumentError, match=named):
                tf.get_embedding_variable("var", 2, ev_option=other)


def test_initializing_again_makes_new_rows(tmp_path: Path) -> None:
    storage = tf.StorageOption(es.StorageType.DRAM_SSDHASH, str(tmp_path))
    variable = tf.get_embedding_variable(
        "var",
        2,
        initializer=tf.zeros_initializer(),
        ev_option=tf.EmbeddingVariableOption(storage_option=storage),
    )
    train = trained(variable, 5)
    with tf.Session() as session:
        for _ in range(2):
            session.run(variable.initializer)
            assert session.run(variable.total_count()).tolist() == [0, 2]
            session.run(train)
            assert session.run(variable.total_count()).tolist() == [1, 2]


@pytest.mark.parametrize("ending", ["with", "close", "nobody holds it"])
def test_a_session_that_ends_releases_the_files_of_its_tables(tmp_path: Path, ending: str) -> None:
    storage = tf.StorageOption(es.StorageType.DRAM_SSDHASH, str(tmp_path))
    option = tf.EmbeddingVariableOption(storage_option=storage)
    variable = tf.get_embedding_variable("var", 2, ev_option=option)
    session = tf.Session()
    session.run(variable.initializer)
    table = variable.table(session)
    with tf.Session() as other:  # fails as long as the files are in use
        with pytest.raises(tf.errors.OpError, match="InUseError"):
            other.run(variable.initializer)
        if ending == "with":
            with session:
                pass
        elif ending == "close":
            session.close()
        del session
        gc.collect()
        other.run(variable.initializer)
        assert variable.table(other) is not table
    with pytest.raises(es.errors.ClosedError):
        table.lookup([1])


def test_a_look_up_before_the_initializer_says_what_is_missing() -> None:
    variable = tf.get_embedding_variable("var_0", 2)
    rows = tf.nn.embedding_lookup(variable, keys(5))
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="var_0"):
            session.run(rows)
        assert session.run(tf.report_uninitialized_variables()).tolist() == [b"var_0"]
        with pytest.raises(es.errors.InvalidArgumentError, match="var_0 isn't initialized"):
            variable.table(session)
        session.run(tf.global_variables_initializer())
        assert session.run(tf.report_uninitialized_variables()).tolist() == []


def test_variables_are_in_tensorflows_collections() -> None:
    variable = tf.get_embedding_variable("var", 4)
    fixed = tf.get_embedding_variable("fixed", 4, trainable=False)
    local = tf.get_embedding_variable("local", 4, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    assert tf.global_variables() == [variable, fixed]
    assert tf.trainable_variables() == [variable, local]
    assert tf.local_variables() == [local]
    assert tf.get_collection(tf.GraphKeys.EMBEDDING_VARIABLES) == [variable, fixed, local]
    assert (variable.name, variable.op.name) == ("var:0", "var")
    assert variable.shape.as_list() == variable.get_shape().as_list() == [4]
    assert variable.dtype == tf.float32
    assert variable.graph is tf.get_default_graph()
    assert "var" in repr(variable)


def test_scopes_name_variables_and_allow_reuse() -> None:
    with tf.variable_scope("tower"):
        first = tf.get_embedding_variable("var", 2)
        with pytest.raises(ValueError, match="tower/var already exists"):
            tf.get_embedding_variable("var", 2)
    assert first.name == "tower/var:0"
    with tf.variable_scope("tower", reuse=True):
        assert tf.get_embedding_variable("var", 2) is first
        with pytest.raises(ValueError, match="tower/other does not exist"):
            tf.get_embedding_variable("other", 2)
        with pytest.raises(es.errors.InvalidArgumentError, match="embedding_dim: tower/var"):
            tf.get_embedding_variable("var", 3)
    with tf.variable_scope("tower", reuse=tf.AUTO_REUSE):
        assert tf.get_embedding_variable("var", 2) is first
        assert tf.get_embedding_variable("other", 2) is not first

    def renamed(getter: Any, name: str, *arguments: Any, **options: Any) -> Any:
        return getter(name + "_suffix", *arguments, **options)

    assert tf.get_embedding_variable("var", 2, custom_getter=renamed).name == "var_suffix:0"


def test_a_scopes_partitioner_and_initializer_apply_to_its_variables() -> None:
    with tf.variable_scope(
        "scope",
        partitioner=tf.min_max_variable_partitioner(max_partitions=3),
        initializer=tf.ones_initializer(),
    ):
        variable = tf.get_embedding_variable("var", 2)
    assert len(variable) == len(list(variable)) == 3
    rows = tf.nn.embedding_lookup(variable, keys(1, 2))
    same = tf.nn.embedding_lookup(list(variable), keys(1, 2))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert variable.table(session).partition_num == 3
        assert session.run(rows).tolist() == session.run(same).tolist() == [[1, 1]] * 2


def class_of_initializers() -> Any:
    return tf.glorot_uniform_initializer


INITIALIZERS: dict[str, Callable[[], Any]] = {
    "TensorFlow's": lambda: tf.random_normal_initializer(2.0, 0.001, seed=1),
    "class of TensorFlow's": class_of_initializers,
    "embstore's": lambda: es.initializers.RandomNormal(seed=3),
    "class of embstore's": lambda: es.initializers.GlorotUniform,
    "function of the shape": lambda: lambda shape: np.full(shape, 3.0),
    "number": lambda: 2.5,
    "row": lambda: [1.0, 2.0, 3.0],
    "none": lambda: None,
}


def by_the_python_api(initializer: es.initializers.Initializer) -> Any:
    option = es.EmbeddingVariableOption(init_option=es.InitializerOption(default_value_dim=10))
    with es.get_embedding_variable("var", 3, initializer=initializer, ev_option=option) as table:
        return table.lookup(range(10))  # with a seed that depends on the name


@pytest.mark.parametrize("kind", INITIALIZERS)
@pytest.mark.parametrize("by", ["initializer", "init_option"])
def test_initial_rows_come_from_the_initializer(kind: str, by: str) -> None:
    initializer = INITIALIZERS[kind]()
    if by == "init_option" and kind in ("number", "row"):
        initializer = es.initializers.Constant(initializer)
    option = tf.EmbeddingVariableOption(
        init_option=tf.InitializerOption(initializer if by == "init_option" else None, 10)
    )
    variable = tf.get_embedding_variable(
        "var", 3, initializer=initializer if by == "initializer" else None, ev_option=option
    )
    rows = tf.nn.embedding_lookup(variable, tf.range(20, dtype=tf.int64))
    with tf.Session() as session:
        session.run(variable.initializer)
        first, second = np.split(session.run(rows), 2)
    assert (first == second).all()  # repeats after default_value_dim keys
    expected: dict[str, Callable[[], Any]] = {
        "embstore's": lambda: es.initializers.RandomNormal(seed=3)((10, 3)),
        "class of embstore's": lambda: by_the_python_api(es.initializers.GlorotUniform()),
        "function of the shape": lambda: 3.0,
        "number": lambda: 2.5,
        "row": lambda: [1.0, 2.0, 3.0],
    }
    if kind in expected:
        np.testing.assert_array_equal(first, np.broadcast_to(expected[kind](), (10, 3)))
    elif kind == "TensorFlow's":
        np.testing.assert_allclose(first, 2.0, atol=0.01)
        assert len(np.unique(first)) > 20
    else:
        assert len(np.unique(first)) == 30
        limit = 2.0 if kind == "none" else np.sqrt(6 / 13)
        assert (np.abs(first) <= limit).all()


def test_the_graphs_seed_draws_the_same_rows_again() -> None:
    seen = []
    for _ in range(2):
        with tf.Graph().as_default():
            tf.set_random_seed(5)
            variables = [tf.get_embedding_variable(name, 3) for name in "ab"]
            rows = [tf.nn.embedding_lookup(variable, keys(1, 2)) for variable in variables]
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                seen.append(session.run(rows))
    assert (seen[0][0] == seen[1][0]).all()
    assert (seen[0][1] == seen[1][1]).all()
    assert (seen[0][0] != seen[0][1]).all()


def test_frequencies_versions_and_tiers_can_be_read_in_the_graph() -> None:
    variable = tf.get_embedding_variable("var", 2, initializer=tf.zeros_initializer())
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, keys(5, 5, -3)))
    train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    ids = keys(5, -3, 9)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        assert session.run(variable.get_frequency(ids)).tolist() == [6, 3, 0]
        assert session.run(variable.get_version(ids)).tolist() == [2, 2, -1]
        assert session.run(variable.lookup_tier(ids)).tolist() == [0, 0, -1]
        assert session.run(variable.get_dynamic_shape()).tolist() == [2, 2]
        exported = session.run(variable.export())
        assert exported.keys.tolist() == [-3, 5]
        assert exported.versions.tolist() == [2, 2]
        assert exported.freqs.tolist() == [3, 6]
        rows = session.run(variable.sparse_read(keys(-3, 5)))
        assert (exported.values == rows).all()
    for ask in (variable.get_frequency, variable.get_version, variable.lookup_tier):
        for ids in ([1.7], ["1"]):
            with pytest.raises(es.errors.InvalidArgumentError, match="ids: of var must be integer"):
                ask(ids)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "name": ({"name": ""}, "name must be"),
    "dim": ({"embedding_dim": 0}, "embedding_dim must be at least 1"),
    "keys": ({"key_dtype": "float32"}, "key_dtype must be int64 or int32"),
    "values": ({"value_dtype": "float64"}, "value_dtype must be float32"),
    "option": ({"ev_option": 3}, "ev_option must be a tf.EmbeddingVariableOption"),
    "regularizer": ({"regularizer": abs}, "regularizer: rows"),
    "constraint": ({"constraint": abs}, "constraint: rows"),
    "source": ({"init_data_source": "table"}, "init_data_source: rows"),
    "partitioner": ({"partitioner": lambda **_: [1, 2]}, "partitioner must divide rows"),
    "rows": ({"initializer": [1.0, 2.0, 3.0]}, r"value has the shape \(3,\)"),
    "initializer": ({"initializer": "ones"}, "initializer must be one of"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_arguments_of_a_variable_are_refused_at_once(what: str) -> None:
    arguments, message = REFUSED[what]
    with pytest.raises(es.errors.EmbStoreError, match=message):
        tf.get_embedding_variable(**{"name": "var", "embedding_dim": 2, **arguments})


def test_documented_types_are_accepted() -> None:
    variable = tf.get_embedding_variable("var", 2, key_dtype=tf.int32, value_dtype=None)
    rows = tf.nn.embedding_lookup(variable, tf.constant([1, -1], tf.int32))
    same = tf.nn.embedding_lookup(variable, keys(1, -1))
    tf.get_embedding_variable("other", 2, tf.int64, tf.float32)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(rows).tolist() == session.run(same).tolist()


def test_a_variable_cannot_be_used_as_a_tensor() -> None:
    variable = tf.get_embedding_variable("var", 2)
    with pytest.raises(es.errors.UnsupportedError, match="var can't become a tensor"):
        tf.identity(variable)
    with pytest.raises(es.errors.UnsupportedError, match="var can't become a tensor"):
        tf.train.ExponentialMovingAverage(0.9).apply(tf.trainable_variables())
    with pytest.raises(es.errors.InvalidArgumentError, match="ids: of var must be integers"):
        tf.nn.embedding_lookup(variable, tf.constant([1.0]))


def test_ids_outside_of_int64_are_refused() -> None:
    too_large = tf.constant([2**63], tf.uint64)
    variable = tf.get_embedding_variable("var", 2)
    with pytest.raises(es.errors.InvalidArgumentError, match=r"ids: of var must .*, got uint64"):
        tf.nn.embedding_lookup(variable, too_large)
    column = tf.feature_column.categorical_column_with_embedding("item", tf.int64)
    with pytest.raises(es.errors.InvalidArgumentError, match=r"features\['item'\].*, got uint64"):
        tf.feature_column.input_layer(
            {"item": too_large[None]}, [tf.feature_column.embedding_column(column, 2)]
        )


def test_a_scope_with_a_regularizer_is_refused() -> None:
    with (
        tf.variable_scope("scope", regularizer=lambda value: tf.reduce_sum(value)),
        pytest.raises(es.errors.UnsupportedError, match="regularizer: rows"),
    ):
        tf.get_embedding_variable("var", 2)


def test_a_variable_may_be_looked_up_under_a_condition() -> None:
    variable = tf.get_embedding_variable("var", 2, initializer=tf.ones_initializer())
    condition = tf.placeholder(tf.bool, [])
    rows = tf.cond(
        condition,
        lambda: tf.nn.embedding_lookup(variable, keys(1, 2)),
        lambda: tf.zeros([2, 2]),
    )
    train = tf.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(rows))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {condition: True})
        assert session.run(rows, {condition: True}).tolist() == [[0, 0], [0, 0]]
