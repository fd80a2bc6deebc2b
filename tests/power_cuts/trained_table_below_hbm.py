"""The table of trained_table.py with HBM, on the emulated GPU, above its DRAM."""

from __future__ import annotations

from pathlib import Path

import trained_table

import embstore as es

HBM = es.StorageType.HBM_DRAM_PMEM


def train_below_hbm(medium: Path) -> None:
    trained_table.train_and_persist(medium, HBM)


def check_below_hbm(medium: Path, output: str) -> None:
    trained_table.check(medium, output, HBM)
