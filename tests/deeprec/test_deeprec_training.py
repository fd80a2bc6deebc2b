"""`tf.train` trains rows like the Python API, and dense variables like TensorFlow, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import assert_same
from numpy.typing import NDArray

import embstore as es

tf = pytest.importorskip("tensorflow.compat.v1")
pytest.importorskip("embstore.deeprec")

DIM = 5
STEPS = 12
KEYS = np.array([-(1 << 63), -7, -1, 0, 1, 2, 3, 4095, 4096, 1 << 40, (1 << 63) - 1], np.int64)


def batches() -> list[NDArray[np.int64]]:
    """Returns batches with repeated ids, and one batch without ids."""
    random = np.random.RandomState(11)
    drawn = [random.choice(KEYS, (4, 3)) for _ in range(STEPS)]
    drawn[5] = np.empty((0, 3), np.int64)
    return drawn


INITIAL = np.random.RandomState(3).normal(size=(64, DIM)).astype(np.float32)


def option(storage: Any = None, **others: Any) -> Any:
    return tf.EmbeddingVariableOption(
        storage_option=storage,
        init_option=tf.InitializerOption(
            initializer=es.initializers.Constant(INITIAL), default_value_dim=len(INITIAL)
        ),
        **others,
    )


Pairs = tuple[Callable[[], Any], es.optimizers.Optimizer]

OPTIMIZERS: dict[str, Pairs] = {
    "SGD": (lambda: tf.train.GradientDescentOptimizer(0.1), es.optimizers.SGD(0.1)),
    "Adagrad": (lambda: tf.train.AdagradOptimizer(0.1, 0.2), es.optimizers.Adagrad(0.1, 0.2)),
    "AdagradDecay": (
        lambda: tf.train.AdagradDecayOptimizer(
            0.1, tf.train.get_or_create_global_step(), accumulator_decay_step=3
        ),
        es.optimizers.AdagradDecay(0.1, accumulator_decay_step=3),
    ),
    "AdagradDecayV2": (
        lambda: tf.train.AdagradDecayOptimizerV2(
            0.1, tf.train.get_or_create_global_step(), 0.2, 3, 0.5
        ),
        es.optimizers.AdagradDecayV2(0.1, 0.2, 3, 0.5),
    ),
    "Adam": (lambda: tf.train.AdamOptimizer(0.01, 0.8), es.optimizers.Adam(0.01, 0.8)),
    "AdamAsync": (lambda: tf.train.AdamAsyncOptimizer(0.01), es.optimizers.AdamAsync(0.01)),
    "AdamAsync by RMSprop": (
        lambda: tf.train.AdamAsyncOptimizer(0.01, apply_sparse_rmsprop=True),
        es.optimizers.AdamAsync(0.01, apply_sparse_rmsprop=True),
    ),
    "AdamW": (
        lambda: tf.train.AdamWOptimizer(0.05, learning_rate=0.01),
        es.optimizers.AdamW(0.05, learning_rate=0.01),
    ),
    "Adadelta": (
        lambda: tf.train.AdadeltaOptimizer(0.1, rho=0.9),
        es.optimizers.Adadelta(0.1, rho=0.9, epsilon=1e-8),
    ),
    "Ftrl": (
        lambda: tf.train.FtrlOptimizer(
            0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1
        ),
        es.optimizers.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.1),
    ),
}


def trained_in_a_graph(
    optimizer: Any, ids: Any, variable: Any, session: Any
) -> tuple[dict[str, Any], list[tuple[Any, Any]]]:
    """Trains a model of rows and a dense layer. Returns its rows, and each step's gradients."""
    step = tf.train.get_or_create_global_step()
    dense = tf.get_variable("dense", [DIM, 1], initializer=tf.ones_initializer())
    rows = tf.nn.embedding_lookup(variable, ids)
    loss = tf.reduce_sum(tf.sigmoid(tf.tensordot(rows, dense, 1)))
    pairs = optimizer.compute_gradients(loss)
    train = optimizer.apply_gradients(pairs, global_step=step)
    ((slices, _),) = [pair for pair in pairs if pair[1] is variable]
    session.run(tf.global_variables_initializer())
    seen = []
    for batch in batches():
        gradients, _ = session.run([slices, train], {ids: batch})
        seen.append((gradients.indices, gradients.values))
    return variable.table(session).export(), seen


