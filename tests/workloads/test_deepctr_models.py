"""WDL, DeepFM and xDeepFM against their papers' formulas, written as loops in numpy."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from deepctr_runs import HERE, SMALL, keras
from numpy.typing import NDArray

from benchmarks.criteo_deepctr.interactions import CompressedInteraction, PairwiseInteraction
from benchmarks.criteo_deepctr.models import make_model
from benchmarks.criteo_deepctr.options import HIDDEN_UNITS, ModelOptions

Floats = NDArray[np.float64]

SAMPLES = 5
KEYS = np.random.default_rng(0).integers(-(2**63), 2**63, (SAMPLES, 26))
NUMBERS = np.random.default_rng(1).random((SAMPLES, 13), np.float32)
ROWS = np.random.default_rng(2).normal(size=(SAMPLES, 7, 3)).astype(np.float32)


def trained(name: str) -> Any:
    """Returns a model after a few steps, so that no parameter is 0 or 1."""
    keras.utils.set_random_seed(11)
    model = make_model(replace(SMALL, name=name), HERE)
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy")
    for _ in range(3):
        model.train_on_batch([KEYS, NUMBERS], np.arange(SAMPLES)[:, None] % 2)
    return model


def weights(model: Any, layer: str) -> list[Floats]:
    return [np.asarray(each, np.float64) for each in model.get_layer(layer).get_weights()]


def rows_of(model: Any, layer: str) -> Floats:
    rows: Floats = model.get_layer(layer).variable.lookup(KEYS).astype(np.float64)
    return rows


def linear_and_deep(model: Any) -> Floats:
    kernel, bias = weights(model, "linear")
    logits: Floats = rows_of(model, "linear_rows")[:, :, 0].sum(axis=1) + NUMBERS @ kernel[:, 0]
    logits += bias[0]
    hidden: Floats = np.concatenate([rows_of(model, "rows").reshape(SAMPLES, -1), NUMBERS], axis=1)
    for number in (1, 2):
        kernel, bias = weights(model, f"hidden_{number}")
        hidden = np.maximum(hidden @ kernel + bias, 0)
    logits += (hidden @ weights(model, "deep")[0])[:, 0]
    return logits


def pairwise(rows: Floats) -> Floats:
    pairs = combinations(range(rows.shape[1]), 2)
    products = [(rows[:, i] * rows[:, j]).sum(axis=1) for i, j in pairs]
    total: Floats = np.sum(products, axis=0)
    return total


def compressed(rows: Floats, kernels: list[Floats]) -> Floats:
    """Returns the CIN's sums, computed over i and j one product of two rows at a time."""
    samples, features, dim = rows.shape
    before, sums = rows, []
    for kernel in kernels:
        count = kernel.shape[1]
        w = kernel.reshape(before.shape[1], features, count)
        maps = np.zeros((samples, count, dim))
        for h in range(count):
            for i in range(before.shape[1]):
                for j in range(features):
                    maps[:, h] += w[i, j, h] * (before[:, i] * rows[:, j])
        sums.append(maps.sum(axis=2))
        before = maps
    return np.concatenate(sums, axis=1)


def chances(model: Any) -> Floats:
    return np.asarray(model.predict_on_batch([KEYS, NUMBERS]))[:, 0]


def sigmoid(logits: Floats) -> Floats:
    result: Floats = 1 / (1 + np.exp(-logits))
    return result


def test_wdl_is_a_linear_model_and_a_deep_one() -> None:
    model = trained("WDL")
    np.testing.assert_allclose(chances(model), sigmoid(linear_and_deep(model)), rtol=1e-5)


def test_deepfm_adds_the_products_of_all_pairs_of_rows() -> None:
    model = trained("DeepFM")
    second_order = pairwise(rows_of(model, "rows"))
    assert np.abs(second_order).min() > 0.01, "nothing would tell it from WDL"
    expected = sigmoid(linear_and_deep(model) + second_order)
    np.testing.assert_allclose(chances(model), expected, rtol=1e-5)


def test_xdeepfm_adds_what_its_cin_makes_of_the_rows() -> None:
    model = trained("xDeepFM")
    maps = compressed(rows_of(model, "rows"), weights(model, "cin"))
    from_maps = (maps @ weights(model, "of_maps")[0])[:, 0]
    assert np.abs(from_maps).min() > 0.01, "nothing would tell it from WDL"
    expected = sigmoid(linear_and_deep(model) + from_maps)
    np.testing.assert_allclose(chances(model), expected, rtol=1e-5)


def test_the_pairwise_interaction_is_that_of_all_pairs() -> None:
    found = np.asarray(PairwiseInteraction()(ROWS))
    assert found.shape == (SAMPLES, 1)
    np.testing.assert_allclose(found[:, 0], pairwise(ROWS.astype(np.float64)), rtol=1e-4)


def test_the_cin_sums_every_layers_maps() -> None:
    layer = CompressedInteraction((4, 3, 2))
    found = np.asarray(layer(ROWS).detach() if hasattr(layer(ROWS), "detach") else layer(ROWS))
    kernels = [np.asarray(kernel, np.float64) for kernel in layer.get_weights()]
    assert [kernel.shape for kernel in kernels] == [(49, 4), (28, 3), (21, 2)]
    np.testing.assert_allclose(found, compressed(ROWS.astype(np.float64), kernels), atol=1e-4)


@pytest.mark.parametrize("name", HIDDEN_UNITS)
@pytest.mark.parametrize("dim", [9, 64])
def test_models_have_the_benchmarks_sizes(name: str, dim: int) -> None:
    model = make_model(ModelOptions(name, dim), HERE)
    units = [layer.units for layer in model.layers if layer.name.startswith("hidden_")]
    assert units == list(HIDDEN_UNITS[name])
    assert model.get_layer("rows").output_dim == dim
    assert model.get_layer("linear_rows").output_dim == 1
