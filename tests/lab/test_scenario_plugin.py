"""The pytest plugin that runs scenarios, with fake machines."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import preimported_modules  # noqa: F401
import pytest

import pmemlab.machines.opening
from pmemlab.errors import (
    LabError,
    MachineDiedError,
    Mismatch,
    MissingRequirementError,
    ProofError,
)
from pmemlab.machines.protocol import Accelerator, Kind, OnLine, Result
from pmemlab.scenarios.modelled_rates import RateModel
from pmemlab.scenarios.runner import Outcome
from pmemlab.scenarios.session import ScenarioSession
from pmemlab.topology import Topology

with contextlib.suppress(ImportError):
    import matplotlib.figure  # noqa: F401  # a second import finds its classes twice

pytest_plugins = ["pytester"]

TOPOLOGY = """
name: {name}
summary: a machine with a node of persistent memory
proof: {{nodes: [0, 1], kmem_bytes: 0, memkind.page_nodes: [1]}}
qemu: ["-m 1G"]
pmem: {{nodes: [1], size: 52M}}
"""

SCENARIO = """
summary: rows on the node of persistent memory
topology: ../topologies/{topology}.yaml
storage_types: {storage_types}
expect: {{rows: {{nodes: pmem}}}}
"""

RunWorkload = Callable[[str], Result]
"""Takes a storage type; stands in for the workload's run in a machine."""