def trained_by_the_python_api(
    optimizer: es.optimizers.Optimizer, gradients: list[tuple[Any, Any]], **arguments: Any
) -> dict[str, Any]:
    with es.get_embedding_variable(
        "plain", DIM, optimizer=optimizer, ev_option=option(**arguments)
    ) as table:
        for step, (ids, values) in enumerate(gradients):
            table.apply_gradients(ids, values, global_step=step)
        return table.export()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_are_those_of_the_python_api_to_the_bit(
    tmp_path: Path, name: str, partitions: int
) -> None:
    make, rule = OPTIMIZERS[name]
    storage = tf.StorageOption(es.StorageType.DRAM_SSDHASH, str(tmp_path), [4 * 96])
    variable = tf.get_embedding_variable(
        "var",
        DIM,
        ev_option=option(storage),
        partitioner=tf.fixed_size_partitioner(partitions),
    )
    ids = tf.placeholder(tf.int64, [None, 3])
    with tf.Session() as session:
        exported, gradients = trained_in_a_graph(make(), ids, variable, session)
        assert variable.table(session).partition_num == partitions
    assert [keys.tolist() for keys, _ in gradients] == [b.reshape(-1).tolist() for b in batches()]
    plain = trained_by_the_python_api(rule, gradients)
    assert_same(exported, plain)
    assert set(plain["keys"]) == set(KEYS)
    assert plain["freqs"].sum() == 3 * 4 * (STEPS - 1)


def test_a_filter_counts_as_it_does_in_the_python_api() -> None:
    filters = {"filter_option": tf.CounterFilter(filter_freq=9)}
    variable = tf.get_embedding_variable("var", DIM, ev_option=option(**filters))
    ids = tf.placeholder(tf.int64, [None, 3])
    with tf.Session() as session:
        exported, gradients = trained_in_a_graph(
            tf.train.AdagradOptimizer(0.1), ids, variable, session
        )
    assert_same(
        exported, trained_by_the_python_api(es.optimizers.Adagrad(0.1), gradients, **filters)
    )
    assert 0 < len(exported["keys"]) < len(KEYS)


@pytest.mark.parametrize("several", [False, True], ids=["one look-up", "three look-ups"])
def test_gradients_are_those_of_tensorflows_own_variable(several: bool) -> None:
    """Looks up once, or three times in one loss: directly, twice, and as a sum over examples."""
    table = np.arange(24, dtype=np.float32).reshape(8, 3)
    values = [3, 1, 1, 7, 0, 3]
    indices = [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [2, 0]]
    variable_option = tf.EmbeddingVariableOption(init_option=tf.InitializerOption(None, 8))
    variable = tf.get_embedding_variable(
        "rows", 3, initializer=table.tolist(), ev_option=variable_option
    )
    dense = tf.get_variable("table", initializer=table)

    def loss(params: Any) -> Any:
        rows = tf.nn.embedding_lookup(params, tf.constant(values, tf.int64))
        total = tf.reduce_sum(tf.square(rows) * tf.range(18.0, delta=1.0)[:6, None])
        if several:
            ids = tf.SparseTensor(indices, tf.constant(values, tf.int64), [3, 3])
            total += tf.reduce_sum(tf.nn.embedding_lookup_sparse(params, ids, None) ** 3)
            total += tf.reduce_sum(
                tf.sin(tf.nn.safe_embedding_lookup_sparse(params, ids, combiner="sqrtn"))
            )
        return total

    (ours,) = tf.gradients(loss(variable), [variable])
    (theirs,) = tf.gradients(loss(dense), [dense])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, expected = session.run([ours, tf.convert_to_tensor(theirs)])
    summed = np.zeros((8, 3), np.float32)
    np.add.at(summed, found.indices, found.values)
    np.testing.assert_allclose(summed, expected, rtol=1e-5)
    assert sorted(found.indices) == sorted(values * (3 if several else 1))


