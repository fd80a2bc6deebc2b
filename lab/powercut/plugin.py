"""The pytest plugin with the fixture `power_cut`: runs a test's program under emulated power cuts.

def app(medium: Path) -> None: ...  # or a command, "./app {medium}/log" or a list of words
def recover(medium: Path, output: str) -> None: ...  # raises if the check fails; or a command

def test_mine(power_cut):
    power_cut(app, recover)
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from powercut.campaign import MutationResult, Results
    from powercut.experiment import Experiment, Recovery
    from powercut.plan import Tries
    from powercut.record import Record

__all__ = ["PowerCut", "power_cut"]

App = str | Sequence[str] | Callable[[Path], object]
Recover = str | Sequence[str] | Callable[[Path, str], object]

_SHOWN = 5


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("powercut", "emulated power cuts").addoption(
        "--power-cuts",
        type=int,
        dest="power_cuts",
        metavar="N",
        help="power cuts in each test with the fixture `power_cut`, whatever the test says",
    )


class PowerCut:
    """The value of the fixture. All arguments of its calls, except tries, seed and imports_once,
    are fields of `Experiment` and of its `CutSettings`.

    imports_once: each try's program is a fork of a process that has imported the function's module,
        which saves most of a try's time. The import's effects happen once, and outside the tries:
        its printed text isn't part of the program's output, and all tries share the files that it
        opens or makes.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def __call__(
        self, app: App, recover: Recover, *, tries: int = 100, seed: int = 0, **options: Any
    ) -> Results:
        """Makes `tries` power cuts, and fails the test if a recovery fails.

        Raises `PowercutError` as `Experiment`.
        """
        results = self.results(app, recover, tries=tries, seed=seed, **options)
        if results.failures:
            count = f"{len(results.failures)} of {results.tried} power cuts failed"
            pytest.fail(f"{count}\n{results.failures_text(_SHOWN)}", pytrace=False)
        return results

    def results(
        self,
        app: App,
        recover: Recover,
        *,
        tries: int = 100,
        seed: int = 0,
        enough_failures: int | None = None,
        **options: Any,
    ) -> Results:
        """Returns results without judging them. enough_failures: number that ends it."""
        from powercut.campaign import default_jobs, run_tries

        experiment = self.experiment(app, recover, **options)
        with experiment.prepared() as template:
            record = experiment.rehearse(template)
            planned = self._tries(experiment, record, tries, seed)
            with self._shown(planned.count) as show:
                return run_tries(
                    experiment,
                    planned,
                    template,
                    jobs=default_jobs(experiment),
                    on_outcome=lambda outcome: show(outcome.is_bad),
                    enough_failures=enough_failures,
                )

    def record(self, app: App, recover: Recover | None = None, **options: Any) -> Record:
        """Returns the record of a run without a cut."""
        experiment = self.experiment(app, recover, **options)
        with experiment.prepared() as template:
            return experiment.rehearse(template)

    def mutations(
        self, app: App, recover: Recover, *, tries: int = 100, seed: int = 0, **options: Any
    ) -> list[MutationResult]:
        """Takes out each flush, drain and sync in turn, and cuts until a cut fails."""
        from powercut.campaign import default_jobs, try_mutation

        experiment = self.experiment(app, recover, **options)
        with experiment.prepared() as template:
            record = experiment.rehearse(template)
            planned = self._tries(experiment, record, tries, seed)
            jobs = default_jobs(experiment)
            with self._shown(len(record.sites)) as show:
                found = []
                for site in record.sites:
                    found.append(try_mutation(experiment, site, planned, template, jobs=jobs))
                    show(found[-1].failure is None)
                return found

    def _tries(self, experiment: Experiment, record: Record, tries: int, seed: int) -> Tries:
        from powercut.plan import sampled

        chosen = self._config.getoption("power_cuts")
        return sampled(record, tries if chosen is None else chosen, experiment.rounds, seed)

    @staticmethod
    def experiment(app: App, recover: Recover | None = None, **options: Any) -> Experiment:
        from powercut import shell
        from powercut.errors import PowercutError
        from powercut.experiment import CommandRecovery, Experiment
        from powercut.forks import Forks
        from powercut.functions import (
            FunctionRecovery,
            function_command,
            function_environment,
        )
        from powercut.settings import CutSettings

        fields = {field.name for field in dataclasses.fields(CutSettings)}
        settings = {name: options.pop(name) for name in fields & options.keys()}
        recovery: Recovery | None = None
        if callable(recover):
            recovery = FunctionRecovery(
                recover, (*FunctionRecovery.failures, pytest.fail.Exception)
            )
        elif recover is not None:
            recovery = CommandRecovery(shell.words("recover", recover))
        if callable(app):
            options["environment"] = function_environment() | options.get("environment", {})
        if options.pop("imports_once", False):
            if not callable(app):
                raise PowercutError("imports_once: is for functions, and the program is a command")
            options["starter"] = Forks(imports_once=True)
        prepare = options.pop("prepare", ())
        return Experiment(
            program=function_command(app) if callable(app) else shell.words("app", app),
            recovery=recovery,
            settings=CutSettings(**settings),
            prepare=function_command(prepare)
            if callable(prepare)
            else shell.words("prepare", prepare),
            **options,
        )

    @contextlib.contextmanager
    def _shown(self, total: int) -> Iterator[Callable[[bool], None]]:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or not reporter.isatty():
            yield lambda _: None
            return
        from rich.console import Console

        from powercut.progress import progress_bar

        capture = self._config.pluginmanager.get_plugin("capturemanager")
        disabled = capture.global_and_fixture_disabled() if capture else contextlib.nullcontext()
        with disabled:
            reporter.ensure_newline()
            with progress_bar(Console(stderr=True), "power cuts", total) as show:
                yield show


@pytest.fixture
def power_cut(request: pytest.FixtureRequest) -> PowerCut:
    """Runs a program under emulated power cuts: call it with the program and a recovery check."""
    return PowerCut(request.config)
