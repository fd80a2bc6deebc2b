"""The pytest plugin that runs scenarios: `pytest scenarios/`.

A file is a scenario if its folder is listed in the ini option `pmemlab_scenarios`; other files are
ignored. A scenario runs in its test's setup and is judged in the call: so a lab that breaks is an
ERROR, and only a run on a sound machine can be FAILED.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pmemlab.scenarios.machine_fixture import (
    MARKER,
    SESSION,
    fail_as_lab_error,
    machine,
    parametrize,
    pmemlab_machines,
    report_lab_errors,
    uses_machine_fixture,
)
from pmemlab.scenarios.options import (
    FOLDERS,
    WORKER_INPUT,
    add_options,
    expand_short_options,
    here_file,
)
from pmemlab.schema import YAML_SUFFIXES

if TYPE_CHECKING:
    # Other modules of the lab are imported on use only: pytest loads this module in every run of
    # every user who has the package installed.
    from rich.status import Status

    from pmemlab.scenarios.document import Scenario
    from pmemlab.scenarios.metrics import Metric
    from pmemlab.scenarios.runner import Outcome
    from pmemlab.scenarios.session import ScenarioSession
    from pmemlab.scenarios.xdist import Findings

# Pytest looks for fixtures among a plugin's names.
__all__ = ["machine", "pmemlab_machines"]

_LOG_WIDTH = 120
_FINDINGS: pytest.StashKey[Findings] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pmemlab", "scenarios on emulated machines")
    add_options(group)
    parser.addini(FOLDERS, "folders of scenarios, *.yaml and *.yml", "paths", default=[])


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    result = yield
    expand_short_options(args, parser)
    return result


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    here_file(config)  # reports a wrong path before collection


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> ScenarioFile | None:
    folders = parent.config.getini(FOLDERS)
    if file_path.suffix in YAML_SUFFIXES and file_path.parent in folders:
        file: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
        return file
    return None


class ScenarioFile(pytest.File):
    """A scenario's file: a test for each of its storage types."""

    def collect(self) -> Iterator[ScenarioItem]:
        from pmemlab.scenarios.document import ScenarioError
        from pmemlab.scenarios.reading import is_scenario, load_scenario

        try:
            if not is_scenario(self.path):
                return
            scenario = load_scenario(self.path)
        except ScenarioError as error:
            raise self.CollectError(str(error)) from error
        scenario = replace(
            scenario,
            memory_here=here_file(self.config),
            direct_io=self.config.getoption("pmemlab_machine") == "host",
        )
        for marker in scenario.markers:
            self.add_marker(marker)
        for storage_type in scenario.storage_types:
            yield ScenarioItem.from_parent(
                self, name=storage_type, scenario=scenario, storage_type=storage_type
            )


