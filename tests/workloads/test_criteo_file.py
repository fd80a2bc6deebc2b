"""Rows that are written to a file in Criteo's format are read back."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from pmemlab.workloads.criteo import CriteoSource
from pmemlab.workloads.criteo_file import write_raw
from pmemlab.workloads.synthetic import SyntheticSource


def test_rows_come_back_as_criteo_has_them(tmp_path: Path) -> None:
    source = SyntheticSource(seed=1, keys_per_column=2000)
    write_raw(tmp_path / "rows.txt", source, 2000)
    lines = (tmp_path / "rows.txt").read_text().splitlines()
    assert len(lines) == 2000
    assert all(len(line.split("\t")) == 40 for line in lines)
    assert any("\t\t" in line for line in lines)  # values may be missing
    read = CriteoSource(tmp_path / "rows.txt")
    batch = next(iter(read.train_batches(9)))
    written = next(iter(source.train_batches(1024)))
    assert (batch.labels == written.labels[:9]).all()
    present = np.array([[text != "" for text in line.split("\t")[1:14]] for line in lines[:9]])
    assert np.abs(batch.dense - written.dense[:9])[present].max() < 0.2  # whole numbers, unscaled
    held_out = list(islice(read.held_out_batches(500), 2))
    assert len(held_out[0]) == 200
