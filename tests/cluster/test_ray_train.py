"""Ray Train's workers share tables, and continue from the last checkpoint after a restart."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from sharded import assert_same

import embstore as es

torch = pytest.importorskip("torch")
for needed in ("ray", "pandas", "pyarrow", "pydantic"):  # modules that Ray Train needs
    pytest.importorskip(needed, reason="needs Ray Train: pip install 'embstore[train]'")

import ray_train_training  # noqa: E402
from ray_train_training import DIES_IN_STEP, EVERY, train, trained_here  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(600), pytest.mark.usefixtures("ray")]


def test_a_worker_that_is_killed_once_changes_no_row(tmp_path: Path) -> None:
    ray_train = importlib.import_module("ray.train")
    ray_train_torch = importlib.import_module("ray.train.torch")
    cloudpickle = importlib.import_module("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(ray_train_training)  # workers can't import from tests
    with es.cluster.Job(workers=2, checkpoints=tmp_path / "checkpoints") as job:
        ray_train_torch.TorchTrainer(
            train,
            train_loop_config={"ticket": job.ticket, "folder": tmp_path},
            scaling_config=ray_train.ScalingConfig(num_workers=2),
            torch_config=ray_train_torch.TorchConfig(backend="gloo"),
            run_config=ray_train.RunConfig(
                storage_path=str(tmp_path / "ray"),
                failure_config=ray_train.FailureConfig(max_failures=1),
            ),
        ).fit()
    assert len(list(tmp_path.glob("worker-*"))) == 4, "two, twice"
    last = DIES_IN_STEP // EVERY * EVERY
    assert {path.name for path in tmp_path.glob("restored-*")} == {
        f"restored-{last}-{rank}" for rank in range(2)
    }
    rows, dense = trained_here(2)
    assert_same(dict(np.load(tmp_path / "rows.npz")), rows)
    trained = torch.load(tmp_path / "dense.pt")
    for name, values in dense.items():
        assert torch.equal(trained[name], values), name
