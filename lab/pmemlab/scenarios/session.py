"""A run of scenarios, from the choice of machines to the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pmemlab.errors import LabError
from pmemlab.machines import opening
from pmemlab.machines.capacity import max_parallel_machines
from pmemlab.machines.choice import Choice, MachineChooser
from pmemlab.machines.protocol import Kind, KindOrAuto, Machine
from pmemlab.scenarios.document import PLACES, Scenario, ScenarioError
from pmemlab.scenarios.metrics import Metric, ResultsFile, commit_of
from pmemlab.scenarios.modelled_rates import RateModel
from pmemlab.scenarios.rate_kinds import why_not_measured
from pmemlab.scenarios.report import tables
from pmemlab.scenarios.rows import result_rows
from pmemlab.scenarios.run_metrics import RATES, rate_metrics, run_metrics
from pmemlab.scenarios.runner import Job, Outcome, ScenarioRunner
from pmemlab.scenarios.verdict import (
    judge,
    judge_placement,
    judge_power_cuts,
    parse_outcome,
)
from pmemlab.topology import Topology

__all__ = ["ScenarioSession"]

_POLL_S = 0.5

Waiting = Callable[[Sequence[str]], None]
"""Called about twice a second during a wait for an outcome, with the current activities."""


class ScenarioSession:
    """A run of the selected scenarios. REQUIRES: `close` is called at the end."""

    def __init__(
        self,
        selected: Sequence[tuple[Scenario, str]],
        machine: KindOrAuto,
        root: Path,
        *,
        results: str | None = None,
        runs_ahead: bool = True,
        handed_over: Collection[str] = (),
    ) -> None:
        """Chooses a machine for each of the selected scenarios and storage types; starts none yet.

        root: the project's folder; results go to its folder `results`.
        results: name of their file there, as in `ResultsFile`.
        runs_ahead: whether all of the selected will be waited for, so that they can run before
            their turn. Otherwise each starts when it is waited for.
        handed_over: names of topologies whose machine `take_machine` takes after its runs, if the
            machine belongs to this run alone.

        Raises ScenarioError if two topologies have one name, which identifies a machine.
        """
        _check_names([scenario for scenario, _ in selected])
        chooser = MachineChooser(machine, root)
        self._choices: dict[str, Choice] = {}
        for scenario, _ in selected:
            name = scenario.topology.name
            if name not in self._choices:
                self._choices[name] = chooser.choose(scenario.topology)
        self._jobs = {
            (scenario.path, storage_type): Job(
                scenario, storage_type, self._choices[scenario.topology.name].kind
            )
            for scenario, storage_type in selected
        }
        # Other processes wait for the lease of the lab's container, so it isn't kept.
        names = [
            name
            for name in handed_over
            if runs_ahead and name in self._choices and self._choices[name].is_private
        ]
        self._runner = ScenarioRunner(opening.open_machine, max_parallel_machines(), names)
        self._runs_ahead = runs_ahead
        self._started: set[Job] = set()
        self._waited_for: set[Job] = set()  # jobs whose outcome was waited for
        self._commit = commit_of(root)
        self._results = ResultsFile(root / "results", results)
        self._unrated: list[tuple[Scenario, str]] = []
        self.metrics: list[Metric] = []
        self.without_rate: list[str] = []

    def choice_lines(self) -> list[str]:
        """Returns lines that say which machine each topology gets, and why."""
        by_choice: dict[Choice, list[str]] = {}
        for name, choice in self._choices.items():
            by_choice.setdefault(choice, []).append(name)
        return [
            f"machines: {choice.kind} for {', '.join(names)}: {choice.why}"
            for choice, names in by_choice.items()
        ]

    def kind_for(self, scenario: Scenario) -> Kind:
        """Returns the kind of machine that the scenario gets."""
        return self._choices[scenario.topology.name].kind

    def wait_for(self, scenario: Scenario, storage_type: str, waiting: Waiting) -> Outcome:
        """Returns the outcome of a run, after starting it, or all of them. A second request starts
        another run, for a plugin that retries failed tests. Raises LabError.
        """
        job = self._jobs[scenario.path, storage_type]
        if job not in self._started or job in self._waited_for:
            is_first = self._runs_ahead and not self._started
            jobs = list(self._jobs.values()) if is_first else [job]
            self._started.update(jobs)
            self._runner.start(jobs)
        self._waited_for.add(job)
        while (outcome := self._runner.outcome(job, timeout_s=_POLL_S)) is None:
            waiting(self._runner.activities())
        return outcome

    def take_machine(self, topology: Topology) -> Machine | None:
        """Returns the topology's machine, once its scenarios have run; the caller must stop it.
        Returns None if there is none."""
        is_ours = any(job.scenario.topology == topology for job in self._started)
        return self._runner.take(topology.name) if is_ours else None

    def judge(self, scenario: Scenario, storage_type: str, outcome: Outcome) -> list[str]:
        """Raises ExpectationError if something does not hold, else records the metrics.

        Returns the facts of the topology that the machine could not prove. If there are any, the
        place of the rows was not judged.
        """
        if scenario.power_cuts is not None:
            judge_power_cuts(scenario.power_cuts, outcome.power_cuts, outcome.result)
        document = parse_outcome(scenario, storage_type, outcome)
        judge(scenario, storage_type, document, outcome.power_cuts)
        unproved = outcome.facts.get("unproved") or []
        assert isinstance(unproved, list)
        if not unproved and PLACES not in scenario.not_judged:
            judge_placement(
                scenario, outcome.topology, outcome.facts, outcome.facts_after, document
            )
        metrics = run_metrics(scenario, storage_type, outcome, document["run"], self._commit)
        self._record(metrics)
        if outcome.machine == "host":
            self._record_why_not_measured(scenario, storage_type, outcome, document["run"])
        if all(metric.kind == "functional-only" for metric in metrics if metric.name in RATES):
            self._unrated.append((scenario, storage_type))
        return unproved

    def model_rates(self, on_step: Callable[[Sequence[str]], None]) -> None:
        """Adds rates on the devices that emulated media stand for, for the runs that passed.

        They are modelled from runs on this computer, so every machine is stopped first. on_step:
        gets the current step. Failures are reported in `without_rate`.
        """
        self._runner.close()
        model = RateModel(self._unrated)
        for scenario, storage_type in self._unrated:
            try:
                rate = model.rate(scenario, storage_type, lambda step: on_step([step]))
                if rate is not None:
                    self._record(rate_metrics(scenario, storage_type, rate, self._commit))
            except LabError as error:
                self.without_rate.append(f"{scenario.name} on {storage_type}: {error}")
        self._unrated.clear()

    def _record_why_not_measured(
        self, scenario: Scenario, storage_type: str, outcome: Outcome, run: Mapping[str, Any]
    ) -> None:
        """Records why a host's rates are not `measured`, since a host is chosen for its rates."""
        reasons = why_not_measured(scenario, storage_type, outcome, run)
        if reasons:
            self.without_rate.append(f"{scenario.name} on {storage_type}: {'; '.join(reasons)}")

    def _record(self, metrics: Sequence[Metric]) -> None:
        self.metrics += metrics  # for the table, even if the file fails
        try:
            self._results.append(metrics)
        except OSError as error:
            raise LabError(f"results can't be written to {self._results.path}: {error}") from error

    def tables(self, width: int) -> str:
        return tables(result_rows(self.metrics), width)

    def written_files(self) -> list[Path]:
        return [path for path in [self._results.path] if path.exists()]

    def leftovers(self) -> list[str]:
        """Returns machines that could not be stopped, and why. REQUIRES: `close` was called."""
        return self._runner.leftovers

    def close(self) -> None:
        """Stops everything. Idempotent."""
        self._runner.close()
        self._results.close()


def _check_names(scenarios: Sequence[Scenario]) -> None:
    earlier: dict[str, Scenario] = {}
    for scenario in scenarios:
        other = earlier.setdefault(scenario.topology.name, scenario)
        if other.topology != scenario.topology:
            raise ScenarioError(
                f"{scenario.path}: topology: {other.path} has another one that is called "
                f"{scenario.topology.name} too; run them apart, or rename one"
            )