DENSE_ALIKE = ["SGD", "Adagrad", "Adam", "AdamAsync", "Adadelta", "Ftrl"]


@pytest.mark.parametrize("name", DENSE_ALIKE)
def test_dense_variables_are_trained_by_tensorflow(name: str) -> None:
    """They get the same values with and without rows beside them as from TensorFlow's class."""
    theirs = tf.train.AdamOptimizer if name == "AdamAsync" else type(OPTIMIZERS[name][0]())
    base = next(
        kind
        for kind in theirs.__mro__
        if kind.__module__.startswith("tensorflow.python") and "make_rule" not in vars(kind)
    )
    ours = OPTIMIZERS[name][0]()
    plain = base(**{k: v for k, v in ours._arguments.items() if k != "apply_sparse_rmsprop"})
    ids = tf.placeholder(tf.int64, [None, 3])
    variable = tf.get_embedding_variable("var", DIM, ev_option=option())
    with tf.Session() as session:
        trained_in_a_graph(ours, ids, variable, session)
        (dense,) = [v for v in tf.global_variables() if v.name == "dense:0"]
        beside_rows = session.run(dense)
        again: list[Any] = []
        fed = tf.placeholder(tf.float32, [DIM, 1])
        for optimizer in (OPTIMIZERS[name][0](), plain):
            weights = tf.get_variable(f"weights{len(again)}", [DIM, 1])
            train = optimizer.apply_gradients([(fed, weights)])
            uninitialized = [
                v for v in tf.global_variables() if not session.run(tf.is_variable_initialized(v))
            ]
            session.run(tf.variables_initializer(uninitialized))
            session.run(weights.assign(np.ones((DIM, 1))))
            for value in range(1, 6):
                session.run(train, {fed: np.full((DIM, 1), value / 7)})
            again.append(session.run(weights))
    assert (again[0] == again[1]).all()
    assert (beside_rows != 1).all()


def test_adagrad_decay_decays_the_accumulators_of_dense_variables() -> None:
    step = tf.train.get_or_create_global_step()
    weights = tf.get_variable("w", initializer=np.array([1.0, 2.0], np.float32))
    optimizer = tf.train.AdagradDecayOptimizer(
        0.1, step, accumulator_decay_step=3, accumulator_decay_rate=0.5
    )
    gradient = tf.constant([2.0, 0.0])
    train = optimizer.apply_gradients([(gradient, weights)], global_step=step)
    plain = es.get_embedding_variable(
        "plain",
        2,
        initializer=es.initializers.Constant([1.0, 2.0]),
        optimizer=es.optimizers.AdagradDecay(
            0.1, accumulator_decay_step=3, accumulator_decay_rate=0.5
        ),
    )
    with tf.Session() as session, plain:
        session.run(tf.global_variables_initializer())
        for i in range(8):
            session.run(train)
            plain.apply_gradients([0], np.array([[2, 0]], np.float32), global_step=i)
            np.testing.assert_allclose(session.run(weights), plain.lookup([0])[0], rtol=1e-6)


@pytest.mark.parametrize("use_resource", [False, True])
def test_adamw_decays_dense_variables_by_the_learning_rate(use_resource: bool) -> None:
    weights = tf.get_variable(
        "w", initializer=np.array([[1.0, 2.0], [3.0, 4.0]], np.float32), use_resource=use_resource
    )
    loss = tf.reduce_sum(tf.nn.embedding_lookup(weights, [0, 0]) * 0.0)
    train = tf.train.AdamWOptimizer(0.5, learning_rate=0.1).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        np.testing.assert_allclose(session.run(weights), [[0.95, 1.9], [2.85, 3.8]], rtol=1e-6)


