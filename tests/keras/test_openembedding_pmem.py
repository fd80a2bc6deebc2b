"""OpenEmbedding's guide to persistent memory: checkpoints of the pools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_models import keras
from openembedding_models import (
    close,
    network,
    on_pmem,
    predictions,
    save_to_pools,
    tables_of,
    train,
)

import embstore.openembedding as embed
from embstore.errors import CheckpointError, InvalidArgumentError, StorageError

pytestmark = [pytest.mark.timeout(120), pytest.mark.any_backend]


@pytest.fixture(autouse=True)
def pools_as_in_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts pools in tmp_path, and has `model.save` make checkpoints of them. Closes the models."""
    monkeypatch.setattr(embed.flags, "config", on_pmem(tmp_path / "pmem"))
    monkeypatch.setattr(embed.exb, "save_server_model", save_to_pools)
    monkeypatch.setattr(embed.exb, "load_server_model", embed.restore_server_model)
    yield
    for model in _made:
        close(model)
    _made.clear()


_made: list[Any] = []


def model_on_pmem(**arguments: Any) -> Any:
    _made.append(network(optimizer=keras.optimizers.Adagrad(0.1), **arguments))
    return _made[-1]


def any_key_on_pmem() -> Any:
    return model_on_pmem(make=embed.Embedding, ids=-1)


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
import embstore.openembedding as embed
from keras_models import keras
from openembedding_models import network, on_pmem, predictions, save_to_pools, train

