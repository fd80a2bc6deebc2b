"""`embstore.keras.DistributedEmbedding`: features looked up in tables and combined per sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_models import keras
from numpy.typing import NDArray

import embstore as es
from embstore.errors import InvalidArgumentError
from embstore.keras import DistributedEmbedding, FeatureConfig, TableConfig

pytestmark = pytest.mark.timeout(120)

DIM = 3
IDS = np.array([[4, 2**50, 4], [-7, 9, 0]], np.int64)
WEIGHTS = np.array([[1.0, 0.5, 2.0], [0.0, 3.0, 0.0]], np.float32)


def table(name: str = "items", **arguments: Any) -> TableConfig:
    arguments = {"vocabulary_size": None, "embedding_dim": DIM, **arguments}
    return TableConfig(name, **arguments)


def layer_of(combiner: str) -> DistributedEmbedding:
    feature = FeatureConfig("bag", table(combiner=combiner), (None, 3), (None, DIM))
    return DistributedEmbedding({"bag": feature})


def combined(rows: NDArray[Any], weights: NDArray[Any], combiner: str) -> NDArray[Any]:
    """Returns the expected result for rows (length, dim) and weights (length,)."""
    summed: NDArray[Any] = (rows * weights[:, None]).sum(axis=0)
    divisor = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[combiner]
    result: NDArray[Any] = summed / divisor
    return result


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_combined_by_the_combiner(combiner: str, weighted: bool) -> None:
    layer = layer_of(combiner)
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    given = ({"bag": IDS}, {"bag": WEIGHTS}) if weighted else ({"bag": IDS},)
    result = keras.ops.convert_to_numpy(layer(*given)["bag"])
    rows = layer.variables_by_table["items"].lookup(IDS)
    expected = [combined(rows[i], weights[i], combiner) for i in range(len(IDS))]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_a_sample_without_weight_is_zero(combiner: str) -> None:
    result = layer_of(combiner)({"bag": IDS}, {"bag": np.zeros_like(WEIGHTS)})["bag"]
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(result), 0)


def test_one_id_per_sample_gives_its_row() -> None:
    layer = DistributedEmbedding(FeatureConfig("one", table()))
    result = keras.ops.convert_to_numpy(layer(IDS[:, 0]))
    np.testing.assert_array_equal(result, layer.variables_by_table["items"].lookup(IDS[:, 0]))


@pytest.mark.parametrize("policy", ["float16", "mixed_float16", "float32"])
def test_combined_rows_have_the_layers_dtype_in_calls_and_in_symbolic_calls(policy: str) -> None:
    layer = DistributedEmbedding({"bag": FeatureConfig("bag", table())}, dtype=policy)
    asked = {"bag": keras.Input((3,), dtype="int64")}
    found = layer({"bag": IDS})["bag"]
    assert keras.backend.standardize_dtype(found.dtype) == layer.compute_dtype
    assert layer(asked)["bag"].dtype == layer.compute_dtype


def two_towers(items: TableConfig, users: TableConfig) -> Any:
    inputs = {
        "liked": keras.Input((3,), dtype="int64", name="liked"),
        "shown": keras.Input((), dtype="int64", name="shown"),
        "user": keras.Input((), dtype="int64", name="user"),
    }
    layer = DistributedEmbedding(
        {
            "liked": FeatureConfig("liked", items),
            "shown": FeatureConfig("shown", items),
            "user": FeatureConfig("user", users),
        },
        name="embeddings",
    )
    rows = layer(inputs)
    hidden = keras.layers.Concatenate()([rows["liked"], rows["shown"], rows["user"]])
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def batches() -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float32]]:
    random = np.random.RandomState(5)
    inputs = {
        "liked": random.randint(0, 20, (32, 3)),
        "shown": random.randint(0, 20, 32),
        "user": random.randint(-(2**60), 2**60, 32),
    }
    return inputs, random.rand(32, 1).astype(np.float32)


def test_each_table_is_trained_by_its_own_optimizer_and_shared_by_its_features() -> None:
    users = table("users", optimizer=es.optimizers.Adagrad(0.3))
    model = two_towers(table(optimizer=keras.optimizers.Adam(0.01)), users)
    inputs, labels = batches()
    model.fit(inputs, labels, batch_size=32, epochs=3, verbose=0)
    tables = model.get_layer("embeddings").variables_by_table
    assert type(tables["items"].optimizer) is es.optimizers.Adam
    assert tables["items"].learning_rate == pytest.approx(0.01)
    assert tables["users"].optimizer == es.optimizers.Adagrad(0.3)
    items = tables["items"].export()
    np.testing.assert_array_equal(
        items["keys"], np.unique(np.concatenate([inputs["liked"].ravel(), inputs["shown"]]))
    )
    assert items["freqs"].sum() == 3 * 32 * 4
    assert items["versions"].max() == 2, "both features are one step"
    np.testing.assert_array_equal(tables["users"].export()["keys"], np.unique(inputs["user"]))


def test_the_model_trains_a_table_without_an_optimizer() -> None:
    model = two_towers(table(optimizer=None), table("users", optimizer=None))
    inputs, labels = batches()
    model.fit(inputs, labels, verbose=0)
    tables = model.get_layer("embeddings").variables_by_table
    assert all(type(one.optimizer) is es.optimizers.SGD for one in tables.values())


def test_a_saved_model_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.3, 2, 0.5)
    users = table("users", optimizer=keras.optimizers.Adagrad(schedule))
    model = two_towers(table(), users)
    inputs, labels = batches()
    model.fit(inputs, labels, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    histories = [
        one.fit(inputs, labels, epochs=2, shuffle=False, verbose=0).history["loss"]
        for one in (model, loaded)
    ]
    assert histories[0] == histories[1]
    assert len(loaded.get_layer("embeddings").variables_by_table) == 2, "the items are shared"
    assert len(es.keras.variables(loaded)) == 2


@pytest.mark.parametrize("serves", [False, True])
def test_an_evaluation_moves_no_row_and_a_layer_that_serves_does(
    serves: bool, tmp_path: Path
) -> None:
    option = es.EmbeddingVariableOption(es.StorageOption("dram_ssdhash", tmp_path, [16]))
    items = table(ev_option=option, optimizer=es.optimizers.SGD(0.1))
    layer = DistributedEmbedding(FeatureConfig("one", items))
    layer.serves = serves
    assert layer.serves is serves
    rows = layer.variables_by_table["items"]
    rows.apply_gradients([1, 1, 1, 2], np.ones((4, DIM), np.float32))
    rows.drain()
    model = keras.Sequential([keras.Input((), dtype="int64"), layer])
    model.predict(np.full(5, 2), verbose=0)
    rows.drain()
    assert rows.lookup_tier([1, 2]).tolist() == ([1, 0] if serves else [0, 1])


def test_rows_of_tables_are_returned_by_name() -> None:
    layer = DistributedEmbedding([FeatureConfig("one", table(vocabulary_size=5))])
    tables = layer.get_embedding_tables()
    assert {name: rows.shape for name, rows in tables.items()} == {"items": (5, DIM)}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: DistributedEmbedding({}), "feature_configs"),
        (lambda: DistributedEmbedding({"a": 1}), "feature_configs"),
        (lambda: FeatureConfig("a", "items"), "table"),  # type: ignore[arg-type]
        (lambda: FeatureConfig("a", table(), None, (None, DIM + 1)), "output_shape"),
        (lambda: FeatureConfig("a", table(), 5), "input_shape of the feature a"),  # type: ignore[arg-type]
        (lambda: FeatureConfig("a", table(), None, ()), "output_shape of the feature a"),
        (lambda: table(vocabulary_size=0), "vocabulary_size must be at least 1"),
        (lambda: table(vocabulary_size=-5), "vocabulary_size must be at least 1"),
        (lambda: table(vocabulary_size="5"), "vocabulary_size must be an integer"),
        (lambda: table(vocabulary_size=2.5), "vocabulary_size must be an integer"),
        (lambda: table(combiner="max"), "combiner"),
        (lambda: table(placement="sparsecore"), "placement"),
        (lambda: table(embedding_dim=0), "embedding_dim"),
        (lambda: table(""), "name"),
        (lambda: table("\ud800"), "name"),
        (lambda: table("a/b"), "name"),
        (
            lambda: DistributedEmbedding(
                [FeatureConfig("a", table()), FeatureConfig("b", table())]
            ),
            "same TableConfig",
        ),
        (lambda: layer_of("sum")({"other": IDS}), "inputs"),
        (lambda: layer_of("sum")({"bag": IDS[:, :2]}), r"have its input_shape, \(None, 3\), got"),
        (lambda: layer_of("sum")({"bag": IDS}, {"bag": WEIGHTS[:, :2]}), "weights"),
    ],
)
def test_bad_arguments_are_named(make: Any, named: str) -> None:
    with pytest.raises(InvalidArgumentError, match=named):
        make()
