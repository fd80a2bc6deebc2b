"""Keras models with tables in other processes get the same bits as models with local tables."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sharded import MIB, assert_same, remote_shards

import embstore as es

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")

SHARDS, KEYS, DIM = 2, 200, 8

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]


def samples(seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    random = np.random.RandomState(seed)
    ids = (KEYS * random.rand(128, 3) ** 2).astype(np.int64)
    return ids, (ids.sum(axis=1, keepdims=True) % 2).astype(np.float32)


def model_over(embedding: Any) -> Any:
    keras.utils.set_random_seed(5)
    ids = keras.Input((3,), dtype="int64")
    hidden = keras.layers.Flatten()(embedding(ids))
    return keras.Model(ids, keras.layers.Dense(1, activation="sigmoid")(hidden))


def compiled(model: Any) -> Any:
    model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    return model


def local_and_sharded() -> tuple[Any, Any]:
    """Returns compiled models over local partitions, and over shards."""

    def over(partition_num: int, shards: int | None) -> Any:
        start = es.initializers.RandomUniform(seed=3)
        return compiled(
            model_over(
                es.keras.Embedding(
                    None, DIM, start, name="table", partition_num=partition_num, shards=shards
                )
            )
        )

    return over(SHARDS, None), over(1, SHARDS)


def train(model: Any, seed: int = 0) -> list[float]:
    ids, labels = samples(seed)
    history = model.fit(ids, labels, batch_size=32, epochs=2, shuffle=False, verbose=0)
    losses: list[float] = history.history["loss"]
    return losses


def predictions(model: Any) -> NDArray[np.float32]:
    predicted: NDArray[np.float32] = model.predict(samples()[0], verbose=0)
    return predicted


def table_of(model: Any) -> es.EmbeddingVariable:
    variable: es.EmbeddingVariable = es.keras.variables(model)[0]
    return variable


def close(*models: Any) -> None:
    for model in models:
        for variable in es.keras.variables(model):
            variable.close()


def test_a_model_on_shards_trains_saves_and_loads_like_one_with_a_local_table(
    tmp_path: Path,
) -> None:
    here, there = local_and_sharded()
    assert train(there) == train(here)
    assert len(remote_shards(table_of(there))) == SHARDS
    assert_same(table_of(there).export(), table_of(here).export())
    np.testing.assert_array_equal(predictions(there), predictions(here))
    there.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(remote_shards(table_of(loaded))) == SHARDS
    np.testing.assert_array_equal(predictions(loaded), predictions(here))
    assert train(loaded, seed=1) == train(here, seed=1)
    close(here, there, loaded)


@pytest.mark.long
def test_weights_go_from_sharded_to_local_tables_and_back(tmp_path: Path) -> None:
    here, there = local_and_sharded()
    train(there)
    there.save_weights(tmp_path / "there.weights.h5")
    here.load_weights(tmp_path / "there.weights.h5")
    np.testing.assert_array_equal(predictions(here), predictions(there))
    es.save(tmp_path / "rows", [table_of(here)], 1)
    train(there)
    es.restore(tmp_path / "rows", [table_of(there)])
    assert_same(table_of(there).export(), table_of(here).export())
    close(here, there)


@pytest.mark.long
def test_tables_of_a_distributed_embedding_and_of_a_converted_model_can_have_shards() -> None:
    table = es.keras.TableConfig("items", KEYS, DIM, optimizer="adagrad", shards=SHARDS)
    config = es.keras.FeatureConfig("clicked", table)
    layer = es.keras.DistributedEmbedding(config)
    (embedding,) = (each for each in layer._flatten_layers() if each is not layer)
    assert embedding.shards == SHARDS
    again = es.keras.DistributedEmbedding.from_config(layer.get_config())
    assert again.get_config()["tables"][0]["shards"] == SHARDS
    original = model_over(keras.layers.Embedding(KEYS, DIM, name="table"))
    model = compiled(es.keras.distributed_model(original, shards=SHARDS))
    train(model)
    assert len(remote_shards(table_of(model))) == SHARDS
    close(model)


def test_partitions_and_shards_are_not_both_given() -> None:
    with pytest.raises(es.errors.InvalidArgumentError, match="partition_num must be left at 1"):
        es.keras.Embedding(None, DIM, partition_num=2, shards=2)
    with pytest.raises(es.errors.InvalidArgumentError, match="shards"):
        es.keras.TableConfig("items", None, DIM, shards=0)


# --- OpenEmbedding programs, with the servers of flags.master_endpoint


@pytest.fixture
def served(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import embstore.openembedding as embed

    config = {"server": {"pmem_pool_root_path": str(tmp_path / "pmem"), "cache_size": 1}}
    monkeypatch.setattr(embed.flags, "config", json.dumps(config))
    endpoint = ray.get_runtime_context().gcs_address
    monkeypatch.setattr(embed.flags, "master_endpoint", endpoint)
    monkeypatch.setattr(embed.flags, "wait_num_servers", 1)
    monkeypatch.setattr(embed.exb, "load_server_model", embed.restore_server_model)
    monkeypatch.setattr(
        embed.exb,
        "save_server_model",
        lambda model, path, **_: embed.persist_server_model(model, path, 0),
    )
    return embed


@pytest.mark.long
def test_a_model_continues_from_a_checkpoint_of_its_servers(served: Any, tmp_path: Path) -> None:
    def served_model() -> Any:
        layer = keras.layers.Embedding(KEYS, DIM, name="table")
        return compiled(served.distributed_model(model_over(layer), num_shards=SHARDS))

    model = served_model()
    train(model)
    model.save(tmp_path / "A")
    saved = predictions(model)
    assert len(remote_shards(table_of(model))) == SHARDS
    assert table_of(model).stats()["tiers"][0]["capacity_rows"] < MIB
    losses = train(model, seed=1)
    close(model)
    fresh = served_model()
    fresh.load_weights(tmp_path / "A")
    np.testing.assert_array_equal(predictions(fresh), saved)
    assert train(fresh, seed=1) == losses
    close(fresh)


@pytest.mark.long
@pytest.mark.parametrize("in_pools", [False, True], ids=["in DRAM", "in pools"])
def test_a_relative_path_is_relative_to_the_programs_folder(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_pools: bool
) -> None:
    """It isn't relative to the servers' folder."""
    from embstore.openembedding import checkpoints

    monkeypatch.chdir(tmp_path)
    server = {"pmem_pool_root_path": "pools", "cache_size": 1, "checkpoint_path": "listed"}
    monkeypatch.setattr(served.flags, "config", json.dumps({"server": server} if in_pools else {}))
    if not in_pools:
        monkeypatch.setattr(served.exb, "save_server_model", checkpoints.save_server_model)
        monkeypatch.setattr(served.exb, "load_server_model", checkpoints.load_server_model)

    def served_model() -> Any:
        layer = keras.layers.Embedding(KEYS, DIM, name="table")
        return compiled(served.distributed_model(model_over(layer), num_shards=SHARDS))

    model = served_model()
    train(model)
    model.save("A")
    saved = predictions(model)
    train(model, seed=1)
    close(model)
    fresh = served_model()
    fresh.load_weights("A")
    np.testing.assert_array_equal(predictions(fresh), saved)
    close(fresh)
    expected = {"A"} | ({"pools", "listed"} if in_pools else set())
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_without_a_number_each_server_has_one_shard(served: Any) -> None:
    assert served.Embedding(-1, DIM).shards == 1


def test_a_cluster_other_than_the_programs_is_refused(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.flags, "master_endpoint", "127.0.0.1:1")
    with pytest.raises(es.errors.InvalidArgumentError, match="is at the Ray cluster"):
        served.Embedding(-1, DIM)
