"""Models whose embeddings are converted to embstore's tables, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import run_python
from keras_models import (
    DIM,
    KEYS,
    LENGTH,
    adagrad,
    assert_trained_alike,
    fit,
    ids_with_duplicates,
    keras,
    over,
    own_and_theirs,
    predictions,
    rows_of,
)

import embstore as es
from embstore.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.timeout(120)


def test_a_sequential_model_is_converted() -> None:
    theirs = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int64"),
            keras.layers.Embedding(KEYS, DIM, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    theirs.compile(keras.optimizers.SGD(0.5), "mse")
    own = es.keras.distributed_model(theirs)
    assert_trained_alike(own, theirs, ids_with_duplicates())


def test_a_layer_shared_by_nested_models_is_one_table() -> None:
    embedding = keras.layers.Embedding(KEYS, DIM, name="table")
    tower = over(embedding)
    ids = keras.Input((LENGTH,), dtype="int64")
    both = keras.layers.Add()([tower(ids), keras.layers.Flatten()(embedding(ids))])
    theirs = keras.Model(ids, keras.layers.Dense(1)(both))
    theirs.compile(keras.optimizers.SGD(0.1), "mse")
    own = es.keras.distributed_model(theirs)
    assert len(es.keras.variables(own)) == 1
    batches = ids_with_duplicates()
    np.testing.assert_allclose(fit(own, batches), fit(theirs, batches), rtol=1e-5)
    np.testing.assert_allclose(
        es.keras.variables(own)[0].lookup(np.arange(KEYS)),
        embedding.get_weights()[0],
        rtol=1e-4,
        atol=1e-6,
    )


def test_weights_and_compilation_are_taken_over() -> None:
    theirs = over(keras.layers.Embedding(KEYS, DIM, name="table"))
    theirs.compile(adagrad(), "mse", metrics=["mae"])
    ids = ids_with_duplicates()
    fit(theirs, ids)
    own = es.keras.distributed_model(theirs)
    np.testing.assert_allclose(predictions(own, ids), predictions(theirs, ids), rtol=1e-6)
    assert type(own.optimizer).__name__ == "Adagrad"
    assert own.evaluate(ids, ids[:, :1], verbose=0, return_dict=True).keys() == {"loss", "mae"}


@pytest.mark.parametrize("how", ["clone_model", "json"])
def test_a_copy_without_weights_has_initial_rows_like_keras(how: str) -> None:
    def copy_of(model: Any) -> Any:
        if how == "json":
            return keras.models.model_from_json(model.to_json())
        return keras.models.clone_model(model)

    own = es.keras.distributed_model(over(keras.layers.Embedding(KEYS, DIM, name="table")))
    rows = rows_of(copy_of(own))
    assert 0.03 < np.abs(rows).max() <= 0.05, "Keras's uniform"
    assert len(np.unique(rows, axis=0)) == KEYS
    matrix = np.random.RandomState(1).rand(KEYS, DIM).astype(np.float32)
    given = keras.layers.Embedding(
        KEYS, DIM, keras.initializers.Constant(matrix.tolist()), name="table"
    )
    own = es.keras.distributed_model(over(given))
    own.compile(adagrad(), "mse")
    fit(own, ids_with_duplicates())
    np.testing.assert_array_equal(rows_of(copy_of(own)), matrix)


def test_a_configuration_contains_no_large_tables() -> None:
    layer = es.keras.Embedding(2**18, 8, es.initializers.Constant(np.ones((2**18, 8), np.float32)))
    assert layer.get_config()["embeddings_initializer"] == "zeros"


def test_each_embedding_may_have_options_of_its_own() -> None:
    def option(layer: Any) -> es.EmbeddingVariableOption:
        return es.EmbeddingVariableOption(filter_option=es.CounterFilter(layer.input_dim))

    theirs = over(keras.layers.Embedding(KEYS, DIM, name="table"))
    own = es.keras.distributed_model(theirs, ev_option=option)
    assert own.get_layer("table").ev_option.filter_option == es.CounterFilter(KEYS)


@pytest.mark.long
def test_the_original_model_runs_without_embstore(tmp_path: Path) -> None:
    own, _ = own_and_theirs(adagrad)
    ids = ids_with_duplicates()
    fit(own, ids)
    es.keras.save_as_original_model(own, tmp_path / "original.keras")
    np.save(tmp_path / "ids.npy", ids)
    program = f"""
import sys
sys.modules["embstore"] = None
import keras, numpy as np
model = keras.models.load_model({str(tmp_path / "original.keras")!r})
assert type(model.get_layer("table")) is keras.layers.Embedding
ids = np.load({str(tmp_path / "ids.npy")!r})
np.save({str(tmp_path / "predicted.npy")!r}, model.predict(ids, verbose=0))
"""
    ended = run_python(program)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "predicted.npy"), predictions(own, ids))


def test_converting_a_model_and_back_gives_the_same_model(tmp_path: Path) -> None:
    own, theirs = own_and_theirs(adagrad)
    es.keras.save_as_original_model(own, tmp_path / "original.keras")
    original = keras.models.load_model(tmp_path / "original.keras")
    np.testing.assert_array_equal(rows_of(original), rows_of(theirs))


def test_a_table_of_any_int64_has_no_original(tmp_path: Path) -> None:
    model = over(es.keras.Embedding(None, DIM, name="table"))
    with pytest.raises(InvalidArgumentError, match="table takes any int64"):
        es.keras.save_as_original_model(model, tmp_path / "original.keras")


def test_models_that_cannot_be_converted_are_refused() -> None:
    class Derived(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = keras.layers.Embedding(KEYS, DIM)

        def call(self, inputs: Any) -> Any:
            return self.embedding(inputs)

    with pytest.raises(UnsupportedError, match="Sequential or functional"):
        es.keras.distributed_model(Derived())
    regularized = over(keras.layers.Embedding(KEYS, DIM, embeddings_regularizer="l2"))
    with pytest.raises(UnsupportedError, match="regularizer"):
        es.keras.distributed_model(regularized)
    ids = keras.Input((LENGTH,), dtype="int64")
    with pytest.raises(UnsupportedError, match="out of reach"):
        es.keras.distributed_model(keras.Model(ids, Derived()(ids)))

    class Refusing(keras.layers.Layer):  # type: ignore[misc]
        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            raise ValueError(f"{config['name']} complains")

        def call(self, inputs: Any) -> Any:
            return inputs

    refusing = keras.Sequential([keras.layers.Embedding(KEYS, DIM), Refusing(name="refusing")])
    with pytest.raises(ValueError, match=r"^refusing complains$"):
        es.keras.distributed_model(refusing)
    without = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(InvalidArgumentError, match=r"no keras\.layers\.Embedding"):
        es.keras.distributed_model(without)
