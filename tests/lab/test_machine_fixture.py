"""The fixture `machine` for users' tests, the plugin's options, JUnit XML and pytest-xdist."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import preimported_modules  # noqa: F401
import pytest
from fake_qemu import wait_until
from test_scenario_plugin import FakeMachine, Lab

import pmemlab.machines.opening
from pmemlab.errors import LabError, MachineDiedError, MissingRequirementError
from pmemlab.machines.choice import Choice, MachineChooser
from pmemlab.machines.protocol import Kind, Result
from pmemlab.topology import Topology

# Imported here too, for the reason given in `preimported_modules`.
from test_scenario_plugin import lab as lab  # isort: skip

pytest_plugins = ["pytester"]


@pytest.fixture
def machines(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces machines of the lab's own topologies by fakes, and returns the log of their use."""

    class Machine(FakeMachine):
        cut = False

        def run(
            self,
            argv: object,
            env: object = None,
            timeout: float | None = None,
            on_line: object = None,
        ) -> Result:
            del env, timeout, on_line
            if self.cut:
                raise MachineDiedError("had its power cut")
            return Result(0, str(argv), "")

        def prove(self) -> None:
            if self.cut:
                raise MachineDiedError("had its power cut")
            super().prove()

        def power_cut(self) -> None:
            self.log.append(f"cut {self.topology.name}")
            self.cut = True

        def power_on(self) -> None:
            self.log.append(f"boot {self.topology.name}")
            self.cut = False

    def open_machine(topology: Topology, kind: Kind, *_: object) -> FakeMachine:
        lab.log.append(f"start {topology.name} as {kind}")
        return Machine(topology, kind, lab.workload, lab.log)

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", open_machine)
    return lab.log