@dataclass(eq=False)
class FakeMachine:
    """A machine whose workload is a function."""

    accelerator: ClassVar[Accelerator] = "tcg"
    unproved: ClassVar[Sequence[str]] = ()
    replaced: ClassVar[Sequence[str]] = ()
    decay: ClassVar[int | None] = None  # number of proofs that it passes before it changes
    python: ClassVar[str] = "python3"

    topology: Topology
    kind: Kind
    workload: RunWorkload
    log: list[str]
    stopped: threading.Event = field(default_factory=threading.Event)
    proofs: list[str] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_line: OnLine | None = None,
    ) -> Result:
        del env, timeout, on_line
        storage_type = argv[argv.index("--storage-type") + 1]
        self.log.append(f"run {self.topology.name} {storage_type}")
        return self.workload(storage_type)

    def spawn(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("no scenario here copies files")

    def facts(self) -> Mapping[str, object]:
        return {
            "nodes": [0, 1],
            "unproved": list(self.unproved),
            "replaced": list(self.replaced),
        }

    def prove(self) -> None:
        self.proofs.append(self.topology.name)
        if self.decay is not None and len(self.proofs) > self.decay:
            raise ProofError(self.topology.name, [Mismatch("mount.dax", True, False)], {})

    def power_cut(self) -> None:
        raise AssertionError("no scenario here cuts the power")

    def power_on(self) -> None:
        raise AssertionError("no scenario here cuts the power")

    def stop(self) -> None:
        if not self.stopped.is_set():
            self.stopped.set()
            self.log.append(f"stop {self.topology.name}")

    def __enter__(self) -> FakeMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def document(storage_type: str, **changed: Any) -> Result:
    """Returns what a good workload prints, with some fields of its run changed."""
    tier: dict[str, Any] = {
        **{"name": storage_type, "rows": 1, "nodes": {"1": 1}, "file": None, "is_pmem": None},
        **{"devices": {}, "bytes": 48, "mapped_bytes": 4096, "sought": 1, "found": 1},
    }
    run = {
        "storage_type": storage_type,
        "losses": ["0x1p-1"],
        "loss": 0.5,
        "state_sha256": "aa",
        "auc": 0.625,
        "samples_per_s": 1234.0,
        "lookups_per_s": 56789.0,
        "tables": [
            {
                **{"name": "deep_C1", "exported_rows": 1, "tiers": [tier]},
                "stats": {"hits": 3, "misses": 1, "tiers": []},
            }
        ],
    }
    reference = {**run, "storage_type": "DRAM", "tables": []}
    whole = {"workload": "wdl", "run": {**run, **changed}, "reference": reference}
    return Result(0, json.dumps(whole), "")


@dataclass
class Lab:
    """A project with scenarios, and the machines that they get."""

    pytester: pytest.Pytester
    log: list[str] = field(default_factory=list)
    workload: RunWorkload = document

    def add(
        self,
        name: str,
        topology: str = "pmem-node",
        storage_types: str = "[DRAM]",
        more: str = "",
    ) -> None:
        root = self.pytester.path
        (root / "scenarios").mkdir(exist_ok=True)
        (root / "topologies").mkdir(exist_ok=True)
        (root / f"topologies/{topology}.yaml").write_text(TOPOLOGY.format(name=topology))
        text = SCENARIO.format(topology=topology, storage_types=storage_types) + more
        (root / f"scenarios/{name}.yaml").write_text(text)

    def open_machine(self, topology: Topology, kind: Kind, *_: object) -> FakeMachine:
        self.log.append(f"start {topology.name}")
        return FakeMachine(topology, kind, self.workload, self.log)

    def run(self, *arguments: str, machine: str = "guest") -> pytest.RunResult:
        return self.pytester.runpytest_inprocess(
            *("-p", "pmemlab.scenarios.plugin", "scenarios", "--pmemlab-machine", machine),
            *arguments,
            no_reraise_ctrlc=True,
        )


@pytest.fixture
def lab(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Lab:
    pytester.makepyprojecttoml("""
        [tool.pytest.ini_options]
        pmemlab_scenarios = ["scenarios"]
    """)
    lab = Lab(pytester)
    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", lab.open_machine)
    # Only the plugin under test is loaded, by its module's name. Others would only take time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return lab


def test_a_scenario_is_one_test_per_storage_type(lab: Lab) -> None:
    lab.add("numa", storage_types="[DRAM, PMEM_MEMKIND]")
    result = lab.run("-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "machines: guest for pmem-node: asked for by --pmemlab-machine",
            "*numa.yaml::DRAM PASSED*",
            "*numa.yaml::PMEM_MEMKIND PASSED*",
        ]
    )


def test_two_scenarios_with_one_name_on_one_topology_are_refused(lab: Lab) -> None:
    lab.add("numa")
    folder = lab.pytester.path / "more"
    shutil.copytree(lab.pytester.path / "scenarios", folder)
    lab.pytester.makepyprojecttoml("""
        [tool.pytest.ini_options]
        pmemlab_scenarios = ["scenarios", "more"]
    """)
    result = lab.run("more")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*more/numa.yaml: both are the scenario numa on *; rename one"])


def test_a_topology_in_a_folder_of_scenarios_is_no_test(lab: Lab) -> None:
    lab.add("numa")
    shutil.copy(lab.pytester.path / "topologies/pmem-node.yaml", lab.pytester.path / "scenarios")
    lab.run().assert_outcomes(passed=1)
    lab.add("named", more="name: named\n")
    lab.run().stdout.fnmatch_lines(["*named.yaml:*: name: is no field here*"])


def test_the_table_and_the_results_are_written(lab: Lab) -> None:
    lab.add("numa", storage_types="[PMEM_MEMKIND]")
    result = lab.run()
    result.stdout.fnmatch_lines(
        [
            "works; the rates of these runs would say nothing:",
            "*scenario*storage type*machine*hits*AUC",
            "*numa*PMEM_MEMKIND*guest (tcg)*75%*0.625",
            "written: *results*.jsonl",
            "written: *results/report.html",
        ]
    )
    (results,) = (lab.pytester.path / "results").glob("*.jsonl")
    records = {record["name"]: record for record in map(json.loads, results.open())}
    assert set(records) == {
        *("samples_per_s", "lookups_per_s", "auc", "loss", "hit_rate"),
        *("first_tier_bytes", "first_tier_share"),
    }
    assert records["hit_rate"]["value"] == 0.75
    rate = records["samples_per_s"]
    assert rate["value"] == 1234.0
    assert rate["kind"] == "functional-only"
    assert rate["facts"] == {"nodes": [0, 1], "unproved": [], "replaced": []}
    assert records["auc"]["kind"] == "measured"
    page = results.with_name("report.html").read_text()
    assert "guest (tcg)" in page
    assert "1,234" not in page  # an emulated medium's rate


def test_a_failed_report_is_named_and_changes_no_verdict(lab: Lab) -> None:
    lab.add("numa")
    (lab.pytester.path / "results").mkdir()
    (lab.pytester.path / "results/20200101T000000Z-broken.jsonl").write_text("{\n")
    result = lab.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["no report: *20200101T000000Z-broken.jsonl:1: not a metric*"])