class ScenarioItem(pytest.Item):
    """A test: a scenario on one storage type."""

    def __init__(self, *, scenario: Scenario, storage_type: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scenario = scenario
        self.storage_type = storage_type
        self._outcome: Outcome | None = None

    def setup(self) -> None:
        from pmemlab.errors import LabError, MissingRequirementError
        from pmemlab.topology import Requirements

        # Also with --setup-plan: a setup would run the scenario, which these options don't want.
        if self.config.getoption("setuponly", False):
            return
        session = self.config.stash[SESSION]
        try:
            with _ActivityLine(self.config) as line:
                self._outcome = session.wait_for(self.scenario, self.storage_type, line.show)
        except LabError as error:
            lacking = isinstance(error, MissingRequirementError)
            # A process has only this computer's programs, and some topologies need newer ones.
            has_requirements = self.scenario.topology.requires != Requirements()
            if lacking and (has_requirements or session.kind_for(self.scenario) == "process"):
                pytest.skip(str(error))
            fail_as_lab_error(error)
        except pytest.exit.Exception:
            raise
        except Exception as error:
            # An error of the lab itself. Pytest would also show its own frames and its plugins'.
            stack = "".join(traceback.format_exception(error))
            raise pytest.fail.Exception(stack, pytrace=False) from None

    def runtest(self) -> None:
        from pmemlab.errors import MissingRequirementError

        assert self._outcome is not None, "setup gives an outcome, raises or skips"
        session = self.config.stash[SESSION]
        known = len(session.metrics)
        try:
            unproved = session.judge(self.scenario, self.storage_type, self._outcome)
        except MissingRequirementError as error:
            pytest.skip(str(error))
        self._add_properties(session.metrics[known:])
        if unproved:
            pytest.skip(
                f"all that a {self._outcome.machine} can show holds, but it can't prove "
                f"{', '.join(unproved)}; a guest or a container can"
            )

    def _add_properties(self, metrics: Sequence[Metric]) -> None:
        """Adds metrics to the test's properties, which JUnit XML and pytest-xdist pass on."""
        self.user_properties += [
            ("topology", self.scenario.topology.name),
            ("storage_type", self.storage_type),
        ]
        for metric in metrics:
            if metric.value is None:
                continue
            self.user_properties += [
                (metric.name, metric.value),
                (f"{metric.name}.unit", metric.unit),
                (f"{metric.name}.kind", metric.kind),
            ]

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from pmemlab.scenarios.verdict import ExpectationError

        if isinstance(excinfo.value, ExpectationError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self.scenario.name} on {self.storage_type}"


class _ActivityLine:
    """A temporary line on the terminal with the machines' activities."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._stack = contextlib.ExitStack()
        self._status: Status | None = None

    def show(self, activities: Sequence[str]) -> None:
        if self._status is not None:
            self._status.update(" · ".join(activities))

    def __enter__(self) -> _ActivityLine:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.isatty():
            from rich.console import Console

            capture = self._config.pluginmanager.get_plugin("capturemanager")
            if capture is not None:
                self._stack.enter_context(capture.global_and_fixture_disabled())
            # Goes below the dots of the tests so far, which the line would overwrite.
            reporter.ensure_newline()
            self._status = self._stack.enter_context(Console(stderr=True).status(""))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _scenario_items(items):
        return
    try:
        _select_and_sort(config, items)
    except pytest.UsageError as error:
        _refuse(config, items, error)


def _refuse(config: pytest.Config, items: list[pytest.Item], error: pytest.UsageError) -> None:
    """Raises the error; a worker of pytest-xdist sends it to the controller instead."""
    from pmemlab.scenarios.xdist import Findings, is_worker

    if not is_worker(config):
        raise error
    items.clear()
    Findings.send_to_controller(config, refusal=str(error))


def _select_and_sort(config: pytest.Config, items: list[pytest.Item]) -> None:
    folders = config.getini(FOLDERS)
    candidates = [item for item in items if any(folder in item.path.parents for folder in folders)]
    selected = _selected(
        candidates, config.getoption("pmemlab_topologies"), "--pmemlab-topology", _topology_name
    )
    selected &= _selected(
        candidates,
        config.getoption("pmemlab_storage_types"),
        "--pmemlab-storage-type",
        _storage_type,
    )
    deselected = [item for item in candidates if item not in selected]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in set(deselected)]
    _check_names(_scenario_items(items))
    items[:] = _moved_after_their_scenarios(items)


def _check_names(items: Sequence[ScenarioItem]) -> None:
    """Raises `pytest.UsageError` if the results of two scenarios could not be told apart."""
    paths: dict[tuple[str, str], Path] = {}
    for item in items:
        name, topology = item.scenario.name, item.scenario.topology.name
        first = paths.setdefault((name, topology), item.path)
        if first != item.path:
            raise pytest.UsageError(
                f"{first} and {item.path}: both are the scenario {name} on {topology}, and their "
                "results would take each other's place; rename one"
            )


def _moved_after_their_scenarios(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Moves tests that use a topology's machine right behind the topology's scenarios: otherwise
    the machine would wait for them."""
    last = {_topology_name(item): item for item in _scenario_items(items)}
    followers: dict[pytest.Item, list[pytest.Item]] = {}
    order: list[pytest.Item] = []
    for item in items:
        scenario = None if isinstance(item, ScenarioItem) else last.get(_topology_name(item))
        (order if scenario is None else followers.setdefault(scenario, [])).append(item)
    return [each for item in order for each in (item, *followers.get(item, ()))]


def _selected(
    items: Sequence[pytest.Item],
    names: Sequence[str] | None,
    option: str,
    name_of: Callable[[pytest.Item], str | None],
) -> set[pytest.Item]:
    """Returns the items that an option selects. Raises `pytest.UsageError` if a name fits no item.

    items: the scenarios, and the tests beside them.
    name_of: returns the name that the option's names are compared with; None for an item without
        such a name, which is selected only if there are no names.
    """
    known_names = {name for item in items if (name := name_of(item)) is not None}
    for name in names or ():
        if name not in known_names:
            raise pytest.UsageError(
                f"{option} {name}: no scenario has it; there are {', '.join(sorted(known_names))}"
            )
    return {item for item in items if not names or name_of(item) in names}


def _topology_name(item: pytest.Item) -> str | None:
    """Returns the topology of a scenario, or of a test's fixture `machine`."""
    if isinstance(item, ScenarioItem):
        return item.scenario.topology.name
    parameters = getattr(item, "callspec", None)
    name = parameters.params.get(pmemlab_machines.__name__) if parameters else None
    return Path(name).stem if name else None


def _storage_type(item: pytest.Item) -> str | None:
    return item.storage_type if isinstance(item, ScenarioItem) else None


def _scenario_items(items: Sequence[pytest.Item]) -> list[ScenarioItem]:
    return [item for item in items if isinstance(item, ScenarioItem)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if isinstance(item, ScenarioItem) or uses_machine_fixture(item):
        report_lab_errors(item, call, report)
    return report


@pytest.hookimpl(tryfirst=True)  # before the terminal reporter collects its lines
def pytest_collection_finish(session: pytest.Session) -> None:
    scenarios = _scenario_items(session.items)
    if session.config.option.collectonly:
        return
    if scenarios or any(map(uses_machine_fixture, session.items)):
        _exit_on_sigterm(session.config)
    if not scenarios:
        return
    from pmemlab.scenarios.document import ScenarioError
    from pmemlab.scenarios.session import ScenarioSession
    from pmemlab.scenarios.xdist import is_worker

    try:
        session.config.stash[SESSION] = ScenarioSession(
            [(item.scenario, item.storage_type) for item in scenarios],
            machine=session.config.getoption("pmemlab_machine"),
            root=session.config.rootpath,
            results=getattr(session.config, "workerinput", {}).get(WORKER_INPUT),
            runs_ahead=not is_worker(session.config),  # other workers get some of them
            handed_over={
                name
                for item in session.items
                if not isinstance(item, ScenarioItem) and (name := _topology_name(item))
            },
        )
    except ScenarioError as error:
        _refuse(session.config, session.items, pytest.UsageError(str(error)))


def _exit_on_sigterm(config: pytest.Config) -> None:
    """Exits pytest on SIGTERM, so that machines end, with the commands that run in them."""

    def end(number: int, _frame: object) -> None:
        pytest.exit(f"ended by {signal.Signals(number).name}", returncode=128 + number)

    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, end)

        def restore() -> None:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: not Python's

        config.add_cleanup(restore)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    session = config.stash.get(SESSION, None)
    return session.choice_lines() if session is not None else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    scenarios = session.config.stash.get(SESSION, None)
    if scenarios is not None:
        from pmemlab.scenarios.xdist import Findings, is_worker

        try:
            if exitstatus != pytest.ExitCode.INTERRUPTED and not is_worker(session.config):
                with _ActivityLine(session.config) as line:
                    scenarios.model_rates(line.show)
        except KeyboardInterrupt:  # pytest expects none here, and would lose the table
            scenarios.without_rate.append("interrupted while rates were modelled")
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        finally:
            scenarios.close()
        if is_worker(session.config):
            Findings.send_to_controller(
                session.config,
                choices=scenarios.choice_lines(),
                leftovers=scenarios.leftovers(),
            )
    findings = session.config.stash.get(_FINDINGS, None)
    if findings is not None and findings.refusal is not None:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A hook of pytest-xdist, called in its controller for each worker."""
    if not node.config.getini(FOLDERS):
        return
    from pmemlab.scenarios.xdist import Findings

    findings = node.config.stash.setdefault(_FINDINGS, Findings(node.config.rootpath / "results"))
    node.workerinput[WORKER_INPUT] = findings.new_file()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A hook of pytest-xdist, called in its controller."""
    findings = node.config.stash.get(_FINDINGS, None)
    if findings is not None:
        findings.add(getattr(node, "workeroutput", {}))  # a crashed worker has none


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    scenarios = config.stash.get(SESSION, None)
    findings = config.stash.get(_FINDINGS, None)
    if scenarios is not None:
        _summarize(terminalreporter, scenarios, scenarios.leftovers())
    elif findings is not None:
        if findings.refusal is not None:
            terminalreporter.write_line(f"ERROR: {findings.refusal}", red=True)
        for choice in findings.choices:
            terminalreporter.write_line(choice)
        _summarize(terminalreporter, findings, findings.leftovers)


def _summarize(
    reporter: pytest.TerminalReporter,
    scenarios: ScenarioSession | Findings,
    leftovers: Sequence[str],
) -> None:
    for leftover in leftovers:
        reporter.write_line(f"could not be stopped: {leftover}", red=True)
    metrics = scenarios.metrics
    if not metrics:
        return
    from pmemlab.scenarios.report import replaced_lines

    reporter.section("scenarios")
    # A log has no width.
    width = _LOG_WIDTH if not reporter.isatty() else shutil.get_terminal_size().columns
    reporter.write_line(scenarios.tables(width))
    for line in replaced_lines(metrics):
        reporter.write_line(line, yellow=True)
    for why in scenarios.without_rate:
        reporter.write_line(f"no rate: {why}", yellow=True)
    reporter.write_line("")
    files = scenarios.written_files()
    for path in files:
        reporter.write_line(f"written: {path}")
    if files:
        _write_page(reporter, files[0].parent)


def _write_page(reporter: pytest.TerminalReporter, results: Path) -> None:
    """Writes the page of all results in the folder, including earlier runs."""
    from pmemlab.errors import LabError
    from pmemlab.report.command import PAGE_NAME, write_page

    page = results / PAGE_NAME
    try:
        write_page(results, page)
    except LabError as error:
        reporter.write_line(f"no report: {error}", yellow=True)
    else:
        reporter.write_line(f"written: {page}")
