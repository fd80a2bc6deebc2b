"""OpenEmbedding's README and examples, run with embstore.openembedding in their import."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import assert_same
from forked import forked
from interpreter import run_python
from keras_models import ON_TENSORFLOW, keras
from openembedding_models import (
    IDS,
    compiled,
    criteo_like,
    network,
    predictions,
    tables_of,
    train,
)

import embstore as es
import embstore.openembedding as embed
from embstore.errors import CheckpointError, InvalidArgumentError, StorageError, UnsupportedError
from embstore.openembedding.model_files import WHOLE, saved_model_files, saving_model

pytestmark = pytest.mark.timeout(120)


def adam() -> Any:
    return keras.optimizers.Adam(0.01)


# --- Transform a model, and train it


def test_large_embeddings_become_tables_and_small_ones_stay_with_the_worker() -> None:
    model = network(optimizer=adam())
    assert [table.name for table in tables_of(model)] == ["C1_rows"]
    assert type(model.get_layer("C2_rows")) is keras.layers.Embedding
    losses = train(model, epochs=4)
    assert losses[-1] < losses[0]
    assert tables_of(model)[0].variable.total_count()[0] == len(np.unique(criteo_like()[0]["C1"]))


def test_the_size_up_to_which_embeddings_stay_can_be_chosen() -> None:
    assert not tables_of(embed.distributed_model(network(), sparse_as_dense_size=IDS))
    assert len(tables_of(embed.distributed_model(network(), sparse_as_dense_size=0))) == 2


def test_a_distributed_model_trains_like_the_original_model() -> None:
    original = network()
    model = embed.distributed_model(original)
    for each in (model, original):
        each.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy")
    np.testing.assert_allclose(train(model), train(original), rtol=1e-5)


def test_a_hooked_embedding_takes_any_int64() -> None:
    class HookEmbedding(embed.Embedding):
        def __init__(
            self,
            input_dim: int = -1,
            output_dim: int = 9,
            embeddings_initializer: Any = "uniform",
            embeddings_regularizer: Any = None,
            **kwargs: Any,
        ) -> None:
            super().__init__(
                input_dim,
                output_dim,
                embeddings_initializer=embeddings_initializer,
                activity_regularizer=embeddings_regularizer,
                num_shards=1,
                **kwargs,
            )

    model = network(HookEmbedding, -1, adam(), embeddings_regularizer="l2")
    inputs, labels = criteo_like()
    inputs["C1"] = (inputs["C1"] + 1) * 1_000_000_007 % (2**63 - 1) - 2**40
    model.fit(inputs, labels, verbose=0)
    trained = tables_of(model)[0].variable.export()["keys"]
    np.testing.assert_array_equal(trained, np.unique(inputs["C1"]))


def test_a_model_of_a_users_class_trains_and_keeps_its_tables(tmp_path: Path) -> None:
    class LogisticRegression(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            zeros = keras.initializers.Zeros()
            self.embeddings = embed.Embedding(
                input_dim=-1, output_dim=1, embeddings_initializer=zeros, num_shards=16
            )
            self.concatenate = keras.layers.Concatenate()
            self.sigmoid = keras.layers.Dense(1, activation="sigmoid")

        def call(self, inputs: Any) -> Any:
            fields = [
                self.embeddings(inputs[name])[:, 0] if name[0] == "C" else inputs[name]
                for name in sorted(inputs)
            ]
            return self.sigmoid(self.concatenate(fields))

    model, fresh = (
        compiled(embed.distributed_model(LogisticRegression()), adam()) for _ in range(2)
    )
    assert tables_of(model)[0].variable.partition_num == 16
    train(model)
    model.save_weights(tmp_path / "weights.weights.h5")
    train(fresh, epochs=1, seed=1)  # Keras loads only into models that were called
    fresh.load_weights(tmp_path / "weights.weights.h5")
    np.testing.assert_array_equal(predictions(fresh), predictions(model))
    with pytest.raises(UnsupportedError, match="Sequential or functional"):
        embed.distributed_model(LogisticRegression(), explicit=True)


@pytest.mark.parametrize("ids", [IDS, -1])
def test_without_an_initializer_rows_are_initialized_as_in_keras(ids: int) -> None:
    layer = embed.Embedding(ids, 4, embeddings_initializer=None, name="rows")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    compiled(embed.distributed_model(model), adam())
    rows = model.predict(np.arange(IDS)[:, None], verbose=0)
    expected = keras.ops.convert_to_numpy(
        keras.initializers.GlorotUniform()((IDS if ids > 0 else 4096, 4))
    )
    np.testing.assert_allclose(np.abs(rows).max(), np.abs(expected).max(), rtol=0.05)
    assert len(np.unique(rows)) > 0.99 * rows.size
    converted = network(optimizer=adam(), embeddings_initializer=None)
    assert len(tables_of(converted)) == 1


def test_options_that_a_table_lacks_are_refused_or_converted() -> None:
    regularized = network(embeddings_regularizer="l2", embeddings_constraint="non_neg")
    (table,) = tables_of(embed.distributed_model(regularized))
    assert isinstance(table.activity_regularizer, keras.regularizers.L2)
    with pytest.raises(InvalidArgumentError, match="embeddings_regularizer"):
        embed.distributed_model(network(embeddings_regularizer="l2"), explicit=True)
    with pytest.raises(InvalidArgumentError, match=r"keras\.layers\.Embedding\(10, 4\)"):
        embed.Embedding(10, 4, sparse_as_dense=True)
    with pytest.raises(InvalidArgumentError, match="num_shards"):
        embed.Embedding(-1, 4, num_shards=0)
    with pytest.raises(InvalidArgumentError, match="compiled"):
        embed.distributed_model(network(optimizer=adam()))
    for wrong in (None, 5, "model"):
        with pytest.raises(InvalidArgumentError, match="model must be a Keras model, got"):
            embed.distributed_model(wrong)
    with pytest.raises(UnsupportedError, match="amsgrad"):
        embed.distributed_optimizer(keras.optimizers.Adam(amsgrad=True))


def test_an_optimizer_may_be_given_by_its_name() -> None:
    assert isinstance(embed.distributed_optimizer("adagrad"), keras.optimizers.Adagrad)
    with pytest.raises(UnsupportedError, match="Nadam"):
        embed.distributed_optimizer("nadam")


def test_a_loss_scale_optimizer_is_distributed_by_its_inner_optimizer() -> None:
    scaling = keras.optimizers.LossScaleOptimizer(adam())
    assert embed.distributed_optimizer(scaling) is scaling
    momentum = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    with pytest.raises(UnsupportedError, match="momentum"):
        embed.distributed_optimizer(momentum)


# --- Save, and continue


def test_training_continues_from_a_model_saved_to_a_folder(tmp_path: Path) -> None:
    model, fresh = network(optimizer=adam()), network(optimizer=adam())
    train(model)
    model.save(tmp_path / "B")
    assert sorted(path.name for path in (tmp_path / "B").iterdir()) == [
        "model.keras",
        "openembedding",
    ]
    fresh.load_weights(tmp_path / "B")
    saved = predictions(model)
    np.testing.assert_array_equal(predictions(fresh), saved)
    assert train(fresh, seed=1) == train(model, seed=1)
    fresh.load_weights(tmp_path / "B" / "variables" / "variables")  # the examples' name for it
    np.testing.assert_array_equal(predictions(fresh), saved)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", ["B", "B.keras"])
@pytest.mark.parametrize("are_rows_kept_otherwise", [False, True])
def test_a_model_whose_embeddings_are_all_small_is_saved_without_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, are_rows_kept_otherwise: bool
) -> None:
    if are_rows_kept_otherwise:
        monkeypatch.setattr(embed.exb, "save_server_model", embed.persist_server_model)
        monkeypatch.setattr(embed.exb, "load_server_model", embed.restore_server_model)
    model, fresh = (
        compiled(embed.distributed_model(network(), sparse_as_dense_size=IDS), adam())
        for _ in range(2)
    )
    assert not tables_of(model)
    train(model)
    model.save(tmp_path / name)
    fresh.load_weights(tmp_path / name)
    np.testing.assert_array_equal(predictions(fresh), predictions(model))


def unnamed(dim: int = 8) -> Any:
    """Returns a model whose layers have Keras's automatic names, which differ each time."""
    ids = keras.Input((2,), dtype="int64")
    parts = [keras.layers.Embedding(IDS, dim)(ids), keras.layers.Embedding(2 * IDS, dim)(ids)]
    hidden = keras.layers.Flatten()(keras.layers.Concatenate()(parts))
    return compiled(
        embed.distributed_model(keras.Model(ids, keras.layers.Dense(1)(hidden))), adam()
    )


