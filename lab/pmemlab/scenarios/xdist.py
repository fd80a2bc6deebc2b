"""Scenarios under pytest-xdist: combines the findings of its workers in one report.

A worker runs its scenarios on machines of its own, and writes their metrics to a results file named
by the controller, so they are known however the worker ends. The controller gets everything else
when the worker ends.
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
    """The workers' findings, in the controller.

    choices: the machine of each topology, with the reason. leftovers: machines that could not be
        stopped, with the reasons. refusal: why nothing was run, or None.
    """

    def __init__(self, results: Path) -> None:
        """results: the folder of the workers' files."""
        self._results = results
        self._names: list[str] = []
        self.choices: dict[str, None] = {}  # a set in order
        self.leftovers: list[str] = []
        self.refusal: str | None = None
        # Workers would disturb each other's measurements.
        self.without_rate = ["tests ran at the same time (-n); without -n rates are modelled too"]

    def new_file(self) -> str:
        """Returns the name of a new worker's file."""
        self._names.append(ResultsFile.new_name())
        return self._names[-1]

    def written_files(self) -> list[Path]:
        paths = [self._results / name for name in self._names]
        return [path for path in paths if path.exists()]

    @functools.cached_property
    def metrics(self) -> list[Metric]:
        """The metrics of all workers. REQUIRES: they have ended."""
        return [metric for path in self.written_files() for metric in read_results(path)]

    def tables(self, width: int) -> str:
        return tables(result_rows(self.metrics), width)

    @staticmethod
    def send_to_controller(config: Any, **findings: Sequence[str] | str) -> None:
        """Sends findings from a worker to the controller: choices, leftovers, or a refusal.

        config: the worker's. A refusal is sent because xdist takes an error in a worker's
            collection for a crash of its own.
        """
        config.workeroutput.setdefault(WORKER_OUTPUT, {}).update(findings)

    def add(self, workeroutput: Mapping[str, Any]) -> None:
        """Adds a worker's findings."""
        findings = workeroutput.get(WORKER_OUTPUT, {})
        self.choices |= dict.fromkeys(findings.get("choices", ()))
        self.leftovers += findings.get("leftovers", ())
        self.refusal = self.refusal or findings.get("refusal")
