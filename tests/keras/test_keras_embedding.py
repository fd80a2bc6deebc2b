"""`embstore.keras.Embedding` trains like `keras.layers.Embedding`, on embstore's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import assert_same
from keras_models import (
    BATCH,
    DIM,
    KEYS,
    LENGTH,
    ON_TENSORFLOW,
    assert_trained_alike,
    fit,
    ids_with_duplicates,
    ids_without_duplicates,
    keras,
    labels_of,
    over,
    own_and_theirs,
    predictions,
    rows_of,
)

import embstore as es
from embstore.errors import InvalidArgumentError, UnsupportedError

pytestmark = pytest.mark.timeout(120)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.5),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Adagrad with a large epsilon": lambda: keras.optimizers.Adagrad(0.1, epsilon=0.3),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "Adamax": lambda: keras.optimizers.Adamax(0.01),
    "Adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.01),
    "RMSprop with momentum": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1, l2_regularization_strength=0.01),
}


# --- Training as in Keras


@pytest.mark.parametrize(
    "name",
    [
        # Both backends train by Keras's rules: one optimizer without slots and one with two
        # suffice.
        pytest.param(name, marks=() if name in ("SGD", "Adam") else pytest.mark.any_backend)
        for name in OPTIMIZERS
    ],
)
def test_losses_and_rows_equal_those_of_keras(name: str) -> None:
    # Each batch has every key: Keras's Adam also changes rows that a batch lacks, embstore doesn't.
    own, theirs = own_and_theirs(OPTIMIZERS[name])
    assert_trained_alike(own, theirs, ids_without_duplicates())


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
@pytest.mark.parametrize("calls", [1, 2])
def test_duplicates_and_several_calls_are_one_step(name: str, calls: int) -> None:
    if ON_TENSORFLOW and name == "Adagrad":
        pytest.skip("Keras on TensorFlow squares the gradient of each duplicate by itself")
    own, theirs = own_and_theirs(OPTIMIZERS[name], calls)
    assert_trained_alike(own, theirs, ids_with_duplicates())
    steps = 2 * len(ids_with_duplicates()) // BATCH
    assert own.get_layer("table").variable.get_version(np.arange(KEYS)).max() == steps - 1


def test_learning_rate_schedules_apply_to_rows_too() -> None:
    def decaying() -> Any:
        return keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 4, 0.5))

    own, theirs = own_and_theirs(decaying)
    assert_trained_alike(own, theirs, ids_without_duplicates())


def test_callbacks_that_set_the_learning_rate_apply_to_rows_too() -> None:
    def scheduler() -> Any:
        return keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 if epoch == 0 else 0.01)

    own, theirs = own_and_theirs(OPTIMIZERS["Adagrad"])
    ids = ids_without_duplicates()
    np.testing.assert_allclose(
        fit(own, ids, callbacks=[scheduler()]), fit(theirs, ids, callbacks=[scheduler()]), rtol=1e-5
    )
    np.testing.assert_allclose(rows_of(own), rows_of(theirs), rtol=1e-4, atol=1e-6)
    assert own.get_layer("table").variable.learning_rate == pytest.approx(0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.5, loss_scale_factor=8.0),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5)),
    ],
)
def test_losses_may_be_scaled(make: Callable[[], Any]) -> None:
    own, theirs = own_and_theirs(make)
    if ON_TENSORFLOW:  # where Keras can't scale gradients of its own Embedding
        theirs.compile(keras.optimizers.SGD(0.5), "mse")
    assert_trained_alike(own, theirs, ids_without_duplicates())


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_one_layer_may_have_a_mixed_precision(policy: str) -> None:
    own = over(es.keras.Embedding(KEYS, DIM, "zeros", dtype=policy, name="table"))
    theirs = over(keras.layers.Embedding(KEYS, DIM, "zeros", dtype=policy, name="table"))
    theirs.get_layer("head").set_weights(own.get_layer("head").get_weights())
    for model in (own, theirs):
        model.compile(keras.optimizers.SGD(0.5), "mse")
        fit(model, ids_without_duplicates())
    np.testing.assert_allclose(rows_of(own), rows_of(theirs), rtol=1e-2, atol=1e-4)
    assert np.abs(rows_of(own)).max() > 1e-3, "nothing was trained"


def test_a_step_that_loss_scaling_skips_trains_no_row() -> None:
    scaling = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**127)
    own, _ = own_and_theirs(lambda: scaling)
    own.compile(scaling, "mse")
    ids, before = ids_without_duplicates(), rows_of(own)
    own.train_on_batch(ids[:BATCH], 1000 * labels_of(ids[:BATCH]))
    assert float(scaling.dynamic_scale) == 2.0**126
    np.testing.assert_array_equal(rows_of(own), before)
    fit(own, ids, epochs=1)
    assert not np.array_equal(rows_of(own), before)
    assert np.isfinite(rows_of(own)).all()


def test_training_by_hand_gives_the_rows_of_fit() -> None:
    own, theirs = own_and_theirs(OPTIMIZERS["SGD"])
    ids = ids_without_duplicates()
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        for model in (own, theirs):
            model.train_on_batch(batch, labels_of(batch))
    np.testing.assert_allclose(rows_of(own), rows_of(theirs), rtol=1e-5, atol=1e-7)


def test_without_a_graph_training_is_the_same() -> None:
    own, theirs = own_and_theirs(OPTIMIZERS["Adagrad"])
    for model in (own, theirs):
        model.compile(OPTIMIZERS["Adagrad"](), "mse", run_eagerly=True)
    assert_trained_alike(own, theirs, ids_without_duplicates(2))


@pytest.mark.skipif(ON_TENSORFLOW, reason="gradients are dropped with their tape there")
def test_gradients_that_were_dropped_train_nothing() -> None:
    own, theirs = own_and_theirs(OPTIMIZERS["Adagrad"])
    ids = ids_with_duplicates()
    for _ in range(3):  # for example to look at saliency
        own(ids).sum().backward()
    own.zero_grad()
    assert_trained_alike(own, theirs, ids)


def gradients_of(model: Any, ids: Any, factor: float = 1.0) -> list[Any]:
    """Returns, without applying them, the gradients of a factor times the sum of the outputs."""
    if ON_TENSORFLOW:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = factor * tf.reduce_sum(model(np.asarray(ids), training=True))
        gradients: list[Any] = tape.gradient(loss, model.trainable_variables)
        return gradients
    import torch

    loss = factor * model(np.asarray(ids), training=True).sum()
    # A gradient that is set tells a table that its gathered gradients haven't been dropped.
    for weight in model.trainable_weights:
        weight.value.grad = torch.zeros_like(weight.value)
    return list(torch.autograd.grad(loss, [weight.value for weight in model.trainable_weights]))


def apply(model: Any, gradients: list[Any]) -> None:
    if ON_TENSORFLOW:
        model.optimizer.apply(gradients, model.trainable_variables)
        return
    import torch

    with torch.no_grad():
        model.optimizer.apply(gradients, model.trainable_weights)


def model_of_one_table() -> Any:
    """Returns a model that outputs the rows of one id; all rows are initially ones."""
    ids = keras.Input((1,), dtype="int64")
    model = keras.Model(ids, es.keras.Embedding(KEYS, DIM, "ones", name="table")(ids))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    if not ON_TENSORFLOW:
        gradients_of(model, [[0]])  # before it, no gradient is set
    return model


def test_gradients_that_are_computed_but_not_applied_train_nothing() -> None:
    model = model_of_one_table()
    applied = gradients_of(model, [[1]])
    gradients_of(model, [[2]], factor=100.0)
    apply(model, applied)
    np.testing.assert_allclose(rows_of(model)[:4, 0], [1, 0.9, 1, 1])


def test_the_sum_of_several_gradients_is_one_step() -> None:
    model = model_of_one_table()
    first = gradients_of(model, [[1]])
    gradients_of(model, [[3]])
    second = gradients_of(model, [[2]], factor=3.0)
    apply(model, [one + other for one, other in zip(first, second, strict=True)])
    np.testing.assert_allclose(rows_of(model)[:4, 0], [1, 0.9, 0.7, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda one, other: (one + other) / 2,
        lambda one, _: one + one,
        lambda one, other: 2 * one - other,
        lambda one, _: one / 2,
        lambda one, _: keras.ops.clip(one, -1.0, 1.0),
        lambda one, _: keras.ops.clip(one, -1e6, 1e6),
        lambda one, _: one * (1e6 / keras.ops.norm(one)),
        lambda one, other: keras.ops.clip(one + other, -1.0, 1.0),
        lambda one, _: 0 * one,
    ],
    ids=[
        *("mean", "twice", "difference", "scaled", "clamped", "clamped by a large value"),
        *("clipped by a large norm", "sum clamped", "nothing"),
    ],
)
def test_gradients_that_were_changed_are_refused(change: Callable[[Any, Any], Any]) -> None:
    model = model_of_one_table()
    first, second = gradients_of(model, [[1]]), gradients_of(model, [[2]], factor=3.0)
    changed = [change(one, other) for one, other in zip(first, second, strict=True)]
    with pytest.raises(Exception, match="was changed between"):
        apply(model, changed)
    np.testing.assert_array_equal(rows_of(model), 1)


def test_a_step_may_have_many_look_ups_and_too_many_raise_an_error() -> None:
    from embstore.keras.marks import MAX_MARKS

    model = model_of_one_table()
    layer = model.get_layer("table")

    def gradients(look_ups: int) -> list[Any]:
        ids = np.ones((1, 1), np.int64)
        if ON_TENSORFLOW:
            import tensorflow as tf

            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_sum(layer(ids, training=True)) for _ in range(look_ups))
            return list(tape.gradient(loss, model.trainable_variables))
        import torch

        loss = sum(layer(ids).sum() for _ in range(look_ups))
        return list(torch.autograd.grad(loss, [model.trainable_weights[0].value]))

    apply(model, gradients(MAX_MARKS))
    np.testing.assert_allclose(rows_of(model)[1], 1 - MAX_MARKS * 0.1, rtol=1e-5)
    with pytest.raises(Exception, match=f"{MAX_MARKS + 1} look-ups in one step"):
        apply(model, gradients(MAX_MARKS + 1))


def test_training_rows_by_a_torch_or_tensorflow_update_raises_an_error() -> None:
    model = model_of_one_table()
    stand_in = model.trainable_variables[0]
    (gradient,) = gradients_of(model, [[1]])
    if ON_TENSORFLOW:
        stand_in.value.assign_sub(0.1 * gradient)
    else:
        import torch

        stand_in.value.grad = gradient
        torch.optim.SGD([stand_in.value], 0.1).step()
    with pytest.raises(UnsupportedError, match="trained by another than a Keras optimizer"):
        gradients_of(model, [[1]])


def test_gradients_that_are_never_applied_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = model_of_one_table()
    monkeypatch.setattr("embstore.keras.table._MAX_BYTES", 10 * 4 * DIM)
    first = gradients_of(model, [[1]])
    for _ in range(20):
        last = gradients_of(model, [[2]])
    assert len(model.get_layer("table").table._gathered) <= 11
    with pytest.raises(Exception, match="were gathered since the last step"):
        apply(model, first)
    last = gradients_of(model, [[2]])
    apply(model, last)
    np.testing.assert_allclose(rows_of(model)[:4, 0], [1, 1, 0.9, 1])


def test_a_step_that_a_table_refuses_leaves_dense_weights_as_they_are() -> None:
    option = es.EmbeddingVariableOption(es.StorageOption(es.StorageType.DRAM, None, [64]))
    ids = keras.Input((2,), dtype="int64")
    rows = es.keras.Embedding(None, 4, name="table", ev_option=option)(ids)
    model = keras.Model(ids, keras.layers.Dense(1, name="head")(keras.layers.Flatten()(rows)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(np.array([[1, 2]]), np.ones(1))
    before = model.get_layer("head").get_weights()
    for wrong in (np.arange(100).reshape(50, 2), np.array([[1, 2]])):
        labels = np.full(len(wrong), np.inf if len(wrong) == 1 else 1.0)
        with pytest.raises(Exception, match=r"raise storage_size|inf or nan"):
            model.train_on_batch(wrong, labels)
    for one, other in zip(before, model.get_layer("head").get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_masks_equal_those_of_keras() -> None:
    def pooled(embedding: Any) -> Any:
        ids = keras.Input((LENGTH,), dtype="int64")
        return keras.Model(
            ids, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(embedding(ids)))
        )

    theirs = pooled(keras.layers.Embedding(KEYS, DIM, mask_zero=True, name="table"))
    theirs.compile(keras.optimizers.SGD(0.5), "mse")
    own = es.keras.distributed_model(theirs)
    own.compile(keras.optimizers.SGD(0.5), "mse")
    ids = ids_with_duplicates()
    assert (ids == 0).any()
    assert_trained_alike(own, theirs, ids)
    # Padding has no gradient, so the row of key 0 keeps its initial values.
    table = own.get_layer("table").variable
    np.testing.assert_array_equal(table.lookup([0]), rows_of(theirs)[:1])


def test_a_frozen_layer_is_not_trained() -> None:
    own, _ = own_and_theirs(OPTIMIZERS["SGD"])
    own.get_layer("table").trainable = False
    own.compile(OPTIMIZERS["SGD"](), "mse")
    before, head = rows_of(own), own.get_layer("head").get_weights()[0]
    fit(own, ids_without_duplicates())
    np.testing.assert_array_equal(rows_of(own), before)
    assert not np.array_equal(own.get_layer("head").get_weights()[0], head)
    assert own.get_layer("table").variable.total_count() == (0, DIM)


# --- Features that Keras's embedding doesn't have


def test_every_int64_is_a_key() -> None:
    keys = np.array([[-1, 2**40, -(2**63)], [2**63 - 1, 2**40 + 1, 0]], np.int64)
    model = over(es.keras.Embedding(None, DIM, name="table"))
    model.compile(OPTIMIZERS["Adagrad"](), "mse")
    fit(model, keys)
    held = model.get_layer("table").variable.export()
    np.testing.assert_array_equal(held["keys"], np.sort(keys.ravel()))
    np.testing.assert_array_equal(held["freqs"], 2)


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("how", ["evaluate", "predict", "test_on_batch", "predict_on_batch"])
def test_an_evaluation_moves_no_row_and_a_model_that_serves_does(
    how: str, serves: bool, tmp_path: Path
) -> None:
    first_tier_of_one_row = es.StorageOption("dram_ssdhash", tmp_path, [16])
    layer = es.keras.Embedding(
        None,
        DIM,
        ev_option=es.EmbeddingVariableOption(storage_option=first_tier_of_one_row),
        optimizer=es.optimizers.SGD(0.1),
        name="table",
    )
    layer.serves = serves
    model = over(layer)
    model.compile("sgd", "mse")
    table = layer.variable
    table.apply_gradients([1, 1, 1, 2], np.ones((4, DIM), np.float32))
    table.drain()
    ids = np.full((BATCH, LENGTH), 2)
    given = (ids,) if how.startswith("predict") else (ids, labels_of(ids))
    getattr(model, how)(*given)
    table.drain()
    assert table.lookup_tier([1, 2]).tolist() == ([1, 0] if serves else [0, 1])


def test_predictions_and_evaluations_insert_nothing() -> None:
    model = over(es.keras.Embedding(-1, DIM, name="table"))
    model.compile(OPTIMIZERS["Adagrad"](), "mse")
    ids = ids_without_duplicates()
    predictions(model, ids)
    model.evaluate(ids, labels_of(ids), verbose=0)
    assert model.get_layer("table").variable.total_count() == (0, DIM)


def test_a_table_with_an_optimizer_of_its_own_is_trained_by_it() -> None:
    own, theirs = own_and_theirs(
        lambda: keras.optimizers.SGD(0.5), optimizer=es.optimizers.Adagrad(0.05)
    )
    other = es.keras.distributed_model(theirs, optimizer=keras.optimizers.Adagrad(0.05, epsilon=0))
    ids = ids_without_duplicates()
    assert fit(own, ids) == pytest.approx(fit(other, ids), rel=1e-5)
    assert own.get_layer("table").variable.optimizer == es.optimizers.Adagrad(0.05)
    assert fit(theirs, ids) != pytest.approx(fit(own, ids), rel=1e-3)


def test_a_schedule_of_its_own_counts_the_steps_of_the_table() -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.0])
    own, _ = own_and_theirs(OPTIMIZERS["SGD"], optimizer=keras.optimizers.SGD(schedule))
    ids = ids_without_duplicates()
    fit(own, ids[: 4 * BATCH], epochs=1)
    after_four_steps = rows_of(own)
    fit(own, ids, epochs=1)
    np.testing.assert_array_equal(rows_of(own), after_four_steps)


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "Adam"])
def test_rows_that_outgrow_memory_are_the_same_to_the_last_bit(name: str, tmp_path: Path) -> None:
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, str(tmp_path), [5 * 64])
    option = es.EmbeddingVariableOption(storage)
    _, theirs = own_and_theirs(OPTIMIZERS[name])
    in_dram, tiered = (
        es.keras.distributed_model(theirs, ev_option=given) for given in (None, option)
    )
    ids = ids_with_duplicates()
    assert fit(in_dram, ids) == fit(tiered, ids)
    np.testing.assert_array_equal(rows_of(in_dram), rows_of(tiered))
    assert tiered.get_layer("table").variable.stats()["demotions"] > 0


def test_filters_keep_rare_keys_out() -> None:
    option = es.EmbeddingVariableOption(filter_option=es.CounterFilter(3))
    model = over(es.keras.Embedding(None, DIM, ev_option=option, name="table"))
    model.compile(OPTIMIZERS["Adagrad"](), "mse")
    ids = np.array([[1, 1, 1], [2, 3, 3]], np.int64)
    fit(model, ids, epochs=1)
    np.testing.assert_array_equal(model.get_layer("table").variable.export()["keys"], [1])


def test_initial_rows_have_the_distribution_of_keras() -> None:
    layer = es.keras.Embedding(4096, 8, "glorot_uniform")
    limit = np.sqrt(6 / (4096 + 8))
    rows = layer.dense_rows()
    assert np.abs(rows).max() <= limit
    assert rows.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)
    again = es.keras.Embedding.from_config(layer.get_config())
    np.testing.assert_array_equal(again.dense_rows(), rows)


@pytest.mark.parametrize("constant", [es.initializers.Constant, keras.initializers.Constant])
def test_pretrained_vectors_are_the_initial_rows(constant: Any) -> None:
    vectors = np.random.default_rng(1).normal(size=(KEYS, DIM)).astype(np.float32)
    own = es.keras.Embedding(KEYS, DIM, constant(vectors), name="table")
    np.testing.assert_array_equal(own.dense_rows(), vectors)
    again = es.keras.Embedding.from_config(own.get_config())
    np.testing.assert_array_equal(again.dense_rows(), vectors)


def test_a_layer_whose_table_could_not_be_made_makes_it_in_a_later_call(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "rows"
    storage = es.StorageOption(es.StorageType.DRAM_SSDHASH, folder, [1 << 20])
    option = es.EmbeddingVariableOption(storage_option=storage)
    model = over(es.keras.Embedding(KEYS, DIM, ev_option=option, name="table"))
    predictions(model, ids_with_duplicates())  # makes a table without an optimizer
    model.compile(OPTIMIZERS["Adagrad"](), "mse")
    folder.rename(tmp_path / "away")
    folder.touch()
    with pytest.raises(Exception, match=f"storage_path: {folder} is a file"):
        fit(model, ids_with_duplicates())
    folder.unlink()
    fit(model, ids_with_duplicates())


# --- Errors


@pytest.mark.parametrize("wrong", [-1, KEYS])
def test_ids_out_of_range_are_named(wrong: int) -> None:
    layer = es.keras.Embedding(KEYS, DIM, name="table")
    with pytest.raises(InvalidArgumentError, match=f"from 0 to {KEYS - 1}.*got {wrong}"):
        layer(np.array([[0, wrong]]))


def test_dtypes_that_would_merge_keys_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match='dtype="int64"'):
        es.keras.Embedding(None, DIM)(keras.Input((LENGTH,)))
    with pytest.raises(InvalidArgumentError, match='dtype="int64"'):
        es.keras.Embedding(None, DIM)(keras.Input((LENGTH,), dtype="int32"))
    small = es.keras.Embedding(KEYS, DIM)
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(small(np.array([[3.0]], np.float32))), small.dense_rows()[[[3]]]
    )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "momentum"),
        (lambda: keras.optimizers.Adagrad(0.1, clipnorm=1.0), "clipnorm"),
        (lambda: keras.optimizers.AdamW(0.1), "AdamW"),
        (lambda: keras.optimizers.Lion(0.1), "Lion"),
        (lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2), "accumulation"),
        (lambda: keras.optimizers.Adam(0.1, use_ema=True), "use_ema"),
        (lambda: keras.optimizers.Adam(0.1, amsgrad=True), "amsgrad"),
        (lambda: keras.optimizers.Adadelta(0.1, weight_decay=0.1), "weight_decay"),
        (lambda: keras.optimizers.Adamax(0.1, clipvalue=1.0), "clipvalue"),
        (lambda: keras.optimizers.SGD(0.1, global_clipnorm=1.0), "global_clipnorm"),
        (lambda: keras.optimizers.RMSprop(0.1, centered=True), "centered"),
        (lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=0.1), "l1_reg"),
        (lambda: keras.optimizers.Ftrl(0.1, l2_shrinkage_regularization_strength=0.1), "shrinkage"),
        (lambda: keras.optimizers.Ftrl(0.1, beta=0.1), "beta"),
    ],
)
def test_optimizers_that_cannot_train_rows_are_refused(make: Callable[[], Any], named: str) -> None:
    own, _ = own_and_theirs(OPTIMIZERS["SGD"])
    before = rows_of(own)
    own.compile(make(), "mse")
    with pytest.raises(Exception, match=named) as raised:
        fit(own, ids_without_duplicates())
    if not ON_TENSORFLOW:  # TensorFlow wraps errors from a graph's function
        assert isinstance(raised.value, UnsupportedError)
    np.testing.assert_array_equal(rows_of(own), before)


def test_a_gradient_that_is_nan_trains_no_row() -> None:
    own, _ = own_and_theirs(OPTIMIZERS["SGD"])
    ids = ids_without_duplicates()
    before = rows_of(own)
    with pytest.raises(Exception, match="inf or nan"):
        own.fit(ids, np.full((len(ids), 1), np.nan, np.float32), verbose=0)
    np.testing.assert_array_equal(rows_of(own), before)


def test_another_optimizer_in_the_middle_of_training_is_refused() -> None:
    own, _ = own_and_theirs(OPTIMIZERS["SGD"])
    fit(own, ids_without_duplicates())
    own.compile(OPTIMIZERS["Adagrad"](), "mse")
    with pytest.raises(Exception, match="trained by SGD"):
        fit(own, ids_without_duplicates())


def test_a_model_may_be_compiled_with_another_optimizer_before_its_first_step() -> None:
    own, theirs = own_and_theirs(OPTIMIZERS["SGD"])
    es.keras.variables(own)  # makes the table
    for model in (own, theirs):
        model.compile(OPTIMIZERS["Adagrad"](), "mse")
    assert_trained_alike(own, theirs, ids_without_duplicates())


def test_untrained_tables_get_the_models_present_optimizer() -> None:
    own, _ = own_and_theirs(OPTIMIZERS["SGD"])
    es.keras.variables(own)
    own.compile(OPTIMIZERS["Adagrad"](), "mse")
    (variable,) = es.keras.variables(own)
    assert type(variable.optimizer) is es.optimizers.Adagrad


def test_rows_keep_their_slots_when_their_model_is_compiled_again() -> None:
    own, _ = own_and_theirs(OPTIMIZERS["Adagrad"])
    ids = ids_without_duplicates()
    fit(own, ids)
    (variable,) = es.keras.variables(own)
    before = variable.export()
    own.compile(OPTIMIZERS["Adagrad"](), "mse")
    assert es.keras.variables(own) == [variable]
    assert_same(variable.export(), before)
    fit(own, ids)
    assert (variable.export()["accumulator"] > before["accumulator"]).any()


def test_the_variable_of_a_tables_rows_shows_the_tables_size() -> None:
    layer = over(es.keras.Embedding(KEYS, DIM, name="table")).get_layer("table")
    (rows,) = layer.weights
    assert repr(rows) == "<Rows path=table/rows, of a table of input_dim=48, output_dim=4>"
    assert layer.count_params() == 64, "the guide names this number"


def test_calls_that_would_silently_lose_rows_raise_an_error() -> None:
    own, _ = own_and_theirs(OPTIMIZERS["SGD"])
    with pytest.raises(UnsupportedError, match="save_weights"):
        own.get_weights()
    with pytest.raises(UnsupportedError, match="load_weights"):
        own.get_layer("table").set_weights([np.zeros(own.get_layer("table").weights[0].shape)])
    stopping = keras.callbacks.EarlyStopping(
        monitor="loss", patience=0, restore_best_weights=True, start_from_epoch=0
    )
    with pytest.raises(UnsupportedError, match="ModelCheckpoint"):
        fit(own, ids_without_duplicates(), callbacks=[stopping])


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"input_dim": 0}, "input_dim"),
        ({"output_dim": 0}, "output_dim"),
        ({"name": "\ud800"}, "name must be text"),
        ({"name": "n" * 1001}, "name must be at most 1000 bytes"),
        ({"mask_zero": 1}, "mask_zero"),
        ({"optimizer": "no such"}, "optimizer"),
        ({"optimizer": keras.optimizers.SGD}, "optimizer"),
        ({"optimizer": keras.optimizers.SGD(lambda: 0.1)}, "learning rate"),
        ({"ev_option": 3}, "ev_option"),
        ({"ev_option": {}}, "ev_option must be an embstore.EmbeddingVariableOption, got dict"),
        ({"embeddings_initializer": "no such"}, "embeddings_initializer"),
        ({"embeddings_initializer": "orthogonal"}, "embeddings_initializer: Orthogonal isn't"),
        ({"embeddings_regularizer": "l2"}, "embeddings_regularizer"),
        ({"weights": [np.zeros((4, 2))]}, r"embeddings_initializer=keras\.initializers\.Constant"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises((InvalidArgumentError, UnsupportedError), match=named):
        es.keras.Embedding(**{"input_dim": KEYS, "output_dim": DIM, **arguments})


@pytest.mark.skipif(not ON_TENSORFLOW, reason="only TensorFlow has such tensors in Keras")
@pytest.mark.parametrize("kind", ["sparse", "ragged"])
def test_ids_that_are_not_dense_are_refused(kind: str) -> None:
    import tensorflow as tf

    layer = es.keras.Embedding(9, 2, name="table")
    dense = tf.constant([[1, 0], [2, 3]], tf.int64)
    ids = tf.sparse.from_dense(dense) if kind == "sparse" else tf.RaggedTensor.from_tensor(dense)
    refused = pytest.raises(InvalidArgumentError, match=f"table: ids must be dense, got {kind}")
    with refused:
        layer(ids)
    with refused:
        layer(keras.Input((None,), dtype="int64", **{kind: True}))


@pytest.mark.skipif(ON_TENSORFLOW, reason="only PyTorch has such tensors")
@pytest.mark.parametrize("made", ["to_sparse", "to_sparse_csr"])
def test_sparse_ids_of_pytorch_are_refused(made: str) -> None:
    import torch

    ids = getattr(torch.tensor([[1, 0], [2, 3]]), made)()
    with pytest.raises(InvalidArgumentError, match="table: ids must be dense, got sparse"):
        es.keras.Embedding(9, 2, name="table")(ids)