@pytest.mark.any_backend
def test_a_model_that_is_made_again_loads_the_earlier_ones_save(tmp_path: Path) -> None:
    model = unnamed()
    ids = np.random.default_rng(1).integers(IDS, size=(64, 2))
    model.fit(ids, (ids[:, 0] % 2).astype(np.float32), verbose=0)
    model.save(tmp_path / "B")
    again = unnamed()
    names = {table.name for table in tables_of(model)}
    assert not names & {table.name for table in tables_of(again)}
    again.load_weights(tmp_path / "B")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), model.predict(ids, verbose=0))
    other = unnamed(dim=4)
    with pytest.raises(CheckpointError, match=r"clear_session\(\)"):
        embed.load_server_model(other, tmp_path / "B" / "openembedding")


@pytest.mark.any_backend
def test_training_continues_from_weights_saved_to_a_folder(tmp_path: Path) -> None:
    model, fresh = network(optimizer=adam()), network(optimizer=adam())
    train(model)
    model.save_weights(tmp_path / "W")
    fresh.load_weights(tmp_path / "W")
    assert train(fresh, seed=1) == train(model, seed=1)


@pytest.mark.any_backend
def test_a_checkpoint_of_an_epoch_can_be_loaded(tmp_path: Path) -> None:
    model, fresh = network(optimizer=adam()), network(optimizer=adam())
    every_epoch = keras.callbacks.ModelCheckpoint(str(tmp_path / "epoch{epoch}.keras"))
    train(model, epochs=2, callbacks=[every_epoch])
    fresh.load_weights(tmp_path / "epoch2.keras")
    assert train(fresh, seed=1) == train(model, seed=1)


