"""Two processes train one model's dense layers together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from deepctr_runs import HERE, SMALL, keras
from deepctr_worker import STEPS, batch, dense_model

from pmemlab.workloads.criteo_deepctr.averaging import average_dense_gradients, joined
from pmemlab.workloads.criteo_deepctr.epochs import Worker
from pmemlab.workloads.criteo_deepctr.models import make_model

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="several workers need Keras on torch"
)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def test_they_end_as_one_that_had_both_batches_at_once(tmp_path: Path) -> None:
    port = str(free_port())
    script = Path(__file__).with_name("deepctr_worker.py")
    paths = [tmp_path / f"{number}.npz" for number in range(2)]
    alone_on_a_core = {**os.environ, "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(number), str(path)], env=alone_on_a_core
        )
        for number, path in enumerate(paths)
    ]
    try:
        assert [worker.wait(timeout=60) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
    alone = dense_model()
    for step in range(STEPS):
        both = [batch(2 * step + number) for number in range(2)]
        alone.train_on_batch(*(np.concatenate(each) for each in zip(*both, strict=True)))
    with np.load(paths[0]) as first, np.load(paths[1]) as second:
        for name, weights in zip(first.files, alone.get_weights(), strict=True):
            np.testing.assert_array_equal(first[name], second[name])
            np.testing.assert_allclose(first[name], weights, rtol=1e-4, atol=1e-6)
    untrained = dense_model().get_weights()
    assert all(
        np.abs(a - b).max() > 1e-3 for a, b in zip(alone.get_weights(), untrained, strict=True)
    )


def test_rows_are_left_to_the_tables() -> None:
    """A worker by itself averages with nobody, and trains its rows as without averaging."""
    keys, numbers = np.arange(52).reshape(2, 26), np.ones((2, 13), np.float32)

    def trained(averaged: bool) -> object:
        keras.utils.set_random_seed(1)
        model = make_model(SMALL, HERE)
        model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy")
        model.optimizer.build(model.trainable_variables)
        if averaged:
            average_dense_gradients(model.optimizer)
        for _ in range(2):
            model.train_on_batch([keys, numbers], np.array([[0], [1]]))
        return model.get_layer("rows").variable.lookup(keys)

    with joined(f"127.0.0.1:{free_port()}", Worker()):
        np.testing.assert_array_equal(trained(averaged=True), trained(averaged=False))
