"""The DeepCTR workload with its tables on servers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import embstore as es
from benchmarks.criteo_deepctr.epochs import FileEpochs, GeneratedEpochs
from benchmarks.criteo_deepctr.options import ModelOptions, TableOptions, TrainingOptions
from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.criteo_file import write_raw
from pmemlab.workloads.synthetic import SyntheticSource

if TYPE_CHECKING:
    from benchmarks.criteo_deepctr.training import Result

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


TWO_SERVERS = TableOptions(es.StorageOption(), 2)
TOGETHER = TrainingOptions(batch_size=32, epochs=2)


@pytest.fixture(scope="module")
def file_rows(tmp_path_factory: pytest.TempPathFactory) -> FileEpochs:
    path = tmp_path_factory.mktemp("criteo") / "rows"
    write_raw(path, SyntheticSource(3, 2000), 700)
    return FileEpochs(CriteoSource(path), 70)


@pytest.fixture(scope="module")
def together(ray: Any, file_rows: FileEpochs) -> Result:
    """The result of two workers on two servers, made once: a job takes seconds to import Keras."""
    from benchmarks.criteo_deepctr.joint_training import train_with_workers

    assert ray.is_initialized()
    return train_with_workers(file_rows, MODEL, TWO_SERVERS, TOGETHER, 2)


@pytest.mark.long
def test_two_workers_train_like_one_with_batches_twice_as_large(
    together: Result, file_rows: FileEpochs
) -> None:
    """Except for rounding: a mean of two means isn't summed like the mean of all."""
    from benchmarks.criteo_deepctr.training import train

    options = replace(TOGETHER, batch_size=64)
    alone = train(file_rows, MODEL, TableOptions(es.StorageOption()), options)
    assert alone.auc is not None
    assert together.auc == pytest.approx(alone.auc, abs=2e-3)
    assert (together.rows * 2, together.table_rows) == (alone.rows, alone.table_rows)


@pytest.mark.long
def test_workers_continue_from_their_checkpoint(
    together: Result, file_rows: FileEpochs, tmp_path: Path
) -> None:
    """They get the bits of workers that weren't stopped, whatever the timing and the shards."""
    from benchmarks.criteo_deepctr.joint_training import train_with_workers

    options = replace(TOGETHER, epochs=1, checkpoint=tmp_path / "kept")
    train_with_workers(file_rows, MODEL, TableOptions(es.StorageOption(), 1), options, 2)
    rest = train_with_workers(file_rows, MODEL, TWO_SERVERS, replace(options, epochs=2), 2)
    assert rest.steps == together.steps // 2
    assert (rest.auc, rest.table_rows) == (together.auc, together.table_rows)


@pytest.mark.long
def test_training_continues_on_two_servers_from_a_checkpoint_of_one(
    ray: Any, tmp_path: Path
) -> None:
    assert ray.is_initialized()
    losses(1, checkpoint=tmp_path / "kept")
    rest = losses(2, epochs=2, load=tmp_path / "kept")
    assert rest == losses(None, epochs=2, load=tmp_path / "kept")