@pytest.mark.any_backend
def test_the_examples_checkpoint_name_raises_keras_error(tmp_path: Path) -> None:
    """OpenEmbedding's examples use that name; the guide has the line that replaces it."""
    with pytest.raises(ValueError, match=r"must end in `\.keras`"):
        keras.callbacks.ModelCheckpoint(str(tmp_path / "epoch") + "{epoch}")
    guide = Path(__file__).parents[2] / "engine" / "docs" / "keras-and-openembedding.md"
    assert 'ModelCheckpoint(path + "{epoch}.keras")' in guide.read_text(encoding="utf-8")


def test_keras_itself_loads_the_whole_model_from_a_keras_file(tmp_path: Path) -> None:
    model = network(optimizer=adam())
    train(model)
    model.save(tmp_path / "B.keras")
    loaded = keras.models.load_model(tmp_path / "B.keras")
    np.testing.assert_array_equal(predictions(loaded), predictions(model))
    assert train(loaded, seed=1) == train(model, seed=1)


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_a_model_saved_without_its_optimizer_predicts_the_same(tmp_path: Path) -> None:
    model, fresh = network(optimizer=adam()), embed.distributed_model(network())
    train(model)
    model.save(tmp_path / "B", include_optimizer=False)
    model.save(tmp_path / "B.keras", include_optimizer=False)
    assert not keras.models.load_model(tmp_path / "B.keras").compiled
    fresh.load_weights(tmp_path / "B")
    np.testing.assert_array_equal(predictions(fresh), predictions(model))
    train(model, epochs=1)


@pytest.mark.any_backend
def test_rows_are_saved_and_loaded_by_themselves(tmp_path: Path) -> None:
    model, fresh = network(optimizer=adam()), network(optimizer=adam())
    train(model)
    embed.save_server_model(model, tmp_path / "rows")
    embed.load_server_model(fresh, tmp_path / "rows")
    (one,), (other,) = tables_of(model), tables_of(fresh)
    saved, loaded = one.variable.export(), other.variable.export()
    assert len(saved["keys"]) > 0
    assert_same(loaded, saved)


