"""Replicas of a model in two processes, each with a variable of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Returns the reports that the two processes have written."""
    program = Path(__file__).with_name("replicas.py")
    folder = tmp_path_factory.mktemp("replicas")
    process = subprocess.Popen(
        [sys.executable, program, folder / "rendezvous"],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("how", ["at once", "gathered"])
def test_replicas_are_trained_by_the_gradients_of_all(
    replicas: list[dict[str, Any]], how: str
) -> None:
    (first, alone), (second, _) = (replica[how] for replica in replicas)
    assert first == second  # to the last bit
    for column, wanted in alone.items():
        if column in ("keys", "freqs", "versions"):
            assert first[column] == wanted
        else:
            np.testing.assert_allclose(first[column], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["recomputed", "beside FSDP", "beside fully_shard"])
def test_replicas_stay_alike_if_activations_are_recomputed_or_other_parameters_sharded(
    replicas: list[dict[str, Any]], how: str
) -> None:
    first, second = (replica[how] for replica in replicas)
    assert first == second
    assert sum(first["freqs"]) == sum(5 + rank for rank in range(2)) * 2


@pytest.mark.parametrize("when", ["evaluation past the wrapper", "after the group's end"])
def test_past_the_wrapper_a_module_is_evaluated_and_after_the_groups_end_trained(
    replicas: list[dict[str, Any]], when: str
) -> None:
    assert [replica[when] for replica in replicas] == ["", ""]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("other rows", "table: replicas must start alike, but their rows differ between rank 0"),
        ("other rates", "table: replicas must start alike, but their optimizers differ"),
        ("no_sync", "table: in no_sync() its replicas would be trained apart"),
        ("join", "table: its replicas can't be trained in join()"),
        ("past the wrapper", "table: its replicas would be trained apart"),
        ("reentrant", "table: its replicas would be trained apart"),
        ("fully_shard", "table: FullyShardedDataParallel, fully_shard, a"),
        ("FSDP", "table: FullyShardedDataParallel, fully_shard, a"),
        ("FSDP with original parameters", "table: FullyShardedDataParallel, fully_shard, a"),
    ],
)
def test_uses_that_would_let_replicas_diverge_are_refused_in_all_of_them(
    replicas: list[dict[str, Any]], what: str, message: str
) -> None:
    assert [replica[what].startswith(message) for replica in replicas] == [True, True]