def test_results_that_cannot_be_written_are_a_lab_error_but_in_the_table(lab: Lab) -> None:
    lab.add("numa")
    (lab.pytester.path / "results").touch()
    result = lab.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*the lab's fault: results can't be written to *results*.jsonl: *", "*numa*DRAM*75%*"]
    )
    result.stdout.no_fnmatch_line("written: *")


def test_ctrl_c_while_rates_are_modelled_leaves_the_table(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RateModel, "rate", interrupt)
    lab.add("numa")
    result = lab.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*numa*DRAM*75%*", "no rate: interrupted while *", "written: *results*.jsonl"]
    )


def test_a_scenario_that_a_plugin_reruns_is_run_again(lab: Lab) -> None:
    """The conftest.py runs each test twice, as pytest-rerunfailures does."""
    lab.pytester.makeconftest("""
        from _pytest.runner import runtestprotocol

        def pytest_runtest_protocol(item, nextitem):
            runtestprotocol(item, log=False, nextitem=None)
            runtestprotocol(item, nextitem=nextitem)
            return True
    """)
    results = iter([Result(1, "", "no"), document("DRAM")])
    lab.workload = lambda _: next(results)
    lab.add("numa")
    lab.run().assert_outcomes(passed=1)
    assert lab.log.count("start pmem-node") == lab.log.count("stop pmem-node") == 2


@pytest.mark.parametrize("option", ["--setup-plan", "--setup-only"])
def test_setup_plan_and_setup_only_start_no_machine(lab: Lab, option: str) -> None:
    lab.add("numa")
    lab.run(option)
    assert lab.log == []


def test_a_paced_run_and_predictions_become_metrics(lab: Lab) -> None:
    lab.add("numa", storage_types="[PMEM_MEMKIND]")
    prediction = {
        "devices": ["optane-100-x6"],
        "samples_per_s": 600.0,
        "lookups_per_s": 6000.0,
        "step_ms": {"compute": 2.0, "tier0": 1.25},
    }
    lab.workload = lambda storage_type: document(
        storage_type, devices=["cxl-asic"], predictions=[prediction]
    )
    result = lab.run()
    result.stdout.fnmatch_lines(["rates, of real media or modelled devices:"])
    (results,) = (lab.pytester.path / "results").glob("*.jsonl")
    records = {record["name"]: record for record in map(json.loads, results.open())}
    paced, predicted = records["samples_per_s"], records["modelled_samples_per_s"]
    assert (paced["kind"], paced["devices"]) == ("modelled", ["cxl-asic"])
    assert (predicted["kind"], predicted["value"]) == ("modelled", 600.0)
    assert predicted["devices"] == ["optane-100-x6"]
    assert records["modelled_step_ms.tier0"]["value"] == 1.25
    assert records["hit_rate"]["kind"] == "measured"


def test_rows_that_differ_from_dram_fail(lab: Lab) -> None:
    lab.add("numa")
    lab.workload = lambda storage_type: document(storage_type, losses=["0x1.8p-1"])
    result = lab.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["step 1: the loss is 0x1p-1 on DRAM, but 0x1.8p-1 on DRAM"])
    result.stdout.no_fnmatch_line("*Traceback*")
    assert not (lab.pytester.path / "results").exists()


def test_a_guest_that_dies_is_an_error_of_the_lab(lab: Lab) -> None:
    lab.add("numa")

    def die(storage_type: str) -> Result:
        raise MachineDiedError(f"guest died under {storage_type}", console="Kernel panic")

    lab.workload = die
    result = lab.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["MachineDiedError, the lab's fault: guest died under DRAM", "Kernel panic"]
    )
    result.stdout.no_fnmatch_line("*another exception*")


