"""Workers of a job that train a Keras model by fit get one process's result, if one dies too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sharded import assert_same

import embstore as es
from embstore.errors import InvalidArgumentError, UnsupportedError

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="averages on torch alone"),
]


@pytest.mark.long
@pytest.mark.usefixtures("ray")
def test_a_model_ends_as_in_one_process_though_a_worker_is_killed(tmp_path: Path) -> None:
    from keras_job_training import EVERY, STEPS, train, trained_here

    (rows, dense, losses), (_, second, same_losses) = es.cluster.run(
        train, tmp_path, workers=2, checkpoints=tmp_path / "checkpoints"
    )
    wanted_rows, wanted_dense = trained_here(2)
    assert rows is not None
    assert_same(rows, wanted_rows)
    assert losses == same_losses
    assert 1 <= len(losses) < STEPS // EVERY, "one was killed, and nothing is done twice"
    for got, other, wanted in zip(dense, second, wanted_dense, strict=True):
        np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(other, wanted)


@pytest.mark.long
def test_an_error_of_one_worker_is_raised_in_all_workers(tmp_path: Path) -> None:
    program = Path(__file__).with_name("averaging_replica.py")
    replicas = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), str(tmp_path / "meeting")],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for replica in replicas:
            output, errors = replica.communicate(timeout=300)
            assert replica.returncode == 0, errors
            assert "must start alike in all workers, but model/dense/kernel differs" in output
            assert "a gradient is inf or nan" in output, "though it is the second worker's"
    finally:
        for replica in replicas:
            replica.kill()


def test_averaging_needs_a_group_and_an_optimizer() -> None:
    with pytest.raises(InvalidArgumentError, match="there is no process group"):
        es.keras.averaged(keras.optimizers.Adam())
    with pytest.raises(InvalidArgumentError, match=r"optimizer must be one of keras\.optimizers"):
        es.keras.averaged("adam")


def test_a_scaled_loss_is_averaged_outside_of_the_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights_of(optimizer: object) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        ids = keras.Input((3,), dtype="int64")
        rows = keras.layers.Flatten()(es.keras.Embedding(None, 4)(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(rows))
        model.compile(optimizer, "mse")
        model.train_on_batch(np.arange(6).reshape(2, 3), np.ones((2, 1), np.float32))
        weights = [keras.ops.convert_to_numpy(weight) for weight in model.layers[-1].weights]
        return [*weights, es.keras.variables(model)[0].export()["values"]]

    scaled, sgd = keras.optimizers.LossScaleOptimizer, keras.optimizers.SGD
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        alone = weights_of(scaled(sgd(0.1)))
        for got, wanted in zip(weights_of(es.keras.averaged(scaled(sgd(0.1)))), alone, strict=True):
            np.testing.assert_array_equal(got, wanted)
        with pytest.raises(UnsupportedError, match="leaves out steps in one worker"):
            weights_of(scaled(es.keras.averaged(sgd(0.1))))
    finally:
        torch.distributed.destroy_process_group()