def test_a_learning_rate_may_be_a_tensor_that_changes() -> None:
    rate = tf.placeholder(tf.float32, [])
    variable = tf.get_embedding_variable("var", 1, initializer=tf.zeros_initializer())
    rows = tf.nn.embedding_lookup(variable, tf.constant([1], tf.int64))
    train = tf.train.GradientDescentOptimizer(rate).minimize(tf.reduce_sum(rows))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for value, expected in ((0.5, -0.5), (2.0, -2.5)):
            session.run(train, {rate: value})
            assert session.run(rows).tolist() == [[expected]]
        with pytest.raises(tf.errors.OpError, match="learning_rate must be at least 0"):
            session.run(train, {rate: -1.0})
        assert session.run(rows).tolist() == [[-2.5]]


def test_a_rate_that_decays_with_the_global_step_trains_rows_by_its_value() -> None:
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(1.0, step, 1, 0.5)
    variable = tf.get_embedding_variable("var", 1, initializer=tf.zeros_initializer())
    rows = tf.nn.embedding_lookup(variable, tf.constant([1], tf.int64))
    train = tf.train.GradientDescentOptimizer(rate).minimize(tf.reduce_sum(rows), global_step=step)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for i, expected in enumerate((-1.0, -1.5, -1.75)):
            session.run(train)
            assert session.run([rows, variable.get_version([1]), step]) == [
                [[expected]],
                [i],
                i + 1,
            ]