def test_a_machine_that_dies_fails_only_one_run(lab: Lab) -> None:
    lab.add("numa", storage_types="[DRAM, PMEM_MEMKIND]")

    def die_on_dram(storage_type: str) -> Result:
        if storage_type == "DRAM":
            raise MachineDiedError("guest died")
        return document(storage_type)

    lab.workload = die_on_dram
    lab.run().assert_outcomes(errors=1, passed=1)
    assert lab.log.count("start pmem-node") == lab.log.count("stop pmem-node") == 2


def test_a_machine_whose_facts_changed_during_a_run_is_an_error_of_the_lab(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "decay", 0)
    lab.add("numa")
    result = lab.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*mount.dax: expected True, found False*"])
    assert len([entry for entry in lab.log if entry.startswith("run")]) == 1


def test_a_machine_that_does_not_start_is_an_error_of_the_lab(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add("numa")

    def refuse(topology: Topology, kind: Kind, *_: object) -> FakeMachine:
        raise LabError(f"no {kind} for {topology.name}")

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", refuse)
    result = lab.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["LabError, the lab's fault: no guest for pmem-node"])


def test_the_traceback_of_a_bug_in_the_lab_has_only_the_lab_s_own_lines(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add("numa")

    def break_down(*_: object) -> FakeMachine:
        raise RuntimeError("no such wire")

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", break_down)
    result = lab.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*RuntimeError: no such wire"])
    result.stdout.no_fnmatch_line("*_pytest*")


def test_a_failing_workload_is_a_failure_with_its_output(lab: Lab) -> None:
    lab.add("numa")
    lab.workload = lambda _: Result(2, "", "wdl: the store is full")
    result = lab.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["the workload ended with status 2:", "wdl: the store is full"])


def test_one_machine_serves_all_scenarios_of_its_topology(lab: Lab) -> None:
    lab.add("a", topology="one")
    lab.add("b", topology="two")
    lab.add("c", topology="one", storage_types="[PMEM_MEMKIND]")
    lab.run().assert_outcomes(passed=3)
    assert [entry for entry in lab.log if "one" in entry] == [
        *("start one", "run one DRAM", "run one PMEM_MEMKIND", "stop one"),
    ]
    assert [entry for entry in lab.log if "two" in entry] == [
        *("start two", "run two DRAM", "stop two"),
    ]


def test_a_scenario_on_a_machine_with_unproved_facts_is_skipped_with_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "unproved", ["mount.dax"])
    lab.add("numa")
    lab.workload = lambda storage_type: document(storage_type, tables=[])  # no rows can be found
    result = lab.run("-rs", machine="process")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*numa*process, unproved*", "SKIPPED*can't prove mount.dax;*"])


def test_replaced_media_are_listed_once_for_all_topologies(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = "pmem.nodes 1 -> 0: DRAM in place of PMem or CXL memory"
    monkeypatch.setattr(FakeMachine, "replaced", [replaced])
    lab.add("a", topology="one", storage_types="[DRAM, PMEM_MEMKIND]")
    lab.add("b", topology="two")
    result = lab.run(machine="process")
    lines = [line for line in result.outlines if replaced in line]
    assert lines == [f"replaced by the process machine: {replaced} (one, two)"]


def test_a_run_on_the_host_says_why_its_rate_is_not_measured(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "accelerator", "none")
    lab.add("numa", storage_types="[PMEM_MEMKIND]")
    for machine, times in (("host", 1), ("process", 0)):
        lines = lab.run(machine=machine).outlines
        why = [line for line in lines if "no rate: numa on PMEM_MEMKIND: of tier" in line]
        assert len(why) == times


def test_a_requirement_found_missing_after_a_run_skips_the_test_with_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: object) -> None:
        raise MissingRequirementError("a disk", "set TMPDIR")

    monkeypatch.setattr(ScenarioSession, "judge", judge)
    lab.add("numa")
    result = lab.run("-rs", machine="process")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*a disk; to get it: set TMPDIR"])


