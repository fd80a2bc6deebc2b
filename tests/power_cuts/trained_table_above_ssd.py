"""The table of trained_table.py with an SSD tier below its pool, where most of its rows lie."""

from __future__ import annotations

from pathlib import Path

import trained_table

import embstore as es

SSDHASH = es.StorageType.DRAM_PMEM_SSDHASH


def train_above_ssdhash(medium: Path) -> None:
    trained_table.train_and_persist(medium, SSDHASH)


def check_above_ssdhash(medium: Path, output: str) -> None:
    trained_table.check(medium, output, SSDHASH)
