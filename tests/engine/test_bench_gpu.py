"""The benchmark of GPU tiers runs on the emulated GPU, and says that its rates mean nothing."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from embstore.bench.__main__ import main
from embstore.bench.gpu_contenders import OPERATIONS, SERVING, STEP, TRAINING, TorchOnGpu
from embstore.bench.gpu_suite import bytes_per_id

TINY = ["--rows", "600", "--batch-size", "200", "--batches", "1", "--rounds", "1", "--dim", "5"]
TINY += ["--settling-batches", "2"]


def has_a_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def test_without_a_gpu_the_command_fails_and_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if has_a_driver():
        pytest.skip("this computer has a GPU's driver")
    monkeypatch.delenv("EMBSTORE_DEVICE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(["gpu"])
    assert "install NVIDIA's driver" in str(ended.value)


def test_on_the_emulated_gpu_everything_runs_and_the_rates_are_said_to_mean_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = tmp_path / "figures.json"
    main(["gpu", "--device", "emulated", *TINY, "--json", str(written)])
    document = json.loads(written.read_text())
    assert "these rates mean nothing" in capsys.readouterr().out
    assert "these rates mean nothing" in document["caveat"]
    assert document["copy_bytes_per_s"] is None
    assert {*document["unavailable"]} == {"PyTorch", "copy", "dynamicemb", "HierarchicalKV"}
    assert [(each["in_hbm"], each["operation"]) for each in document["results"]] == [
        (share, operation) for share in (1.0, 0.1) for operation in OPERATIONS
    ]
    for each in document["results"]:
        assert each["contender"] == "embstore"
        assert each["ids_per_s"]["median"] > 0
        assert each["bandwidth_ratio"] is None


def test_the_environment_chooses_the_gpu_if_the_command_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBSTORE_DEVICE", "tpu")
    with pytest.raises(SystemExit):
        main(["gpu"])
    assert "--device" in (refusal := capsys.readouterr().err)
    assert "'tpu'" in refusal


def test_an_id_costs_the_bytes_of_its_row_and_in_a_step_those_of_gradient_and_update() -> None:
    batches = [np.array([0, 0, 1, 2])]  # three of four are different
    weights = 4 * 16
    looked_up = 0.75 * weights + weights
    assert bytes_per_id(SERVING, 16, batches) == looked_up
    assert bytes_per_id(TRAINING, 16, batches) == looked_up
    assert bytes_per_id(STEP, 16, batches) == looked_up + weights + 0.75 * 4 * weights


def test_pytorch_s_timed_step_trains_the_rows_that_were_looked_up_and_no_others() -> None:
    torch = pytest.importorskip("torch")
    contender = TorchOnGpu(50, 5, "cpu", seed=1)
    batches = [np.array([3, 4, 4])]
    before = contender._bag.weight.detach().clone()
    contender.work(SERVING, batches, np.ones((3, 5), np.float32))()
    assert torch.equal(contender._bag.weight, before)
    contender.work(STEP, batches, np.ones((3, 5), np.float32))()
    changed = (contender._bag.weight != before).any(dim=1).nonzero().ravel().tolist()
    assert sorted(changed) == sorted({int(contender._places[rank]) for rank in (3, 4)})