def test_wrong_rows_on_an_unproved_machine_still_fail(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMachine, "unproved", ["mount.dax"])
    lab.add("numa")
    lab.workload = lambda storage_type: document(storage_type, state_sha256="bb")
    lab.run(machine="process").assert_outcomes(failed=1)


def test_option_here_needs_an_existing_file_and_a_run_on_this_computer(
    lab: Lab,
) -> None:
    lab.add("numa")
    result = lab.run("--pmemlab-here", "gone.yaml", machine="process")
    result.stderr.fnmatch_lines(["*gone.yaml: there is no such file; write it by*-o gone.yaml*"])
    result = lab.run("--pmemlab-here", "numa.yaml", machine="guest")
    result.stderr.fnmatch_lines(["*numa.yaml: is this computer's memory, not that of an emulated*"])


@pytest.mark.parametrize(("kind", "outcome"), [("process", "skipped"), ("guest", "errors")])
def test_a_missing_requirement_skips_a_process_run_and_is_an_error_for_a_guest(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str, outcome: str
) -> None:
    def refuse(*_: object) -> FakeMachine:
        raise MissingRequirementError("memkind", "apt-get install libmemkind0")

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", refuse)
    lab.add("numa")
    result = lab.run("-rsE", machine=kind)
    result.assert_outcomes(**{outcome: 1})
    result.stdout.fnmatch_lines(["*memkind; to get it: apt-get install libmemkind0"])


@pytest.mark.parametrize("kind", ["guest", "container"])
def test_a_machine_that_requires_a_newer_qemu_is_skipped_with_the_reason(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(*_: object) -> FakeMachine:
        raise MissingRequirementError("QEMU 10.0", "PMEMLAB_QEMU")

    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", refuse)
    lab.add("cxl")
    path = lab.pytester.path / "topologies/pmem-node.yaml"
    path.write_text(path.read_text() + 'requires: {qemu: "10.0"}\n')
    result = lab.run("-rs", machine=kind)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*QEMU 10.0; to get it: PMEMLAB_QEMU"])


def test_markers_of_a_scenario_select_its_tests(lab: Lab) -> None:
    lab.add("a", storage_types="[DRAM, PMEM_MEMKIND]", more="markers: [slow, nightly]")
    lab.add("b", more="like: a")
    lab.run("-m", "slow").assert_outcomes(passed=2, deselected=1)
    lab.run("-m", "not nightly").assert_outcomes(passed=1, deselected=2)


MACHINE_TEST = """
import pytest

@pytest.mark.pmemlab("nvme", "sata")
def test_a_disk(machine): pass

def test_of_no_machine(): pass
"""


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        # Five tests: a scenario on two storage types, a test on two machines, a test on none.
        (["--pmemlab-storage-type", "DRAM"], {"passed": 1, "deselected": 4}),
        (["--pmemlab-topology", "one"], {"passed": 2, "deselected": 3}),
        (["--pmemlab-topology", "nvme"], {"passed": 1, "deselected": 4}),
        (["--pmemlab-topology=one", "--pmemlab-storage-type=DRAM"], {"passed": 1, "deselected": 4}),
        ([], {"passed": 5}),
    ],
)
def test_options_select_among_scenarios_and_the_tests_beside_them(
    lab: Lab, options: list[str], outcomes: dict[str, int]
) -> None:
    lab.add("a", topology="one", storage_types="[DRAM, PMEM_MEMKIND]")
    (lab.pytester.path / "scenarios" / "below").mkdir()
    (lab.pytester.path / "scenarios/below/test_machines.py").write_text(MACHINE_TEST)
    lab.run(*options).assert_outcomes(**outcomes)


def test_options_do_not_deselect_tests_elsewhere(lab: Lab) -> None:
    lab.add("a", storage_types="[DRAM, PMEM_MEMKIND]")
    lab.pytester.makepyfile(test_mine="def test_mine(): pass")
    lab.run(".", "--pmemlab-storage-type", "DRAM").assert_outcomes(passed=2, deselected=1)


def test_an_empty_selection_is_a_usage_error(lab: Lab) -> None:
    lab.add("a", topology="one")
    result = lab.run("--pmemlab-topology", "won")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--pmemlab-topology won: no scenario has it; there are one"])


