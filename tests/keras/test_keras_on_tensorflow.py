"""Runs the tests of this folder, of prefetching and of many tables again with Keras on TensorFlow,
in another process. Tests with the mark `any_backend` aren't repeated.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tensorflow_environment import PYTHON, assert_tests_pass, run

HERE = Path(__file__).parent
CLUSTER = HERE.parent / "cluster"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        PYTHON is None or not importlib.util.find_spec("keras"),
        reason="TensorFlow isn't installed: make tensorflow",
    ),
]


ON_TWO_REPLICAS = """
import keras, numpy as np, tensorflow as tf
import embstore as es

cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    ids = keras.Input((2,), dtype="int64")
    rows = es.keras.Embedding(10, 4)(ids)
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
    model.compile(keras.optimizers.SGD(0.01), "mse")
model.fit(np.zeros((8, 2), np.int64), np.zeros(8), verbose=0)
"""


def test_training_on_several_replicas_is_refused() -> None:
    result = run("-c", ON_TWO_REPLICAS, KERAS_BACKEND="tensorflow")
    assert result.returncode == 1
    assert "rows can't be trained by several replicas" in result.stderr, result.stderr[-2000:]


def test_keras_on_tensorflow_passes_the_same_tests() -> None:
    assert_tests_pass(
        HERE,
        CLUSTER / "test_keras_pulling.py",
        CLUSTER / "test_modules_of_many_tables.py",
        but="any_backend",
        KERAS_BACKEND="tensorflow",
    )