def test_gradients_may_be_clipped_before_they_are_applied() -> None:
    variable = tf.get_embedding_variable("var", 2, initializer=tf.zeros_initializer())
    dense = tf.get_variable("w", initializer=np.array([0.0, 0.0], np.float32))
    rows = tf.nn.embedding_lookup(variable, tf.constant([4, 4], tf.int64))
    loss = tf.reduce_sum(rows * [3.0, 0.0]) + tf.reduce_sum(dense * [0.0, 4.0])
    parameters = tf.trainable_variables()
    assert parameters == [variable, dense]
    gradients, norm = tf.clip_by_global_norm(tf.gradients(loss, parameters), 1.0)
    train = tf.train.GradientDescentOptimizer(1.0).apply_gradients(
        zip(gradients, parameters, strict=True)
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        length = session.run([norm, train])[0]
        np.testing.assert_allclose(length, np.sqrt(9 + 9 + 16), rtol=1e-6)
        np.testing.assert_allclose(session.run(rows)[0], [-6 / length, 0], rtol=1e-6)
        np.testing.assert_allclose(session.run(dense), [0, -4 / length], rtol=1e-6)


@pytest.mark.parametrize("form", ["plain", "safe", "safe, a default"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_clipped_gradients_of_sparse_look_ups_are_those_of_a_plain_variable(
    form: str, combiner: str
) -> None:
    look_up = (
        tf.nn.embedding_lookup_sparse if form == "plain" else tf.nn.safe_embedding_lookup_sparse
    )
    default = {"default_id": 4} if "default" in form else {}
    places = np.array([[0, 0], [0, 1], [0, 2], [2, 0], [2, 1]], np.int64)  # bag 1 is empty
    ids = tf.SparseTensor(places, np.array([4, 1, 4, 4, 0], np.int64), [3, 3])
    ones = tf.ones_initializer()
    embedding = tf.get_embedding_variable("rows", 2, initializer=ones)
    plain = tf.get_variable("plain", [5, 2], initializer=ones, use_resource=True)
    runs = []
    for table in (embedding, plain):
        bags = look_up(table, ids, None, combiner=combiner, **default)
        loss = tf.reduce_sum(tf.square(bags))
        gradients, norm = tf.clip_by_global_norm(tf.gradients(loss, [table]), 1.0)
        train = tf.train.AdagradOptimizer(0.5).apply_gradients([(gradients[0], table)])
        runs.append([bags, norm, train])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            (bags, norm, _), (plain_bags, plain_norm, _) = session.run(runs)
            np.testing.assert_allclose(bags, plain_bags, rtol=1e-6)
            np.testing.assert_allclose(norm, plain_norm, rtol=1e-6)
        of_default = 3 if default else 0
        frequencies = session.run(embedding.get_frequency([0, 1, 4])).tolist()
        assert frequencies == [3, 3, 9 + of_default]


def test_a_variable_that_is_not_trainable_is_left_as_it_is() -> None:
    variable = tf.get_embedding_variable("var", 2, trainable=False)
    rows = tf.nn.embedding_lookup(variable, tf.constant([4], tf.int64))
    weights = tf.get_variable("w", [2])
    train = tf.train.AdagradOptimizer(0.1).minimize(tf.reduce_sum(rows * weights))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert variable not in tf.trainable_variables()
        assert session.run(variable.total_count()).tolist() == [0, 2]


@pytest.mark.parametrize("name", ["MomentumOptimizer", "RMSPropOptimizer"])
def test_an_optimizer_that_cant_train_rows_says_which_can(name: str) -> None:
    variable = tf.get_embedding_variable("var", 2)
    dense = tf.get_variable("w", [2])
    rows = tf.nn.embedding_lookup(variable, tf.constant([4], tf.int64))
    arguments = {"momentum": 0.9} if name == "MomentumOptimizer" else {}
    optimizer = getattr(tf.train, name)(0.1, **arguments)
    loss = tf.reduce_sum(rows * dense)
    with pytest.raises(es.errors.UnsupportedError, match=f"var: .*{name}.*AdagradOptimizer"):
        optimizer.minimize(loss)
    train = optimizer.minimize(loss, var_list=[dense])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)


def test_a_users_optimizer_trains_rows_if_its_base_class_can() -> None:
    sgd: Any = tf.train.GradientDescentOptimizer
    base: Any = tf.train.Optimizer

    class Doubled(sgd):  # type: ignore[misc]
        def __init__(self, rate: float) -> None:
            super().__init__(2 * rate, name="Doubled")

    class FromScratch(base):  # type: ignore[misc]
        pass

    variable = tf.get_embedding_variable("var", 2, initializer=tf.zeros_initializer())
    rows = tf.nn.embedding_lookup(variable, tf.constant([4], tf.int64))
    train = Doubled(1.0).minimize(tf.reduce_sum(rows))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run(rows).tolist() == [[-2, -2]]
    with pytest.raises(es.errors.UnsupportedError, match=r"var .* derives from one of tf\.train's"):
        FromScratch(False, "scratch").minimize(tf.reduce_sum(rows))


def test_a_variable_has_one_optimizer() -> None:
    variable = tf.get_embedding_variable("var", 2)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, tf.constant([4], tf.int64)))
    tf.train.AdagradOptimizer(0.1).minimize(loss)
    tf.train.AdagradOptimizer(0.1).minimize(loss)
    with pytest.raises(es.errors.InvalidArgumentError, match="var is trained by Adagrad"):
        tf.train.AdamOptimizer(0.1).minimize(loss)


def test_rows_made_before_their_optimizer_was_chosen_are_not_trained_by_it() -> None:
    variable = tf.get_embedding_variable("var", 2)
    loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, tf.constant([4], tf.int64)))
    with tf.Session() as session:
        session.run(variable.initializer)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        with pytest.raises(tf.errors.OpError, match="var was initialized before apply_gradients"):
            session.run(train)
        session.run(variable.initializer)
        session.run(train)


def test_an_update_that_fails_says_why_and_changes_nothing() -> None:
    storage = tf.StorageOption(es.StorageType.DRAM, storage_size=[2 * 64])
    variable = tf.get_embedding_variable(
        "var", 4, ev_option=tf.EmbeddingVariableOption(storage_option=storage)
    )
    ids = tf.placeholder(tf.int64, [None])
    loss = tf.reduce_sum(tf.nn.embedding_lookup(variable, ids))
    train = tf.train.GradientDescentOptimizer(0.1).minimize(
        loss, global_step=tf.train.get_or_create_global_step()
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {ids: [1, 2]})
        with pytest.raises(tf.errors.OpError, match="StoreFullError"):
            session.run(train, {ids: range(100)})
        assert session.run(variable.total_count())[0] == 2
        assert session.run(tf.train.get_global_step()) == 1