def test_two_topologies_with_one_name_are_refused(lab: Lab) -> None:
    lab.add("a")
    lab.add("b")
    other = lab.pytester.path / "other"
    other.mkdir()
    text = TOPOLOGY.format(name="pmem-node").replace("52M", "104M")
    (other / "pmem-node.yaml").write_text(text)
    b = lab.pytester.path / "scenarios/b.yaml"
    b.write_text(b.read_text().replace("../topologies/", "../other/"))
    result = lab.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*b.yaml: topology: *a.yaml has another one that is called*"])


def test_a_malformed_file_is_named(lab: Lab) -> None:
    lab.add("a")
    (lab.pytester.path / "scenarios/a.yaml").write_text("summary: only\n")
    result = lab.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*a.yaml:1: topology: is missing"])


def test_scenarios_are_collected_from_yaml_and_yml_files(lab: Lab) -> None:
    lab.add("a")
    folder = lab.pytester.path / "scenarios"
    (folder / "b.yml").write_text((folder / "a.yaml").read_text())
    result = lab.run("-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*a.yaml::DRAM PASSED*", "*b.yml::DRAM PASSED*"])


def test_yaml_files_of_other_projects_are_left_alone(lab: Lab, pytester: pytest.Pytester) -> None:
    lab.add("a")
    pytester.makepyprojecttoml("[tool.pytest.ini_options]")
    assert lab.run().ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_collecting_starts_no_machine(lab: Lab) -> None:
    lab.add("a")
    result = lab.run("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*a.yaml::DRAM"])
    assert lab.log == []


def test_an_interrupted_run_stops_the_machines_at_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.add("a")
    lab.add("b", topology="other")
    machines: list[FakeMachine] = []
    runs = threading.Event()

    def hang_until_stopped(_: str) -> Result:
        runs.set()
        # As in a guest, a command ends with an error when its machine is stopped.
        assert machines[-1].stopped.wait(60), "the machine was not stopped"
        raise MachineDiedError("guest was stopped")

    open_fake = lab.open_machine

    def open_machine(topology: Topology, kind: Kind, *_: object) -> FakeMachine:
        machines.append(open_fake(topology, kind))
        return machines[-1]

    def interrupt(self: ScenarioSession, *_: object) -> Outcome:
        self._runner.start(list(self._jobs.values()))
        assert runs.wait(60), "no workload was started"
        raise KeyboardInterrupt

    lab.workload = hang_until_stopped
    monkeypatch.setattr(pmemlab.machines.opening, "open_machine", open_machine)
    monkeypatch.setattr(ScenarioSession, "wait_for", interrupt)
    started = time.monotonic()
    result = lab.run()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert time.monotonic() - started < 30
    assert machines
    assert all(machine.stopped.is_set() for machine in machines)


def test_emulated_machines_run_at_the_same_time(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    together = threading.Barrier(2)

    def wait_for_the_other(storage_type: str) -> Result:
        together.wait(10)
        return document(storage_type)

    for name in ("a", "b"):
        lab.add(name, topology=name)
    lab.workload = wait_for_the_other
    lab.run().assert_outcomes(passed=2)


def test_nothing_runs_beside_a_measured_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(FakeMachine, "accelerator", "kvm")
    alone = threading.Lock()

    def insist_on_being_alone(storage_type: str) -> Result:
        assert alone.acquire(blocking=False), "another workload is running"
        time.sleep(0.05)
        alone.release()
        return document(storage_type)

    for name in ("a", "b", "c"):
        lab.add(name, topology=name)
    lab.workload = insist_on_being_alone
    lab.run().assert_outcomes(passed=3)
    assert [entry.split()[0] for entry in lab.log] == ["start", "run", "stop"] * 3


def test_a_machine_that_cannot_be_stopped_is_named(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(machine: FakeMachine) -> None:
        raise LabError(f"{machine.topology.name} is stuck")

    monkeypatch.setattr(FakeMachine, "stop", refuse)
    lab.add("a")
    result = lab.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["could not be stopped: guest pmem-node: pmem-node is stuck"])
