"""The DeepCTR workload with its tables in other processes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import embstore as es
from benchmarks.criteo_deepctr.epochs import FileEpochs, GeneratedEpochs
from benchmarks.criteo_deepctr.options import ModelOptions, TableOptions, TrainingOptions
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.criteo_file import write_raw
from pmemlab.workloads.synthetic import SyntheticSource

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras", reason="needs Keras: pip install 'embstore[keras]'")

ROWS = GeneratedEpochs(SyntheticSource(3, 2000, 500), 640)
MODEL = ModelOptions(embedding_dim=4, hidden_units=(16,))


def losses(shards: int | None, **options: Any) -> tuple[str, float | None, int]:
    from benchmarks.criteo_deepctr.training import train

    tables = TableOptions(es.StorageOption(), shards)
    result = train(ROWS, MODEL, tables, TrainingOptions(batch_size=64, **options))
    assert result.shards == shards
    return result.losses_sha256, result.auc, result.table_rows


@pytest.mark.long
def test_tables_on_servers_give_the_losses_of_tables_here(ray: Any) -> None:
    assert ray.is_initialized()
    assert losses(2) == losses(None)


@pytest.mark.long
def test_two_workers_train_as_one_of_batches_twice_as_large(ray: Any, tmp_path: Path) -> None:
    """But for rounding: a mean of two means isn't summed as the mean of all."""
    from benchmarks.criteo_deepctr.together import train_together
    from benchmarks.criteo_deepctr.training import train

    assert ray.is_initialized()
    write_raw(tmp_path / "rows", SyntheticSource(3, 2000), 700)
    rows = FileEpochs(CriteoSource(tmp_path / "rows"), 70)
    options = TrainingOptions(batch_size=32, epochs=2)
    together = train_together(rows, MODEL, TableOptions(es.StorageOption(), 2), options, 2)
    again = train_together(rows, MODEL, TableOptions(es.StorageOption(), 1), options, 2)
    assert together.losses_sha256 == again.losses_sha256, "whatever the timing and the shards"
    options = TrainingOptions(batch_size=64, epochs=2)
    alone = train(rows, MODEL, TableOptions(es.StorageOption()), options)
    assert alone.auc is not None
    assert together.auc == pytest.approx(alone.auc, abs=2e-3)
    assert (together.rows * 2, together.table_rows) == (alone.rows, alone.table_rows)


@pytest.mark.long
def test_workers_go_on_from_their_checkpoint(ray: Any, tmp_path: Path) -> None:
    from benchmarks.criteo_deepctr.together import train_together

    assert ray.is_initialized()
    tables = TableOptions(es.StorageOption(), 2)
    options = TrainingOptions(batch_size=32, epochs=2, checkpoint=tmp_path / "whole")
    whole = train_together(ROWS, MODEL, tables, options, 2)
    options = TrainingOptions(batch_size=32, epochs=1, checkpoint=tmp_path / "parts")
    train_together(ROWS, MODEL, tables, options, 2)
    rest = train_together(ROWS, MODEL, tables, replace(options, epochs=2), 2)
    assert rest.steps == whole.steps // 2
    assert (rest.auc, rest.table_rows) == (whole.auc, whole.table_rows)


@pytest.mark.long
def test_a_checkpoint_of_one_server_is_gone_on_from_on_two(ray: Any, tmp_path: Path) -> None:
    assert ray.is_initialized()
    losses(1, checkpoint=tmp_path / "kept")
    rest = losses(2, epochs=2, load=tmp_path / "kept")
    assert rest == losses(None, epochs=2, load=tmp_path / "kept")
