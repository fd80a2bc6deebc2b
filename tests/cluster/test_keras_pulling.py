"""Keras models get the same bits with prefetching and without."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sharded import assert_same
from tables_behind_sockets import TablesBehindSockets

import embstore as es
from embstore.errors import InvalidArgumentError, UnsupportedError

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")

from embstore.keras.look_ups import LookUps  # noqa: E402

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
KEYS, DIM, BATCH, BATCHES, LENGTH = 200, 4, 16, 6, 3

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("served")]
on_torch = pytest.mark.skipif(ON_TENSORFLOW, reason="PyTorch's")

# Room in HBM for the rows of one batch, with Adam's two slots.
ON_A_GPU = es.EmbeddingVariableOption(
    storage_option=es.StorageOption(
        es.StorageType.HBM_DRAM,
        storage_size=[BATCH * (2 * LENGTH + 1) * 64, 1 << 20],
        device="emulated",
    )
)

Arrays = tuple[dict[str, NDArray[Any]], NDArray[np.float32]]


def samples(seed: int = 0) -> Arrays:
    random = np.random.RandomState(seed)
    count = BATCH * BATCHES - 5  # the last batch is smaller
    items = (KEYS * random.rand(count, LENGTH) ** 2).astype(np.int64)
    users = (KEYS * random.rand(count) ** 2).astype(np.int32)
    labels = (items.sum(axis=1, keepdims=True) % 2).astype(np.float32)
    return {"items": items, "users": users}, labels


# --- Models


def embedding(name: str, **where: Any) -> Any:
    start = es.initializers.RandomUniform(seed=3)
    return es.keras.Embedding(None, DIM, start, name=name, **where)


def inputs() -> dict[str, Any]:
    return {
        "items": keras.Input((LENGTH,), dtype="int64", name="items"),
        "users": keras.Input((1,), dtype="int32", name="users"),
    }


def head(*rows: Any) -> Any:
    flat = [keras.layers.Flatten()(each) for each in rows]
    return keras.layers.Dense(1, activation="sigmoid")(keras.layers.Concatenate()(flat))


def model_of_one_table(**where: Any) -> Any:
    """Makes a model with one table that several features share, one of them computed."""
    given, table = inputs(), embedding("table", **where)
    users = keras.ops.cast(given["users"], "int64")
    rows = [table(given["items"]), table(users), table((given["items"] + users) % KEYS)]
    return keras.Model(given, head(*rows))


def model_of_nested_models(**where: Any) -> Any:
    given = inputs()
    ids = keras.Input((LENGTH,), dtype="int64")
    tower = keras.Model(ids, embedding("table", **where)(ids + 1))
    second = keras.Sequential([keras.Input((1,), dtype="int64"), embedding("users", **where)])
    users = keras.ops.cast(given["users"], "int64")
    return keras.Model(given, head(tower(given["items"]), tower(given["items"] * 2), second(users)))


def model_of_a_distributed_embedding(**where: Any) -> Any:
    given = inputs()
    table = es.keras.TableConfig("table", None, DIM, combiner="sum", **where)
    layer = es.keras.DistributedEmbedding(
        {name: es.keras.FeatureConfig(name, table) for name in ("items", "users")}
    )
    rows = layer({"items": given["items"], "users": keras.ops.cast(given["users"], "int64")})
    return keras.Model(given, head(*rows.values()))


MODELS = [model_of_one_table, model_of_nested_models, model_of_a_distributed_embedding]


def compiled(make: Callable[..., Any], **where: Any) -> Any:
    keras.utils.set_random_seed(5)
    model = make(**where)
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["mae"])
    return model


# --- Data


class Batches(keras.utils.PyDataset):  # type: ignore[misc,name-defined]
    def __init__(self, arrays: Arrays, **options: Any) -> None:
        super().__init__(**options)
        self._inputs, self._labels = arrays

    def __len__(self) -> int:
        return -(-len(self._labels) // BATCH)

    def __getitem__(self, number: int) -> Arrays:
        rows = slice(number * BATCH, (number + 1) * BATCH)
        return {name: ids[rows] for name, ids in self._inputs.items()}, self._labels[rows]


def as_batches(arrays: Arrays) -> Any:
    return Batches(arrays)


def as_batches_of_threads(arrays: Arrays) -> Any:
    return Batches(arrays, workers=3)


def as_generator(arrays: Arrays) -> Any:
    batches = Batches(arrays)
    return (batches[number] for _ in range(3) for number in range(len(batches)))


def as_data_loader(arrays: Arrays) -> Any:
    from torch.utils.data import DataLoader

    inputs, labels = arrays
    rows = [
        ({name: ids[row] for name, ids in inputs.items()}, labels[row])
        for row in range(len(labels))
    ]
    return DataLoader(rows, batch_size=BATCH)  # type: ignore[arg-type]


def as_tensorflow_dataset(arrays: Arrays) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)


DATASETS = (
    [as_tensorflow_dataset]
    if ON_TENSORFLOW
    else [as_batches, as_batches_of_threads, as_generator, as_data_loader]
)
as_backends_dataset = DATASETS[0]


# --- Tests


@pytest.mark.parametrize(
    ("make", "as_dataset"),
    [(make, as_backends_dataset) for make in MODELS]
    + [
        pytest.param(model_of_one_table, as_dataset, marks=pytest.mark.long)
        for as_dataset in DATASETS[1:]
    ],
)
def test_fit_gives_the_same_losses_and_rows(
    make: Callable[..., Any], as_dataset: Callable[..., Any]
) -> None:
    histories, exports = [], []
    for where, is_pulled in (({"shards": 2}, True), ({"shards": 2}, False), ({}, True)):
        model = compiled(make, **where)
        dataset = as_dataset(samples())
        if is_pulled:
            dataset = es.keras.prefetching(dataset, model, shuffle=False)
        fitted = model.fit(
            dataset,
            epochs=3,
            steps_per_epoch=BATCHES if as_dataset is as_generator else None,
            shuffle=False,
            validation_data=as_backends_dataset(samples(1)),
            verbose=0,
        )
        histories.append(fitted.history)
        exports.append([table.export() for table in es.keras.variables(model)])
        for table in es.keras.variables(model):
            table.close()
    for history, rows in zip(histories[1:], exports[1:], strict=True):
        assert history == histories[0]
        for got, wanted in zip(rows, exports[0], strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize("make", MODELS)
def test_the_next_batch_is_read_before_the_step_that_looks_it_up(
    make: Callable[..., Any],
) -> None:
    """The first batch of an epoch is an exception."""
    model = compiled(make, shards=2)
    own: list[bool] = []
    tables = es.keras.variables(model)
    for table in tables:
        take = table.internals.prefetched.take

        def counted(ids: Any, take: Any = take) -> Any:
            rows = take(ids)
            own.append(rows is None)
            return rows

        table.internals.prefetched.take = counted  # type: ignore[method-assign]
    model.fit(
        es.keras.prefetching(as_backends_dataset(samples()), model, shuffle=False),
        validation_data=as_backends_dataset(samples(1)),
        epochs=2,
        verbose=0,
    )
    of_a_batch = sum(1 for _ in LookUps(model).layers())
    assert len(own) == 2 * BATCHES * of_a_batch
    assert sum(own) <= 2 * of_a_batch


@on_torch
def test_the_shards_have_read_the_next_batch_when_its_step_begins(
    served: TablesBehindSockets,
) -> None:
    model = compiled(model_of_one_table, shards=2)
    batches = iter(es.keras.prefetching(Batches(samples()), model, shuffle=False))
    for _ in range(2):
        model.train_on_batch(*next(batches))
    following = next(batches)
    of_a_batch = BATCH * (LENGTH + 1 + LENGTH)
    deadline = time.monotonic() + 20
    while served.looked_up() < 3 * of_a_batch:
        assert time.monotonic() < deadline, "nothing was asked for"
        time.sleep(0.01)
    loss = model.compute_loss(y=following[1], y_pred=model(following[0], training=True))
    assert served.looked_up() == 3 * of_a_batch, "nothing is asked again"
    loss.backward()


def test_a_table_with_hbm_is_trained_to_the_same_bits() -> None:
    exports = []
    for is_pulled, option in ((True, ON_A_GPU), (False, ON_A_GPU), (False, None)):
        model = compiled(model_of_one_table, ev_option=option)
        dataset = as_backends_dataset(samples())
        if is_pulled:
            dataset = es.keras.prefetching(dataset, model, shuffle=False)
        model.fit(dataset, epochs=3, shuffle=False, verbose=0)
        (table,) = es.keras.variables(model)
        exports.append(table.export())
        table.close()
    assert_same(exports[0], exports[2])
    assert_same(exports[1], exports[2])


@on_torch
def test_the_next_batchs_rows_come_up_to_hbm_before_its_step() -> None:
    model = compiled(model_of_one_table, ev_option=ON_A_GPU)
    model.fit(Batches(samples()), shuffle=False, verbose=0)  # makes a row for each id
    (table,) = es.keras.variables(model)
    asked = 0
    for given, labels in es.keras.prefetching(Batches(samples()), model, shuffle=False):
        users = given["users"].reshape(-1, 1)
        ids = np.concatenate([given["items"], users, (given["items"] + users) % KEYS], axis=1)
        table.drain()
        asked += int((table.lookup_tier(np.unique(ids)) == 0).all())
        model.train_on_batch(given, labels)
    assert asked >= BATCHES - 1, "all but the first"


@on_torch
def test_an_epoch_that_ends_early_leaves_nothing_behind() -> None:
    class Stop(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
            if batch == 2:
                raise KeyboardInterrupt

    model = compiled(model_of_one_table, shards=2)
    with pytest.raises(KeyboardInterrupt):
        model.fit(es.keras.prefetching(Batches(samples()), model), callbacks=[Stop()], verbose=0)
    (table,) = es.keras.variables(model)
    gc.collect()  # frees the frames of the error
    assert not table.internals.prefetched._batches
    model.fit(Batches(samples()), verbose=0)


def test_a_frozen_table_is_not_prefetched() -> None:
    model = compiled(model_of_one_table, shards=2)
    model.get_layer("table").trainable = False
    model.compile("sgd", "mse")
    dataset = es.keras.prefetching(as_backends_dataset(samples()), model)
    model.fit(dataset, verbose=0)
    (table,) = es.keras.variables(model)
    assert not table.internals.prefetched._batches


# --- Models that prefetching can't analyse


def test_a_table_that_is_out_of_reach_is_named() -> None:
    class Tower(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = embedding("hidden_table")

        def call(self, ids: Any) -> Any:
            return self.table(ids + 1)

    ids = keras.Input((LENGTH,), dtype="int64")
    model = keras.Model(ids, head(Tower()(ids), ids))
    refused(model, "hidden_table: what it looks up can't be told .* it lies in tower.*, a Tower")


def test_ids_that_come_from_rows_are_refused() -> None:
    ids = keras.Input((LENGTH,), dtype="int64")
    first = embedding("first")(ids)
    chosen = keras.ops.cast(keras.ops.argmax(first, axis=-1), "int64")
    model = keras.Model(ids, head(first, embedding("second")(chosen)))
    refused(model, "first: .* computes ids from its rows")


def test_a_model_with_a_call_of_its_own_is_refused() -> None:
    class Own(keras.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__(name="own")
            self.table = embedding("table")

        def call(self, ids: Any) -> Any:
            return self.table(ids)

    refused(Own(), "own is a Own with a call of its own")
    refused(
        keras.Sequential([embedding("table"), keras.layers.Dense(1)], name="begun"),
        "begun isn't built yet",
    )


def refused(model: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match="model must be compiled first"):
        es.keras.prefetching([], model)
    model.compile("sgd", "mse")
    with pytest.raises(UnsupportedError, match=message):
        es.keras.prefetching(as_backends_dataset(samples()), model)


def test_data_that_fit_does_not_take_is_refused() -> None:
    model = compiled(model_of_one_table)
    refused: list[Any] = [3, np.zeros((4, LENGTH)), iter([]), None, []]
    for dataset in refused:
        with pytest.raises((InvalidArgumentError, UnsupportedError), match="dataset"):
            es.keras.prefetching(dataset, model)


def test_openembeddings_pulling_prefetches() -> None:
    import embstore.openembedding as embed

    model = compiled(model_of_one_table, shards=2)
    model.fit(embed.pulling(as_backends_dataset(samples()), model, steps=-1), verbose=0)
    with pytest.raises(InvalidArgumentError, match="steps must be an integer"):
        embed.pulling(as_backends_dataset(samples()), model, steps="all")  # type: ignore[arg-type]
