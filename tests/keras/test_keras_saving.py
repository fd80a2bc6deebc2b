"""Files that Keras saves of a model have its rows; formats that can't are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import assert_same
from keras_models import (
    DIM,
    KEYS,
    LENGTH,
    ON_TENSORFLOW,
    adagrad,
    fit,
    ids_with_duplicates,
    keras,
    over,
    own_and_theirs,
    predictions,
    rows_of,
)

import embstore as es
from embstore.errors import CheckpointError, StorageError, UnsupportedError

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def trained() -> Any:
    model = own_and_theirs(adagrad)[0]
    fit(model, ids_with_duplicates())
    return model


def model_of_any_key(name: str = "table", **arguments: Any) -> Any:
    model = over(es.keras.Embedding(None, DIM, name=name, **arguments))
    model.compile(adagrad(), "mse")
    return model


def assert_same_table(one: es.EmbeddingVariable, other: es.EmbeddingVariable) -> None:
    held, held_by_other = one.export(), other.export()
    assert len(held["keys"]) > 0
    assert list(held) == list(held_by_other)
    assert_same(held_by_other, held)


# --- Whole models


@pytest.mark.any_backend
def test_a_model_whose_rows_await_their_restore_is_not_saved(tmp_path: Path) -> None:
    option = es.EmbeddingVariableOption(
        storage_option=es.StorageOption(
            storage_type=es.StorageType.DRAM_PMEM,
            storage_path=str(tmp_path),
            storage_size=[1 << 16, 8 << 20],
            durability="checkpoint",
        )
    )
    model = model_of_any_key(ev_option=option)
    fit(model, ids_with_duplicates())
    table = model.get_layer("table").variable
    es.persist([table], tmp_path / "checkpoints")
    table.close()
    again = model_of_any_key(ev_option=option)
    (awaiting,) = es.keras.variables(again)
    with pytest.raises(StorageError, match="holds checkpoints of an earlier run"):
        again.save_weights(tmp_path / "other.weights.h5")
    es.restore_persisted([awaiting], tmp_path / "checkpoints")
    again.save_weights(tmp_path / "other.weights.h5")
    loaded = model_of_any_key()
    loaded.load_weights(tmp_path / "other.weights.h5")
    assert_same_table(loaded.get_layer("table").variable, awaiting)


def test_a_saved_model_goes_on_as_if_nothing_had_happened(trained: Any, tmp_path: Path) -> None:
    trained.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    ids = ids_with_duplicates()
    assert_same_table(trained.get_layer("table").variable, loaded.get_layer("table").variable)
    np.testing.assert_array_equal(predictions(loaded, ids), predictions(trained, ids))
    assert fit(loaded, ids) == fit(trained, ids)
    np.testing.assert_array_equal(rows_of(loaded), rows_of(trained))


def test_keys_that_were_never_trained_read_the_same_after_a_load(tmp_path: Path) -> None:
    model = model_of_any_key()
    fit(model, ids_with_duplicates())
    model.save(tmp_path / "model.keras")
    keras.utils.set_random_seed(99)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    strangers = np.arange(-50, 0)
    np.testing.assert_array_equal(
        loaded.get_layer("table").variable.lookup(strangers),
        model.get_layer("table").variable.lookup(strangers),
    )


@pytest.mark.any_backend
def test_options_of_the_table_come_back(tmp_path: Path) -> None:
    option = es.EmbeddingVariableOption(
        storage_option=es.StorageOption(
            es.StorageType.DRAM_SSDHASH, str(tmp_path / "rows"), [1024, 1 << 20]
        ),
        filter_option=es.CBFFilter(2, 1000, 0.01, np.uint16),
        evict_option=es.GlobalStepEvict(1000),
        init_option=es.InitializerOption(es.initializers.Ones(), 64, 0.5),
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = model_of_any_key(ev_option=option, optimizer=keras.optimizers.Adagrad(schedule))
    fit(model, ids_with_duplicates())
    held = model.get_layer("table").variable.export()
    waiting = model.get_layer("table").variable.stats()["waiting_keys"]
    model.save(tmp_path / "model.keras")
    model.get_layer("table").variable.close()  # releases the files
    loaded = keras.models.load_model(tmp_path / "model.keras").get_layer("table")
    assert loaded.ev_option.storage_option == option.storage_option
    assert isinstance(loaded.ev_option.filter_option, es.CBFFilter)
    assert loaded.ev_option.filter_option.counter_bits == 16
    assert loaded.ev_option.evict_option == option.evict_option
    assert loaded.ev_option.init_option.default_value_no_permission == 0.5
    assert loaded.get_config()["optimizer"] == model.get_layer("table").get_config()["optimizer"]
    np.testing.assert_array_equal(loaded.variable.export()["values"], held["values"])
    assert loaded.variable.stats()["waiting_keys"] == waiting


def test_a_model_that_was_not_trained_yet_is_saved_too(tmp_path: Path) -> None:
    own, _ = own_and_theirs(adagrad)
    own.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(rows_of(loaded), rows_of(own))
    ids = ids_with_duplicates()
    assert fit(loaded, ids) == fit(own, ids)


def test_tensorflow_formats_without_rows_are_refused(trained: Any, tmp_path: Path) -> None:
    if not ON_TENSORFLOW:
        pytest.skip("Keras runs on torch here")
    import tensorflow as tf

    writes: list[Callable[[], Any]] = [
        lambda: tf.train.Checkpoint(model=trained).save(tmp_path / "checkpoint"),
        lambda: tf.saved_model.save(trained, str(tmp_path / "saved")),
        lambda: trained.export(str(tmp_path / "exported"), verbose=False),
    ]
    for write in writes:
        with pytest.raises(UnsupportedError, match=r"table: .* would not have its rows"):
            write()


# --- Weights


class Scaled(es.keras.Embedding):
    def build(self, input_shape: Any = None) -> None:
        super().build(input_shape)
        self.scale = self.add_weight(shape=(DIM,), initializer="ones", name="scale")

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        return super().call(inputs, training=training) * self.scale


def test_weights_of_a_class_derived_from_the_layer_are_kept(tmp_path: Path) -> None:
    model, other = over(Scaled(None, DIM, name="table")), over(Scaled(None, DIM, name="other"))
    values = np.arange(DIM, dtype=np.float32)
    model.get_layer("table").scale.assign(values)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    loaded = keras.ops.convert_to_numpy(other.get_layer("other").scale)
    np.testing.assert_array_equal(loaded, values)
    of_same_name = type("Scaled", (es.keras.Embedding,), {})
    plain = over(of_same_name(None, DIM, name="plain"))
    with pytest.raises(Exception, match=rf"\[\({DIM},\)\] beside its rows, and .* \[\]"):
        plain.load_weights(tmp_path / "model.weights.h5")


def test_weights_include_initial_rows_of_untrained_keys(tmp_path: Path) -> None:
    model, other = model_of_any_key(), model_of_any_key("another")
    fit(model, ids_with_duplicates())
    strangers = np.arange(-50, 0)
    rows = model.get_layer("table").variable.lookup(strangers)
    assert not np.array_equal(other.get_layer("another").variable.lookup(strangers), rows)
    model.save_weights(tmp_path / "model.weights.h5")
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(other.get_layer("another").variable.lookup(strangers), rows)


def test_weights_load_into_a_model_whose_layers_have_other_names(
    trained: Any, tmp_path: Path
) -> None:
    trained.save_weights(tmp_path / "model.weights.h5")
    other = over(es.keras.Embedding(KEYS, DIM, name="another"))
    other.load_weights(tmp_path / "model.weights.h5")
    assert_same_table(trained.get_layer("table").variable, other.get_layer("another").variable)
    ids = ids_with_duplicates()
    np.testing.assert_array_equal(predictions(other, ids), predictions(trained, ids))


def test_weights_load_from_a_whole_model_too(trained: Any, tmp_path: Path) -> None:
    trained.save(tmp_path / "model.keras")
    rows = rows_of(trained)
    fit(trained, ids_with_duplicates())
    assert not np.array_equal(rows_of(trained), rows)
    trained.load_weights(tmp_path / "model.keras")
    np.testing.assert_array_equal(rows_of(trained), rows)


def test_weights_in_several_files_have_all_rows(trained: Any, tmp_path: Path) -> None:
    trained.save_weights(tmp_path / "model.weights.json", max_shard_size=0.00001)
    other = over(es.keras.Embedding(KEYS, DIM, name="another"))
    other.load_weights(tmp_path / "model.weights.json")
    assert_same_table(trained.get_layer("table").variable, other.get_layer("another").variable)


def test_the_callbacks_that_keep_models_keep_rows(tmp_path: Path) -> None:
    model, _ = own_and_theirs(adagrad)
    ids = ids_with_duplicates()
    fit(
        model,
        ids,
        callbacks=[
            keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
            keras.callbacks.ModelCheckpoint(
                tmp_path / "{epoch}.weights.h5", save_weights_only=True
            ),
        ],
    )
    for path in ("2.keras", "2.weights.h5"):
        other = over(es.keras.Embedding(KEYS, DIM, name="another"))
        other.load_weights(tmp_path / path)
        assert_same_table(model.get_layer("table").variable, other.get_layer("another").variable)


def test_interrupted_training_continues_from_its_backup(tmp_path: Path) -> None:
    class InterruptionError(Exception):
        pass

    def interrupt(epoch: int, _logs: Any) -> None:
        if epoch == 1:
            raise InterruptionError

    whole, theirs = own_and_theirs(adagrad)
    ids = ids_with_duplicates()
    losses = fit(whole, ids, epochs=3)
    interrupted, resumed = (es.keras.distributed_model(theirs) for _ in range(2))
    for model in (interrupted, resumed):
        model.compile(adagrad(), "mse")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    with pytest.raises(InterruptionError):
        fit(interrupted, ids, epochs=3, callbacks=[backup, stop])
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    assert fit(resumed, ids, epochs=3, callbacks=[backup]) == losses[1:]
    np.testing.assert_array_equal(rows_of(resumed), rows_of(whole))


# --- Nothing is silently lost


@pytest.mark.any_backend
def test_a_file_of_another_layer_is_refused(tmp_path: Path) -> None:
    own, theirs = own_and_theirs(adagrad)
    theirs.save_weights(tmp_path / "theirs.weights.h5")
    with pytest.raises(ValueError, match="holds no rows"):
        own.load_weights(tmp_path / "theirs.weights.h5")


@pytest.mark.any_backend
def test_a_refused_save_keeps_the_existing_file(trained: Any, tmp_path: Path) -> None:
    for name in ("model.h5", "model.hdf5"):
        (tmp_path / name).write_bytes(b"before")
        with pytest.raises(UnsupportedError, match=r"a \.h5 file of the whole model"):
            trained.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == b"before"
    with pytest.raises(UnsupportedError):
        trained.save(tmp_path / "new.h5")
    assert not (tmp_path / "new.h5").exists()
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "dense.h5")
    assert keras.models.load_model(tmp_path / "dense.h5").count_params() == 3


def damage_rows(weights: Path) -> None:
    """Flips one bit of a table's rows."""
    import h5py

    with h5py.File(weights, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        (rows,) = (name for name in names if name.endswith("file_1"))
        file[rows][100] ^= 1


@pytest.mark.any_backend
def test_a_file_whose_rows_are_damaged_is_refused(trained: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.weights.h5"
    trained.save_weights(path)
    damage_rows(path)
    other = over(es.keras.Embedding(KEYS, DIM, name="another"))
    with pytest.raises(ValueError, match=r"\.rows.*damaged"):
        other.load_weights(path)
    assert other.get_layer("another").variable.total_count() == (0, DIM)
    held = trained.get_layer("table").variable.export()
    with pytest.raises(ValueError, match=r"\.rows.*damaged"):
        trained.load_weights(path)
    np.testing.assert_array_equal(
        trained.get_layer("table").variable.export()["values"], held["values"]
    )


@pytest.mark.any_backend
def test_a_damaged_file_of_another_optimizer_leaves_the_table_alone(
    trained: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.weights.h5"
    trained.save_weights(path)
    damage_rows(path)
    other, _ = own_and_theirs(lambda: keras.optimizers.SGD(0.5))  # with other initial rows too
    fit(other, ids_with_duplicates())
    before, held = rows_of(other), other.get_layer("table").variable.total_count()
    with pytest.raises(ValueError, match=r"\.rows.*damaged"):
        other.load_weights(path)
    np.testing.assert_array_equal(rows_of(other), before)
    assert other.get_layer("table").variable.total_count() == held


@pytest.mark.any_backend
@pytest.mark.parametrize(("keys", "dim"), [(KEYS, 2 * DIM), (KEYS - 1, DIM)])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("converted", [False, True])
def test_a_table_of_another_shape_is_refused_and_left_alone(
    keys: int, dim: int, apart: bool, converted: bool, tmp_path: Path
) -> None:
    def pooled(keys: int, dim: int) -> Any:
        kind = keras.layers.Embedding if converted else es.keras.Embedding
        ids = keras.Input((LENGTH,), dtype="int64")
        rows = kind(keys, dim, name="table")(ids)
        model = keras.Model(ids, keras.ops.mean(rows, -1))
        model = es.keras.distributed_model(model) if converted else model
        model.compile(adagrad(), "mse")
        return model

    path = tmp_path / "model.weights.h5"
    saved, other = pooled(KEYS, DIM), pooled(keys, dim)
    for model in (saved, other):
        fit(model, ids_with_duplicates() % keys)
    kept_apart = es.keras.rows_kept_apart if apart else contextlib.nullcontext
    with kept_apart():
        saved.save_weights(path)
    before, held = rows_of(other), other.get_layer("table").variable.total_count()
    shapes = f"table: .*input_dim={KEYS}, output_dim={DIM}, .*input_dim={keys}, output_dim={dim};"
    with kept_apart(), pytest.raises(ValueError, match=shapes):
        other.load_weights(path)
    with kept_apart(), pytest.warns(UserWarning, match="table"):
        other.load_weights(path, skip_mismatch=True)
    np.testing.assert_array_equal(rows_of(other), before)
    assert other.get_layer("table").variable.total_count() == held


@pytest.mark.any_backend
@pytest.mark.parametrize("loaded_slots", [0, 1, 2])
def test_weights_that_do_not_fit_into_the_table_leave_it_unchanged(
    tmp_path: Path, loaded_slots: int
) -> None:
    rules = {0: "sgd", 1: "adagrad", 2: "adam"}

    def model_of(slots: int, storage: es.StorageOption) -> Any:
        option = es.EmbeddingVariableOption(storage_option=storage)
        model = over(es.keras.Embedding(None, DIM, name="table", ev_option=option))
        model.compile(rules[slots], "mse")
        return model

    large = model_of(loaded_slots, es.StorageOption())
    fit(large, ids_with_duplicates())
    large.save_weights(tmp_path / "model.weights.h5")
    rows = len(large.get_layer("table").variable)
    row_bytes = (1 + loaded_slots) * 4 * DIM
    small = model_of(1, es.StorageOption(storage_size=[(rows - 2) * row_bytes]))
    fit(small, np.zeros_like(ids_with_duplicates()))
    wanted = small.get_layer("table").variable.export()
    told = rf"has {rows} rows .*; raise storage_size"
    for skip_mismatch in (False, True):
        refused = (
            pytest.warns(UserWarning, match=told)
            if skip_mismatch
            else pytest.raises(ValueError, match=told)
        )
        with refused:
            small.load_weights(tmp_path / "model.weights.h5", skip_mismatch=skip_mismatch)
        assert_same(small.get_layer("table").variable.export(), wanted)
    enough = model_of(1, es.StorageOption(storage_size=[rows * row_bytes]))
    fit(enough, np.zeros_like(ids_with_duplicates()))
    enough.load_weights(tmp_path / "model.weights.h5")
    assert_same_table(enough.get_layer("table").variable, large.get_layer("table").variable)


@pytest.mark.any_backend
def test_a_table_of_more_ids_takes_the_rows(tmp_path: Path) -> None:
    saved = over(es.keras.Embedding(KEYS, DIM, name="table"))
    saved.compile(adagrad(), "mse")
    fit(saved, ids_with_duplicates())
    saved.save_weights(tmp_path / "model.weights.h5")
    other = over(es.keras.Embedding(2 * KEYS, DIM, name="table"))
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(rows_of(other)[:KEYS], rows_of(saved))


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("initializer", "rate"),
    [
        (es.initializers.Constant(0.1), 0.1),
        (es.initializers.Constant([0.1, 0.2, 0.3, 0.4]), 0.1),
        (es.initializers.RandomUniform(seed=1), 0.01),
    ],
)
def test_weights_without_rows_keep_the_tables_rows(
    initializer: Any, rate: float, tmp_path: Path
) -> None:
    model, other = (model_of_any_key(embeddings_initializer=initializer) for _ in range(2))
    other.compile(keras.optimizers.Adagrad(rate), "mse")
    fit(model, ids_with_duplicates())
    with es.keras.rows_kept_apart():
        model.save_weights(tmp_path / "model.weights.h5")
    es.save(tmp_path / "rows", es.keras.variables(model), global_step=1)
    es.restore(tmp_path / "rows", es.keras.variables(other))
    with es.keras.rows_kept_apart():
        other.load_weights(tmp_path / "model.weights.h5")
    assert_same_table(model.get_layer("table").variable, other.get_layer("table").variable)
    ids = ids_with_duplicates()
    np.testing.assert_array_equal(predictions(other, ids), predictions(model, ids))


@pytest.mark.any_backend
@pytest.mark.parametrize("what", ["initializer", "optimizer"])
def test_weights_without_rows_of_another_kind_of_table_are_refused(
    what: str, tmp_path: Path
) -> None:
    model, other = (model_of_any_key(embeddings_initializer="ones") for _ in range(2))
    fit(model, ids_with_duplicates())
    with es.keras.rows_kept_apart():
        model.save_weights(tmp_path / "model.weights.h5")
    if what == "initializer":
        other = model_of_any_key(embeddings_initializer="zeros")
    else:
        other.compile(keras.optimizers.SGD(0.1), "mse")
    fit(other, ids_with_duplicates())
    held = other.get_layer("table").variable.export()
    with es.keras.rows_kept_apart(), pytest.raises(ValueError, match=f"another {what}.*load the"):
        other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(
        other.get_layer("table").variable.export()["values"], held["values"]
    )


@pytest.mark.any_backend
def test_a_model_without_its_rows_is_refused_unless_asked_for(trained: Any, tmp_path: Path) -> None:
    table = trained.get_layer("table").variable
    with es.keras.rows_kept_apart():
        trained.save(tmp_path / "model.keras")
    es.save(tmp_path / "rows", es.keras.variables(trained), global_step=1)
    with pytest.raises(ValueError, match="without its rows"):
        keras.models.load_model(tmp_path / "model.keras")
    with es.keras.rows_kept_apart():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    with pytest.raises(CheckpointError):
        es.restore(tmp_path / "rows", [es.get_embedding_variable("other", DIM)])
    es.restore(tmp_path / "rows", es.keras.variables(loaded))
    assert_same_table(table, loaded.get_layer("table").variable)
    ids = ids_with_duplicates()
    assert fit(loaded, ids) == fit(trained, ids)


def test_rows_restored_into_a_compiled_model_have_their_slots(trained: Any, tmp_path: Path) -> None:
    es.save(tmp_path, es.keras.variables(trained), global_step=1)
    fresh = model_of_any_key()
    es.restore(tmp_path, es.keras.variables(fresh))
    assert_same_table(trained.get_layer("table").variable, fresh.get_layer("table").variable)


def test_the_models_learning_rate_replaces_one_that_was_restored_or_set(
    trained: Any, tmp_path: Path
) -> None:
    (table,) = es.keras.variables(trained)
    table.learning_rate = 0.5
    es.save(tmp_path, [table], global_step=1)
    for change in ("restored", "set"):
        fit(trained, ids_with_duplicates(), epochs=1)
        assert table.learning_rate == np.float32(0.1)
        if change == "restored":
            es.restore(tmp_path, [table])
        else:
            table.learning_rate = 0.5
        assert table.learning_rate == 0.5
    fit(trained, ids_with_duplicates(), epochs=1)
    assert table.learning_rate == np.float32(0.1)


@pytest.mark.any_backend
def test_rows_restored_without_their_slots_cannot_be_trained(trained: Any, tmp_path: Path) -> None:
    es.save(tmp_path, es.keras.variables(trained), global_step=1)
    fresh = model_of_any_key()
    es.restore(tmp_path, [fresh.get_layer("table").variable])
    with pytest.raises(Exception, match="no optimizer slots"):
        fit(fresh, ids_with_duplicates())


@pytest.mark.any_backend
def test_increments_of_the_users_own_saves_follow_one_another(trained: Any, tmp_path: Path) -> None:
    tables = es.keras.variables(trained)
    es.save(tmp_path / "full", tables, 1)
    fit(trained, ids_with_duplicates())
    trained.save(tmp_path / "model.keras")
    es.save_incremental(tmp_path / "increment", tables, 2)
    with es.get_embedding_variable("table", DIM, optimizer=tables[0].optimizer) as restored:
        es.restore(tmp_path / "full", [restored], [tmp_path / "increment"])
        assert_same_table(tables[0], restored)


# --- Tables that keep their files


def test_a_model_continues_from_the_files_that_its_table_kept(tmp_path: Path) -> None:
    storage = es.StorageOption(
        es.StorageType.DRAM_SSDHASH,
        tmp_path,
        [1 << 16],
        ssdhash_option=es.SSDHashOption(keep_files=True),
    )
    option = es.EmbeddingVariableOption(storage_option=storage)
    ids = ids_with_duplicates()
    counts: list[Any] = []
    for predicts_first in (False, True, True):
        model = model_of_any_key(ev_option=option)
        if predicts_first:
            predictions(model, ids)
        fit(model, ids)
        table = model.layers[1].variable
        counts.append(table.get_frequency(np.unique(ids)))
        table.close()
    assert counts[0].all()
    for times, count in enumerate(counts, 1):
        np.testing.assert_array_equal(count, times * counts[0])