@pytest.mark.any_backend
def test_rows_of_ids_that_the_layer_refuses_are_not_loaded(tmp_path: Path) -> None:
    def model_of(input_dim: int | None) -> Any:
        ids = keras.Input((1,), dtype="int64")
        rows = keras.layers.Flatten()(embed.Embedding(input_dim, 4, name="rows")(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(rows))
        model.compile(adam(), "mse")
        return model

    model, smaller, larger, any_id = (model_of(size) for size in (10, 9, 11, None))
    model.fit(np.array([[2], [9]]), np.ones(2, np.float32), verbose=0)
    embed.save_server_model(model, tmp_path / "rows")
    refused = r"rows of rows for ids from 2 to 9, and the layer takes those from 0 to 8"
    with pytest.raises(CheckpointError, match=refused):
        embed.load_server_model(smaller, tmp_path / "rows")
    assert tables_of(smaller)[0].variable.total_count()[0] == 0
    for other in (larger, any_id):
        embed.load_server_model(other, tmp_path / "rows")
        assert tables_of(other)[0].variable.total_count()[0] == 2


@pytest.mark.any_backend
def test_a_save_that_fails_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, fresh = network(optimizer=adam()), network(optimizer=adam())
    train(model, epochs=1)
    model.save(tmp_path / "B")
    saved = predictions(model)
    train(model, epochs=1)

    def fail(*_arguments: Any, **_options: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(embed.exb, "save_server_model", fail)
        with pytest.raises(OSError, match="the disk is full"):
            model.save(tmp_path / "B")
    assert [path.name for path in tmp_path.iterdir()] == ["B"]
    fresh.load_weights(tmp_path / "B")
    np.testing.assert_array_equal(predictions(fresh), saved)


def save_text(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Saves `text` as the file and the rows of a model."""
    with saving_model(path, WHOLE, overwrite=overwrite, rows_apart=True) as files:
        assert files.rows is not None
        files.file.write_text(text)
        files.rows.mkdir()
        (files.rows / "rows").write_text(text)


def saved_text(path: Path) -> tuple[str, str]:
    files = saved_model_files(path)
    assert files.rows is not None
    return files.file.read_text(), (files.rows / "rows").read_text()


def without_exchange(patched: pytest.MonkeyPatch) -> None:
    """Simulates a C library without renameat2."""
    patched.setattr("ctypes.CDLL", lambda *_, **__: object())


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("name", "can_exchange", "left"),
    [("B", True, "new"), ("B", False, "old"), ("B.keras", False, "old")],
    ids=["folder", "folder that can't be exchanged", "file whose rows can't be exchanged"],
)
def test_a_save_that_is_killed_between_its_renames_leaves_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, can_exchange: bool, left: str
) -> None:
    path = tmp_path / name
    save_text(path, "old")

    def save() -> None:
        if not can_exchange:
            without_exchange(monkeypatch)
        rename = Path.rename
        renamed: list[Path] = []

        def rename_once(self: Path, target: Path) -> Path:
            if renamed:
                os._exit(9)
            renamed.append(target)
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", rename_once)
        save_text(path, "new")

    killed = forked(save)
    assert killed == (0 if left == "new" else 9)
    assert saved_text(path) == (left, left)
    with pytest.raises(InvalidArgumentError, match="overwrite"):
        save_text(path, "newer", overwrite=False)
    save_text(path, "newer")
    assert saved_text(path) == ("newer", "newer")
    assert not list(tmp_path.glob(".*.replaced"))


@pytest.mark.any_backend
def test_a_save_whose_last_rename_fails_keeps_the_previous_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_text(tmp_path / "B", "old")
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if self.suffix == ".unfinished":
            raise OSError("the disk is full")
        return rename(self, target)

    with monkeypatch.context() as patched:
        without_exchange(patched)
        patched.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="the disk is full"):
            save_text(tmp_path / "B", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["B"]
    assert saved_text(tmp_path / "B") == ("old", "old")


@pytest.mark.any_backend
def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    model = network(optimizer=adam())
    (tmp_path / "notes.txt").write_text("of the user's")
    with pytest.raises(InvalidArgumentError, match=r"notes\.txt"):
        model.save(tmp_path)
    with pytest.raises(StorageError, match="no model was saved there"):
        model.load_weights(tmp_path / "nothing")
    model.save(tmp_path / "B")
    with pytest.raises(InvalidArgumentError, match="overwrite"):
        model.save(tmp_path / "B", overwrite=False)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", ["A", "A.keras"])
def test_saving_to_a_link_replaces_its_target(tmp_path: Path, name: str) -> None:
    model = network(optimizer=adam())
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / name).symlink_to(disk / name)
    for _ in range(2):
        train(model)
        model.save(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"disk", name}
    assert [path.name for path in disk.iterdir()] == [name]
    again = network(optimizer=adam())
    again.load_weights(tmp_path / name)
    np.testing.assert_array_equal(predictions(again), predictions(model))


@pytest.mark.any_backend
@pytest.mark.parametrize("name", [".", "..", "/"])
def test_the_working_directory_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"^filepath: /.* works in, or one above it"):
        network(optimizer=adam()).save(name)
    assert Path.cwd() == tmp_path


# --- Serve


@pytest.mark.long
def test_an_openembedding_original_model_runs_without_embstore(tmp_path: Path) -> None:
    model = network(optimizer=adam())
    train(model)
    inputs, _ = criteo_like()
    np.savez(tmp_path / "inputs.npz", **inputs)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="include_optimizer"):
        model.save_as_original_model(tmp_path / "original.keras")
    model.save_as_original_model(tmp_path / "original.keras", include_optimizer=False)
    program = f"""
import sys
sys.modules["embstore"] = None
import keras, numpy as np
model = keras.models.load_model({str(tmp_path / "original.keras")!r})
inputs = dict(np.load({str(tmp_path / "inputs.npz")!r}))
np.save({str(tmp_path / "predicted.npy")!r}, model.predict(inputs, verbose=0))
"""
    ended = run_python(program)
    assert ended.returncode == 0, ended.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "predicted.npy"), predictions(model))


def test_an_original_model_for_tensorflow_serving_is_a_folder(tmp_path: Path) -> None:
    model = network(optimizer=adam())
    train(model, epochs=1)
    if not ON_TENSORFLOW:
        with pytest.raises(UnsupportedError, match="SavedModel"):
            model.save_as_original_model(tmp_path / "model_path", include_optimizer=False)
        return
    model.save_as_original_model(tmp_path / "model_path", include_optimizer=False)
    program = f"""
import sys
sys.modules["embstore"] = None
import numpy as np, tensorflow as tf
model = tf.saved_model.load({str(tmp_path / "model_path")!r})
inputs = dict(np.load({str(tmp_path / "inputs.npz")!r}))
served = model.serve({{name: tf.constant(values) for name, values in inputs.items()}})
np.save({str(tmp_path / "predicted.npy")!r}, served.numpy())
"""
    np.savez(tmp_path / "inputs.npz", **criteo_like()[0])  # type: ignore[arg-type]
    ended = run_python(program)
    assert ended.returncode == 0, ended.stderr
    served = np.load(tmp_path / "predicted.npy")
    np.testing.assert_allclose(served, predictions(model), rtol=1e-5)


def test_a_table_of_any_int64_has_no_original(tmp_path: Path) -> None:
    model = network(embed.Embedding, -1, adam())
    with pytest.raises(InvalidArgumentError, match="takes any int64"):
        model.save_as_original_model(tmp_path / "original.keras", include_optimizer=False)


@pytest.mark.any_backend
def test_the_version_is_embstores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert embed.__version__ == importlib.metadata.version("embstore")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"of {name}")
    assert embed.__version__ == "of embstore"


@pytest.mark.any_backend
def test_the_names_of_the_guide_exist() -> None:
    for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "RMSprop", "SGD"):
        assert isinstance(getattr(embed, name)(), keras.optimizers.Optimizer)
    assert es.openembedding is embed
    assert issubclass(embed.Model, keras.Model)
    with pytest.raises(AttributeError, match=r"python -m embstore\.server"):
        embed.Server()  # type: ignore[operator]