folder = Path(sys.argv[1])
embed.flags.config = on_pmem(folder / "pmem")
embed.exb.save_server_model = save_to_pools
embed.exb.load_server_model = embed.restore_server_model
model = network(embed.Embedding, -1, keras.optimizers.Adagrad(0.1))
train(model, seed=1)
model.save(folder / "A")
np.save(folder / "predictions.npy", predictions(model))
np.save(folder / "losses.npy", train(model, seed=2))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_killed_process_continues_from_its_last_checkpoint(tmp_path: Path) -> None:
    program = [sys.executable, "-c", KILLED, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(program, env=environment, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    model = any_key_on_pmem()
    model.load_weights(tmp_path / "A")
    np.testing.assert_array_equal(predictions(model), np.load(tmp_path / "predictions.npy"))
    assert train(model, seed=2) == list(np.load(tmp_path / "losses.npy"))


def test_rows_stay_in_their_pools_and_a_save_is_small(tmp_path: Path) -> None:
    model = any_key_on_pmem()
    train(model)
    model.save(tmp_path / "B")
    rows = tables_of(model)[0].variable.total_count()[0]
    assert rows > 50
    held = [path for path in (tmp_path / "B" / "openembedding").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in held) < 4 * rows


def test_the_previous_save_can_be_restored_too(tmp_path: Path) -> None:
    model = model_on_pmem()
    saved = {}
    for name in ("first", "second"):
        train(model)
        model.save(tmp_path / name)
        saved[name] = predictions(model)
    for name in ("second", "first"):
        close(model)
        model = model_on_pmem()
        model.load_weights(tmp_path / name)
        np.testing.assert_array_equal(predictions(model), saved[name])


def test_every_row_may_change_between_saves(tmp_path: Path) -> None:
    model = model_on_pmem(ids=6000)  # more than the places that a pool has beside its share
    variable = tables_of(model)[0].variable
    keys = np.arange(6000)
    for number in range(4):
        variable.apply_gradients(keys, np.ones((keys.size, variable.dim), np.float32))
        model.save(tmp_path / f"{number}")


@pytest.mark.parametrize("shards", [None, 2])
def test_a_model_with_a_smaller_cache_takes_over_its_pools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int | None
) -> None:
    def made(cache_mb: int) -> Any:
        monkeypatch.setattr(embed.flags, "config", on_pmem(tmp_path / "pmem", cache_mb))
        return model_on_pmem(make=embed.Embedding, ids=-1, num_shards=shards)

    model = made(cache_mb=2)
    train(model)
    model.save(tmp_path / "B")
    saved = predictions(model)
    close(model)
    fresh = made(cache_mb=1)
    fresh.load_weights(tmp_path / "B")
    np.testing.assert_array_equal(predictions(fresh), saved)


def test_a_save_whose_checkpoint_was_given_up_is_refused(tmp_path: Path) -> None:
    model = model_on_pmem()
    for name in ("first", "second"):
        train(model, epochs=1)
        model.save(tmp_path / name)
    close(model)
    model = model_on_pmem()
    model.load_weights(tmp_path / "first")
    with pytest.raises(CheckpointError, match="names checkpoint 2"):
        model.load_weights(tmp_path / "second")
    close(model)
    model = model_on_pmem()
    model.load_weights(tmp_path / "first")
    train(model, epochs=1)
    model.save(tmp_path / "other")  # takes the number of the second checkpoint
    with pytest.raises(CheckpointError, match="was given up"):
        model.load_weights(tmp_path / "second")


def test_a_checkpoint_of_other_tables_changes_nothing_of_the_model(tmp_path: Path) -> None:
    def unnamed() -> Any:
        ids = keras.Input((2,), dtype="int64")
        rows = keras.layers.Embedding(1000, 4, embeddings_initializer="zeros")(ids)
        output = keras.layers.Dense(1)(keras.layers.Flatten()(rows))
        _made.append(embed.distributed_model(keras.Model(ids, output)))
        _made[-1].compile(keras.optimizers.Adagrad(0.1), "mse")
        return _made[-1]

    model, other = unnamed(), unnamed()
    model.save(tmp_path / "B")
    before = other.layers[-1].get_weights()[0]
    with pytest.raises(CheckpointError, match=r"give its layers the names .*clear_session\(\)"):
        other.load_weights(tmp_path / "B")
    np.testing.assert_array_equal(other.layers[-1].get_weights()[0], before)


def test_a_model_file_keeps_its_rows_in_the_pool_as_well(tmp_path: Path) -> None:
    model = model_on_pmem()
    every_epoch = keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.keras"))
    train(model, epochs=2, callbacks=[every_epoch])
    saved = predictions(model)
    close(model)
    fresh = model_on_pmem()
    fresh.load_weights(tmp_path / "2.keras")
    np.testing.assert_array_equal(predictions(fresh), saved)


def test_checkpoints_are_made_while_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AutoPersist(keras.callbacks.Callback):  # type: ignore[misc]
        saves = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            del batch, logs
            if embed.should_persist_server_model(self.model):
                AutoPersist.saves += 1
                self.model.save(tmp_path / f"auto{AutoPersist.saves}")

    def save_in_the_background(model: Any, filepath: str, include_optimizer: bool = True) -> None:
        del include_optimizer
        embed.persist_server_model(model, filepath, 2)

    monkeypatch.setattr(embed.exb, "save_server_model", save_in_the_background)
    model = any_key_on_pmem()
    assert not embed.should_persist_server_model(model), "there is nothing in the cache"
    variable = tables_of(model)[0].variable
    variable.lookup(np.arange(5))
    rows_in_cache = variable.stats()["tiers"][0]["capacity_rows"]
    keys = np.arange(2 * rows_in_cache)
    variable.apply_gradients(keys, np.ones((keys.size, variable.dim), np.float32))
    variable.drain()
    for _ in range(100):  # no other is due while one is pending
        train(model, callbacks=[AutoPersist()])
        if AutoPersist.saves >= 2:
            break
    assert AutoPersist.saves >= 2
    close(model)  # waits for pending checkpoints
    fresh = any_key_on_pmem()
    fresh.load_weights(tmp_path / f"auto{AutoPersist.saves}")
    assert tables_of(fresh)[0].variable.total_count()[0] >= keys.size


def test_new_training_on_pools_with_checkpoints_is_refused(tmp_path: Path) -> None:
    model = model_on_pmem()
    train(model, epochs=1)
    model.save(tmp_path / "B")
    close(model)
    with pytest.raises(Exception, match="holds checkpoints of an earlier run"):
        train(model_on_pmem(), epochs=1)


def test_a_model_without_pools_is_not_persisted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed.flags, "config", "")
    model = model_on_pmem()
    with pytest.raises(InvalidArgumentError, match="pmem_pool_root_path"):
        embed.persist_server_model(model, tmp_path / "B", 0)
    with pytest.raises(InvalidArgumentError, match="durability"):
        embed.should_persist_server_model(model)


def test_a_model_without_tables_is_not_persisted(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="model: has no tables; pass the model that"):
        embed.persist_server_model(network(), tmp_path / "B", 0)


def test_bad_arguments_of_pool_checkpoints_are_named(tmp_path: Path) -> None:
    model = model_on_pmem()
    with pytest.raises(InvalidArgumentError, match="persist_pending_window"):
        embed.persist_server_model(model, tmp_path / "B", 7)
    with pytest.raises(InvalidArgumentError, match="URI"):
        embed.persist_server_model(model, "mem://null/1", 0)
    with pytest.raises(StorageError, match=r"persisted\.json: can't be read"):
        embed.restore_server_model(model, tmp_path / "B")
    (tmp_path / "B").mkdir()
    os.mkfifo(tmp_path / "B" / "persisted.json")
    with pytest.raises(CheckpointError, match="is not a file"):
        embed.restore_server_model(model, tmp_path / "B")
    (tmp_path / "B" / "persisted.json").unlink()
    (tmp_path / "B" / "persisted.json").write_text("{}")
    with pytest.raises(CheckpointError, match="isn't what persist_server_model writes"):
        embed.restore_server_model(model, tmp_path / "B")
