"""Scenarios under pytest-xdist: what its workers found comes together in one report.

A worker runs the scenarios that it is given on machines of its own, and writes them to a results
file that its controller has named: so what it found is known, however it ends. All else the
controller has from it when it ends.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pmemlab.scenarios.metrics import Metric, ResultsFile, read_results
from pmemlab.scenarios.options import WORKER_OUTPUT
from pmemlab.scenarios.report import tables
from pmemlab.scenarios.rows import result_rows

__all__ = ["Findings", "is_worker"]


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


class Findings:
    """What the workers found, as the controller has it.

    choices: which machine each topology got, and why. leftovers: machines that could not be
    stopped, and why. refusal: why nothing was run, or None.
    """

    def __init__(self, results: Path) -> None:
        """results: the folder of the workers' files."""
        self._results = results
        self._names: list[str] = []
        self.choices: dict[str, None] = {}  # each once, in their order
        self.leftovers: list[str] = []
        self.refusal: str | None = None
        # Workers would disturb what each other measures.
        self.without_rate = ["tests ran at the same time (-n); without -n rates are modelled too"]

    def new_file(self) -> str:
        """Returns the name of another worker's file."""
        self._names.append(ResultsFile.new_name())
        return self._names[-1]

    def written_files(self) -> list[Path]:
        paths = [self._results / name for name in self._names]
        return [path for path in paths if path.exists()]

    @functools.cached_property
    def metrics(self) -> list[Metric]:
        """Those of all workers, when these have ended."""
        return [metric for path in self.written_files() for metric in read_results(path)]

    def tables(self, width: int) -> str:
        return tables(result_rows(self.metrics), width)

    @staticmethod
    def tell(config: Any, **told: Sequence[str] | str) -> None:
        """Of a worker, to the controller: choices, leftovers, or a refusal. config: the worker's.

        xdist takes an error in the worker's collection for a crash of its own.
        """
        config.workeroutput.setdefault(WORKER_OUTPUT, {}).update(told)

    def add(self, workeroutput: Mapping[str, Any]) -> None:
        """Take in what a worker told."""
        told = workeroutput.get(WORKER_OUTPUT, {})
        self.choices |= dict.fromkeys(told.get("choices", ()))
        self.leftovers += told.get("leftovers", ())
        self.refusal = self.refusal or told.get("refusal")
