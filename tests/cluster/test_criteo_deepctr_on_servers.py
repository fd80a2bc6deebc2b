"""The DeepCTR workload with its tables in other processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import embstore as es
from pmemlab.workloads.criteo_deepctr.epochs import GeneratedEpochs
from pmemlab.workloads.criteo_deepctr.options import ModelOptions, TableOptions, TrainingOptions
from pmemlab.workloads.synthetic import SyntheticSource

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="needs Keras: pip install 'pmemlab[keras]'")

ROWS = GeneratedEpochs(SyntheticSource(3, 2000, 500), 640)
MODEL = ModelOptions(embedding_dim=4, hidden_units=(16,))


def losses(shards: int | None, **options: Any) -> tuple[str, float | None, int]:
    from pmemlab.workloads.criteo_deepctr.training import train

    tables = TableOptions(es.StorageOption(), shards)
    result = train(ROWS, MODEL, tables, TrainingOptions(batch_size=64, **options))
    assert result.shards == shards
    return result.losses_sha256, result.auc, result.table_rows


@pytest.mark.parametrize("shards", [1, 2])
def test_tables_on_servers_give_the_losses_of_tables_here(ray: Any, shards: int) -> None:
    assert ray.is_initialized()
    assert losses(shards) == losses(None)


def test_a_checkpoint_of_one_server_is_gone_on_from_on_two(ray: Any, tmp_path: Path) -> None:
    assert ray.is_initialized()
    losses(1, checkpoint=tmp_path / "kept")
    rest = losses(2, epochs=2, load=tmp_path / "kept")
    assert rest == losses(None, epochs=2, load=tmp_path / "kept")
