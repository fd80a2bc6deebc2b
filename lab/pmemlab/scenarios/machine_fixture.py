"""The fixture `machine`: a proved machine for any test.

    @pytest.mark.pmemlab("fsdax", "kmem-dax")  # names, or paths of topologies' files from here
def test_mine(machine): ...

is a test for each of these topologies. Tests on one topology run one after another on one machine;
after a test that has cut its power, the next gets a new one. If scenarios are run as well, the
tests get the machine on which the topology's scenarios have run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from pmemlab.machines.protocol import Machine
    from pmemlab.scenarios.session import ScenarioSession

__all__ = [
    "MARKER",
    "SESSION",
    "fail_as_lab_error",
    "machine",
    "parametrize",
    "pmemlab_machines",
    "report_lab_errors",
    "uses_machine_fixture",
]

SESSION: pytest.StashKey[ScenarioSession] = pytest.StashKey()
"""The key of this run's scenarios in pytest's stash."""

MARKER = "pmemlab(*topologies): topologies of the machines that the fixture `machine` gives"

_LENDER = "pmemlab_machines"


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Makes a test for each topology of the mark; pytest then sorts tests by topology. Paths are
    relative to the test's folder.
    """
    if _LENDER not in metafunc.fixturenames:
        return
    from pmemlab.schema import YAML_SUFFIXES

    marks = list(metafunc.definition.iter_markers("pmemlab"))
    topologies = [name for mark in marks[:1] for name in mark.args]
    if not topologies or not all(isinstance(name, str) for name in topologies):
        _fail_without_mark(metafunc.definition.nodeid)
    folder = metafunc.definition.path.parent
    found = [
        str(folder / name) if Path(name).suffix in YAML_SUFFIXES else name for name in topologies
    ]
    metafunc.parametrize(_LENDER, found, ids=topologies, indirect=True, scope="session")


def _fail_without_mark(test: str) -> NoReturn:
    pytest.fail(
        f"{test}: the fixture `machine` needs a mark with the topologies it is for, as in "
        '@pytest.mark.pmemlab("fsdax"), and a test that has it among its arguments',
        pytrace=False,
    )


class _Lender:
    """Lends the machine of a topology, and starts it on its first use."""

    def __init__(self, topology: str, config: pytest.Config) -> None:
        from pmemlab.machines.choice import MachineChooser
        from pmemlab.topology import load_topology

        self._topology = load_topology(topology)
        requested = config.getoption("pmemlab_machine")
        choice = MachineChooser(requested, config.rootpath).choose(self._topology)
        self._kind = choice.kind
        self.why_none = (
            f"no machine that is {self._topology.name}: {choice.why}; "
            "--pmemlab-machine process takes this computer in its place"
            if choice.kind == "process" and requested == "auto"
            else None
        )
        self._scenarios = config.stash.get(SESSION, None)
        self._machine: Machine | None = None

    def lend(self) -> Machine:
        """Returns a machine, proved when it was opened or since its last test or scenario."""
        from pmemlab.machines import opening

        if self._machine is None and self._scenarios is not None:
            self._machine = self._scenarios.take_machine(self._topology)
        if self._machine is None:
            self._machine = opening.open_machine(self._topology, self._kind)
        return self._machine

    def take_back(self) -> None:
        """Raises `ProofError` if the machine isn't what it says any more. A machine that is broken,
        or that the test has left without power, isn't lent again.
        """
        from pmemlab.errors import LabError, ProofError

        if self._machine is None:
            return
        try:
            self._machine.prove()
        except ProofError:
            self.stop()
            raise
        except LabError:
            self.stop()

    def stop(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.stop()


@pytest.fixture(scope="session")
def pmemlab_machines(request: pytest.FixtureRequest) -> Iterator[_Lender]:
    """The lender behind the fixture `machine`, which tests take instead."""
    from pmemlab.errors import LabError

    if not hasattr(request, "param"):
        _fail_without_mark(request.node.nodeid or "a test")
    try:
        lender = _Lender(request.param, request.config)
    except LabError as error:
        fail_as_lab_error(error)
    yield lender
    lender.stop()


@pytest.fixture
def machine(pmemlab_machines: _Lender) -> Iterator[Machine]:
    """A proved machine of the topology that the test's mark `pmemlab` names.

    If no kind of machine here can be one, the test is skipped. If the lab breaks, before the test
    or in it, or the machine isn't what it says after the test, the test is an ERROR. A command that
    runs past its timeout is the test's own failure.
    """
    from pmemlab.errors import LabError

    if pmemlab_machines.why_none:
        pytest.skip(pmemlab_machines.why_none)
    try:
        lent = pmemlab_machines.lend()
    except LabError as error:
        fail_as_lab_error(error)
    yield lent
    try:
        pmemlab_machines.take_back()
    except LabError as error:
        fail_as_lab_error(error)


def uses_machine_fixture(item: pytest.Item) -> bool:
    """Returns whether the test has the fixture."""
    return _LENDER in getattr(item, "fixturenames", ())


def report_lab_errors(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> None:
    """Turns a test's failure into an ERROR if the lab broke in the test."""
    if not report.failed or call.when != "call" or call.excinfo is None:
        return
    from pmemlab.errors import CommandTimeoutError, LabError

    error = call.excinfo.value
    if not isinstance(error, LabError) or isinstance(error, CommandTimeoutError):
        return
    report.when = "setup"  # reports show a failed setup as an ERROR
    test_entries = [entry for entry in call.excinfo.traceback if entry.path == item.path]
    place = f"{item.path}:{test_entries[-1].lineno + 1}: " if test_entries else ""
    report.longrepr = f"{place}{_lab_error_text(error)}"


def _lab_error_text(error: Exception) -> str:
    from pmemlab.errors import TopologyError

    fault = "" if isinstance(error, TopologyError) else ", the lab's fault"
    return f"{type(error).__name__}{fault}: {error}"


def fail_as_lab_error(error: Exception) -> NoReturn:
    """Fails without our stack; in a test's setup this makes the test an ERROR."""
    raise pytest.fail.Exception(_lab_error_text(error), pytrace=False) from None
