"""Scenarios under pytest-xdist: what its workers found comes together in one report.

A worker runs the scenarios that it is given on machines of its own, and writes a results file of
its own. What the controller prints, it has from the workers when they end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pmemlab.scenarios.metrics import Metric
from pmemlab.scenarios.options import WORKER_OUTPUT
from pmemlab.scenarios.report import tables
from pmemlab.scenarios.rows import result_rows

__all__ = ["Findings", "is_worker"]


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


class Findings:
    """What the workers found. leftovers: machines that could not be stopped, and why."""

    def __init__(self) -> None:
        self.metrics: list[Metric] = []
        self._files: list[Path] = []
        self.leftovers: list[str] = []
        # Workers would disturb what each other measures.
        self.without_rate = ["tests ran at the same time (-n); without -n rates are modelled too"]

    def tables(self, width: int) -> str:
        return tables(result_rows(self.metrics), width)

    def written_files(self) -> list[Path]:
        return self._files

    @staticmethod
    def tell(
        config: Any, metrics: Sequence[Metric], files: Sequence[Path], leftovers: Sequence[str]
    ) -> None:
        """Of a worker, to the controller. config: the worker's."""
        config.workeroutput[WORKER_OUTPUT] = {
            "metrics": json.dumps([metric.as_json() for metric in metrics]),
            "files": [str(path) for path in files],
            "leftovers": list(leftovers),
        }

    def add(self, workeroutput: Mapping[str, Any]) -> None:
        """Take in what a worker told."""
        told = workeroutput.get(WORKER_OUTPUT)
        if told is not None:
            self.metrics += map(Metric.from_json, json.loads(told["metrics"]))
            self._files += [Path(path) for path in told["files"]]
            self.leftovers += told["leftovers"]