@pytest.fixture
def run(pytester: pytest.Pytester, lab: Lab) -> Callable[..., pytest.RunResult]:
    del lab  # needed for its environment only

    def run(test: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(f"import pytest\n{test}")
        plugin = ("-p", "pmemlab.scenarios.plugin")
        return pytester.runpytest_inprocess(*plugin, "--strict-markers", *arguments)

    return run


def test_a_marked_test_gets_its_machine(
    run: Callable[..., pytest.RunResult], machines: list[str]
) -> None:
    test = """
@pytest.mark.pmemlab("fsdax")
def test_mine(machine):
    assert machine.topology.name == "fsdax"
    assert "true" in machine.run(["true"]).stdout
"""
    run(test, "--pmemlab-machine=guest").assert_outcomes(passed=1)
    assert machines == ["start fsdax as guest", "stop fsdax"]


def test_tests_of_one_topology_share_a_machine_and_each_topology_is_a_test(
    run: Callable[..., pytest.RunResult], machines: list[str]
) -> None:
    test = """
@pytest.mark.pmemlab("fsdax", "dram")
def test_one(machine): pass

@pytest.mark.pmemlab("fsdax")
def test_two(machine): pass
"""
    result = run(test, "--pmemlab-machine=guest", "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random(["*test_one?fsdax?*", "*test_one?dram?*"])
    assert sorted(machines) == [
        "start dram as guest", "start fsdax as guest", "stop dram", "stop fsdax",
    ]  # fmt: skip


def test_after_a_power_cut_the_next_test_gets_a_new_machine(
    run: Callable[..., pytest.RunResult], machines: list[str]
) -> None:
    test = """
@pytest.mark.pmemlab("fsdax")
@pytest.mark.parametrize("n", range(2))
def test_one(machine, n):
    machine.run(["true"])
    machine.power_cut()
"""
    run(test, "--pmemlab-machine=guest").assert_outcomes(passed=2)
    assert machines == ["start fsdax as guest", "cut fsdax", "stop fsdax"] * 2


def test_a_machine_that_was_booted_again_is_shared_with_the_next_test(
    run: Callable[..., pytest.RunResult], machines: list[str]
) -> None:
    test = """
@pytest.mark.pmemlab("fsdax")
@pytest.mark.parametrize("n", range(2))
def test_one(machine, n):
    machine.power_cut()
    machine.power_on()
    machine.run(["true"])
"""
    run(test, "--pmemlab-machine=guest").assert_outcomes(passed=2)
    assert machines == [
        "start fsdax as guest", *["cut fsdax", "boot fsdax"] * 2, "stop fsdax",
    ]  # fmt: skip


def test_a_machine_that_a_test_changed_is_an_error_and_is_not_shared_further(
    run: Callable[..., pytest.RunResult], machines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "decay", 1)
    test = """
@pytest.mark.pmemlab("fsdax")
@pytest.mark.parametrize("n", range(3))
def test_one(machine, n):
    machine.log.append("test")
"""
    result = run(test, "--pmemlab-machine=guest")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown*", "*the lab's fault: *", "*mount.dax*"])
    of_one = ["start fsdax as guest", "test", "test", "stop fsdax"]
    assert machines == [*of_one, "start fsdax as guest", "test", "stop fsdax"]


BESIDE_SCENARIOS = """
import pytest

@pytest.mark.pmemlab("../topologies/one.yaml")
@pytest.mark.parametrize("n", range(2))
def test_mine(machine, n):
    machine.log.append("test")

@pytest.mark.pmemlab("dram")
def test_alone(machine):
    pass
"""


@pytest.fixture
def mixed_lab(lab: Lab, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Scenarios of three topologies, and tests of one of them and of a fourth topology."""

    def open_machine(topology: Topology, kind: Kind, *_: object) -> FakeMachine:
        lab.log.append(f"start {topology.name}")
        return FakeMachine(topology, kind, lab.workload, lab.log)

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", open_machine)
    for name, topology in (("a", "zero"), ("b", "one"), ("c", "two")):
        lab.add(name, topology)
    pytester.path.joinpath("scenarios/test_beside.py").write_text(BESIDE_SCENARIOS)
    return lab


def test_tests_share_the_machine_of_the_scenarios_of_their_topology(
    mixed_lab: Lab,
) -> None:
    mixed_lab.run().assert_outcomes(passed=6)
    of_topology_one = [line for line in mixed_lab.log if "one" in line or line == "test"]
    assert of_topology_one == ["start one", "run one DRAM", "test", "test", "stop one"]
    assert mixed_lab.log.count("start dram") == mixed_lab.log.count("stop dram") == 1


def test_a_lab_container_is_given_back_between_scenarios_and_tests(
    mixed_lab: Lab,
) -> None:
    mixed_lab.run(machine="container").assert_outcomes(passed=6)
    of_topology_one = [line for line in mixed_lab.log if "one" in line or line == "test"]
    assert of_topology_one == [
        "start one", "run one DRAM", "stop one", "start one", "test", "test", "stop one",
    ]  # fmt: skip


def test_a_throwaway_container_is_shared_by_scenarios_and_tests(
    mixed_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    throwaway = Choice("container", "the lab has none up", is_throwaway=True)
    monkeypatch.setattr(MachineChooser, "choose", lambda *_: throwaway)
    mixed_lab.run().assert_outcomes(passed=6)
    of_topology_one = [line for line in mixed_lab.log if "one" in line or line == "test"]
    assert of_topology_one == ["start one", "run one DRAM", "test", "test", "stop one"]


def test_tests_run_right_after_the_scenarios_of_their_topology(mixed_lab: Lab) -> None:
    lines = [line for line in mixed_lab.run("-v").outlines if "PASSED" in line]
    assert [line.split()[0] for line in lines] == [
        "scenarios/a.yaml::DRAM",
        "scenarios/b.yaml::DRAM",
        "scenarios/test_beside.py::test_mine[../topologies/one.yaml-0]",
        "scenarios/test_beside.py::test_mine[../topologies/one.yaml-1]",
        "scenarios/c.yaml::DRAM",
        "scenarios/test_beside.py::test_alone[dram]",
    ]


def test_a_machine_that_broke_in_a_scenario_is_not_shared(mixed_lab: Lab) -> None:
    def breaks(storage_type: str) -> Result:
        raise MachineDiedError(f"died of {storage_type}")

    mixed_lab.workload = breaks
    mixed_lab.run().assert_outcomes(passed=3, errors=3)
    assert mixed_lab.log.count("start one") == mixed_lab.log.count("stop one") == 2


def test_a_machine_that_started_ahead_for_no_test_is_stopped(mixed_lab: Lab) -> None:
    def fail(_argv: object) -> Result:
        wait_until(lambda: "start one" in mixed_lab.log)
        return Result(1, "", "no")

    mixed_lab.workload = fail
    mixed_lab.run("-x").assert_outcomes(failed=1)
    assert mixed_lab.log.count("start one") == mixed_lab.log.count("stop one") == 1


def test_a_machine_that_cannot_be_opened_is_an_error_and_not_a_failure(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(topology: Topology, kind: Kind, *_: object) -> FakeMachine:
        raise LabError(f"{kind} {topology.name}: no room")

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", broken)
    test = '@pytest.mark.pmemlab("fsdax")\ndef test_mine(machine): pass'
    result = run(test, "--pmemlab-machine=guest")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the lab's fault: guest fsdax: no room"])


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ('raise LabError("no room")', "errors"),
        ('raise MachineDiedError("kernel panic")', "errors"),
        ('raise CommandTimeoutError(["sleep", "9"], 1.0, "", "")', "failed"),
        ("assert machine is None", "failed"),
        ("with pytest.raises(LabError): raise LabError", "passed"),
    ],
)
def test_a_broken_lab_is_an_error_and_a_failing_test_is_a_failure(
    run: Callable[..., pytest.RunResult],
    machines: list[str],
    tmp_path: Path,
    body: str,
    outcome: str,
) -> None:
    test = f"""
from pmemlab.errors import CommandTimeoutError, LabError, MachineDiedError

@pytest.mark.pmemlab("fsdax")
def test_mine(machine):
    {body}
"""
    junit = tmp_path / "junit.xml"
    result = run(test, "--pmemlab-machine=guest", f"--junitxml={junit}")
    result.assert_outcomes(**{outcome: 1})
    (suite,) = ElementTree.parse(junit).getroot()
    counted = {"errors": suite.get("errors"), "failed": suite.get("failures")}
    assert counted == {name: str(int(name == outcome)) for name in counted}
    if outcome == "errors":
        result.stdout.fnmatch_lines(["*test_*.py:7: *Error, the lab's fault: *"])
    assert machines == ["start fsdax as guest", "stop fsdax"]


def test_a_lab_error_of_a_test_without_the_fixture_is_that_test_s_failure(
    run: Callable[..., pytest.RunResult],
) -> None:
    run("from pmemlab.errors import LabError\ndef test_mine(): raise LabError").assert_outcomes(
        failed=1
    )


@pytest.mark.usefixtures("machines")
def test_this_computer_replaces_a_machine_only_on_request(
    run: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = [MissingRequirementError("no QEMU", "apt-get install qemu-system-x86")]
    monkeypatch.setattr("pmemlab.machines.container.machine.requirements", lambda *_: lacking)
    monkeypatch.setattr("pmemlab.machines.guest.machine.requirements", lambda _: lacking)
    test = '@pytest.mark.pmemlab("fsdax")\ndef test_mine(machine): pass'
    result = run(test, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no guest: no QEMU*"])
    run(test, "--pmemlab-machine=process").assert_outcomes(passed=1)


@pytest.mark.parametrize("mark", ["", "@pytest.mark.pmemlab\n", "@pytest.mark.pmemlab(3)\n"])
def test_a_test_without_a_topology_gets_an_error_that_shows_the_mark(
    run: Callable[..., pytest.RunResult], mark: str
) -> None:
    result = run(f"{mark}def test_mine(machine): pass")
    text = result.stdout.str() + result.stderr.str()
    assert '@pytest.mark.pmemlab("fsdax")' in text
    assert result.ret != 0


def test_a_test_that_requests_the_fixture_while_it_runs_gets_an_error_that_says_how(
    run: Callable[..., pytest.RunResult],
) -> None:
    test = """
@pytest.mark.pmemlab("fsdax")
def test_mine(request):
    request.getfixturevalue("machine")
"""
    run(test).stdout.fnmatch_lines(["*needs a mark with the topologies*among its arguments"])


def test_an_unknown_topology_is_named(run: Callable[..., pytest.RunResult]) -> None:
    result = run('@pytest.mark.pmemlab("fsdx")\ndef test_mine(machine): pass')
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["TopologyError: *there is no 'fsdx'*"])


def test_a_test_without_the_fixture_starts_nothing(
    run: Callable[..., pytest.RunResult], machines: list[str]
) -> None:
    run("def test_mine(): pass").assert_outcomes(passed=1)
    assert machines == []


def test_the_short_options_work_if_no_other_plugin_defines_them(lab: Lab) -> None:
    lab.add("a", topology="one", storage_types="[DRAM, PMEM_MEMKIND]")
    lab.add("b", topology="two")
    lab.run("--topology", "one", "--storage-type=DRAM").assert_outcomes(passed=1, deselected=2)


def test_an_option_that_a_conftest_defines_keeps_its_meaning(
    lab: Lab, pytester: pytest.Pytester
) -> None:
    pytester.makeconftest("""
        def pytest_addoption(parser):
            parser.addoption("--topology", default="theirs")

        def pytest_report_header(config):
            return "theirs is " + config.getoption("--topology")
    """)
    lab.add("a", topology="one")
    result = lab.run("--topology", "ring", "--storage-type", "DRAM")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["theirs is ring"])


def test_arguments_after_two_dashes_are_left_alone(lab: Lab, pytester: pytest.Pytester) -> None:
    lab.add("a", topology="one")
    pytester.path.joinpath("--machine").mkdir()
    lab.run("--", "--machine").assert_outcomes(passed=1)


def test_rates_are_properties_in_junit_xml(lab: Lab, pytester: pytest.Pytester) -> None:
    lab.add("a", topology="one")
    lab.run("--junitxml=report.xml", "-p", "junitxml")
    tree = ElementTree.parse(pytester.path / "report.xml")
    properties = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert properties["samples_per_s"] == "1234.0"
    assert properties["samples_per_s.unit"] == "samples/s"
    assert properties["samples_per_s.kind"] in ("measured", "functional-only")
    assert properties["topology"] == "one"


# Workers are separate processes, so this conftest.py replaces machines by fakes in each of them.
CONFTEST_OF_WORKERS = """
import os
import pmemlab.machines.opening
from fake_qemu import wait_until
from test_scenario_plugin import FakeMachine, document

class Log:
    def append(self, line):
        with open("log", "a") as file:
            file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {line}\\n")

def open_machine(topology, kind, *_):
    def workload(storage_type):
        dies = f"{topology.name} {storage_type}" == os.environ.get("DIES_ON")
        if dies and not os.path.exists("died"):
            open("died", "w").close()
            os._exit(1)
        return document(storage_type)

    log = Log()
    log.append(f"start {topology.name}")
    return FakeMachine(topology, kind, workload, log)

pmemlab.machines.opening.open_machine = open_machine
"""


@pytest.fixture
def run_on_workers(
    lab: Lab, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pytest.RunResult]:
    """Returns a function that runs three scenarios on two xdist workers. Each scenario has its own
    topology and two storage types."""
    pytest.importorskip("xdist", reason="needs pytest-xdist")
    for name in ("a", "b", "c"):
        lab.add(name, topology=f"of-{name}", storage_types="[DRAM, PMEM_MEMKIND]")
    pytester.makeconftest(CONFTEST_OF_WORKERS)
    here = str(Path(__file__).parent)
    lab_folder = str(Path(pmemlab.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", ":".join([here, lab_folder, *filter(None, sys.path)]))

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(
            *("-p", "xdist", "-p", "pmemlab.scenarios.plugin", "-n", "2", "--dist", "loadfile"),
            *("scenarios", "--pmemlab-machine", "guest"),
            *arguments,
        )

    return run


def rows_of_table(result: pytest.RunResult) -> list[str]:
    return re.findall(r"^[abc] +(?:DRAM|PMEM_MEMKIND)", result.stdout.str(), re.MULTILINE)


@pytest.mark.long
def test_under_xdist_each_worker_runs_its_scenarios_and_one_table_has_all(
    run_on_workers: Callable[..., pytest.RunResult], pytester: pytest.Pytester
) -> None:
    result = run_on_workers()
    log = pytester.path / "log"
    result.assert_outcomes(passed=6)
    lines = log.read_text().splitlines()
    runs = [line.split(" ", 1) for line in lines if " run " in line]
    assert len(runs) == 6  # none ran twice
    assert len({worker for worker, _ in runs}) == 2
    starts = [line for line in lines if " start " in line]
    assert len(starts) == len([line for line in lines if " stop " in line])
    assert len(rows_of_table(result)) == 6
    assert len(set(re.findall(r"written: (\S+\.jsonl)", result.stdout.str()))) == 2
    result.stdout.fnmatch_lines(["machines: guest for *of-a*"])


@pytest.mark.long
def test_the_results_of_an_xdist_worker_that_died_are_in_the_table(
    run_on_workers: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIES_ON", "of-b PMEM_MEMKIND")
    result = run_on_workers()
    result.assert_outcomes(passed=6, failed=1)  # one was tried again
    assert len(rows_of_table(result)) == 6


@pytest.mark.long
def test_an_empty_selection_is_a_usage_error_under_xdist_too(
    run_on_workers: Callable[..., pytest.RunResult],
) -> None:
    result = run_on_workers("--pmemlab-topology", "nope")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: --pmemlab-topology nope: no scenario has it; there are *"])
    assert "INTERNALERROR" not in result.stdout.str()
