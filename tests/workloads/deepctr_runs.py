"""Helpers for short runs of the DeepCTR benchmark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embstore as es
from benchmarks.criteo_deepctr.epochs import GeneratedEpochs
from benchmarks.criteo_deepctr.options import ModelOptions, TableOptions, TrainingOptions
from pmemlab.workloads.synthetic import SyntheticSource

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras", reason="Keras isn't installed: pip install embstore[keras]")
if keras.backend.backend() == "torch":
    import torch

    torch.set_num_threads(1)  # threads of parallel tests would wait for each other

from benchmarks.criteo_deepctr.training import Result, State, train  # noqa: E402

SHARED_DATA = Path(__file__).parents[3] / "shared" / "data"

SMALL = ModelOptions(embedding_dim=4, hidden_units=(32, 16), cin_maps=(6, 4), seed=5)
HERE = TableOptions(es.StorageOption())


def generated(rows: int, held_out_rows: int = 2000) -> GeneratedEpochs:
    return GeneratedEpochs(SyntheticSource(3, 2000, held_out_rows), rows)


def short_run(
    model: ModelOptions = SMALL,
    rows: GeneratedEpochs | None = None,
    on_progress: Callable[[State], None] = lambda _state: None,
    **options: Any,
) -> Result:
    given = {"batch_size": 128, "optimizer": "Adam", "learning_rate": 0.02, "seed": 5, **options}
    return train(
        rows or generated(2000), model, HERE, TrainingOptions(**given), on_progress=on_progress
    )
