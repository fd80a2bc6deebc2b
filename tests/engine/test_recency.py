"""The order of accesses, which LRU ranks by, holds however many batches there were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoint_variables import files_of
from engine_storage import variable_with_options

import embstore as es
from embstore.checkpoint.manifest import FILE_NAME, Manifest

FIRST_TIER_ROWS = 200
ROW_BYTES = 32


def lru_variable(directory: Path) -> es.EmbeddingVariable:
    return variable_with_options(
        "var",
        3,
        es.StorageOption(
            es.StorageType.DRAM_SSDHASH,
            [None, directory],
            [FIRST_TIER_ROWS * ROW_BYTES],
            cache_strategy=es.CacheStrategy.LRU,
        ),
        optimizer=es.optimizers.Adagrad(0.1),
    )


def apply(var: es.EmbeddingVariable, ids: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> None:
    var.apply_gradients(ids, np.ones((ids.size, 3), np.float32))


@pytest.mark.parametrize("batches", [2**32 - 20, 2**32, 2**33 - 5, 2**40], ids=str)
@pytest.mark.parametrize("how", ["trains", "serves"])
def test_the_most_recent_rows_stay_after_more_batches_than_32_bits_count(
    tmp_path: Path, batches: int, how: str
) -> None:
    (tmp_path / "rows").mkdir()
    with lru_variable(tmp_path / "rows") as var:
        apply(var, np.arange(2000))
        es.save(tmp_path / "save", [var], 1)

        # Changes the manifest to that of a table which has had this number of batches.
        (manifest,) = [file for file in files_of(tmp_path / "save") if file.name == FILE_NAME]
        saved = Manifest.read(manifest.parent)
        manifest.unlink()
        replace(saved, variables=(replace(saved.variables[0], clock=batches),)).write(
            manifest.parent
        )
        es.restore(tmp_path / "save", [var])

        for first in range(0, 2000, 50):
            ids = np.arange(first, first + 50)
            if how == "trains":
                apply(var, ids)
            else:
                var.lookup(ids)
                var.drain()
        var.drain()
        recent = np.arange(2000 - FIRST_TIER_ROWS, 2000)
        assert (var.lookup_tier(recent) == 0).sum() == FIRST_TIER_ROWS
