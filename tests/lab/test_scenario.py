"""Scenario files: the commands that they stand for, and the errors for bad files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from embstore.options import StorageType
from pmemlab.scenarios.command import cut_command, saving_command, workload_command
from pmemlab.scenarios.document import (
    Expectations,
    PowerCuts,
    RowPlacement,
    Scenario,
    ScenarioError,
    Workload,
)
from pmemlab.scenarios.reading import load_scenario
from pmemlab.workloads import wdl

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TOPOLOGY = """
name: lab-fsdax
summary: a machine with a DAX mount and a node of persistent memory
proof: {mount.dax: true, mount.map_sync: true, mount.page_regions: [region0],
  kmem_bytes: 0, memkind.page_nodes: [1]}
pmem: {path: /mnt/pmem, nodes: [1, 2], size: 156M}
"""

SCENARIO = """
summary: rows in a file on the DAX mount
topology: lab-fsdax.yaml
storage_types: [PMEM_LIBPMEM]
expect:
  rows: {file_under: pmem, is_pmem: true}
"""


def load(folder: Path, text: str) -> Scenario:
    (folder / "lab-fsdax.yaml").write_text(TOPOLOGY)
    path = folder / "fsdax.yaml"
    path.write_text(dedent(text))
    return load_scenario(path)


def test_a_short_file_has_defaults_for_the_rest(tmp_path: Path) -> None:
    scenario = load(tmp_path, SCENARIO)
    assert scenario.name == "fsdax"
    assert scenario.topology.name == "lab-fsdax"
    assert scenario.storage_types == ("PMEM_LIBPMEM",)
    placement = RowPlacement(nodes=None, file_under="pmem", is_pmem=True)
    assert scenario.expect == Expectations(placement, auc_above=None)
    assert scenario.reference_storage_type == "DRAM"
    assert scenario.not_judged == ()
    assert scenario.timeout_s == 600


def test_storage_is_on_the_topology_s_persistent_memory(tmp_path: Path) -> None:
    argv = argv_of(load(tmp_path, SCENARIO), "PMEM_LIBPMEM")
    assert argv[:4] == ["python3", "-m", "pmemlab.workloads.wdl", "--json"]
    assert option(argv, "--storage-type") == "PMEM_LIBPMEM"
    assert option(argv, "--storage-path") == "/mnt/pmem"
    assert option(argv, "--storage-size") == str(1 << 20)  # 52 tables share a third of 156 MiB
    assert option(argv, "--reference") == "DRAM"


def test_memkind_gets_no_path_and_dram_gets_no_size(tmp_path: Path) -> None:
    scenario = load(tmp_path, SCENARIO)
    assert "--storage-path" not in argv_of(scenario, "PMEM_MEMKIND")
    assert "--storage-size" not in argv_of(scenario, "DRAM")


def test_a_scenario_s_storage_overrides_the_topology_s(tmp_path: Path) -> None:
    scenario = load(tmp_path, SCENARIO + "storage: {path: /mnt/other, size: 2M}\n")
    argv = argv_of(scenario, "PMEM_LIBPMEM")
    assert option(argv, "--storage-path") == "/mnt/other"
    assert option(argv, "--storage-size") == str(2 << 20)


ON_DISK = "{file_under: ssd, read: 1M, written: 2M}"
ON_SEVERAL_TIERS = """
summary: rows in memory, persistent memory and on a disk
topology: lab-fsdax.yaml
storage_types: [DRAM_PMEM_SSDHASH, DRAM_PMEM_LEVELDB]
storage: {size: 2K}
expect:
  tiers:
    - {nodes: [0]}
    - {file_under: pmem, is_pmem: true}
    - {file_under: ssd, read: 1M, written: 2M}
"""


def load_with_disk(folder: Path, text: str) -> Scenario:
    """Loads the text for a machine that also has a disk."""
    with_disk = TOPOLOGY + "ssd: {path: /mnt/ssd}\n"
    (folder / "lab-nvme.yaml").write_text(with_disk.replace("lab-fsdax", "lab-nvme"))
    return load(folder, text.replace("lab-fsdax.yaml", "lab-nvme.yaml"))


def test_each_tier_is_on_the_topology_s_medium_for_it(tmp_path: Path) -> None:
    scenario = load_with_disk(tmp_path, ON_SEVERAL_TIERS)
    argv = argv_of(scenario, "DRAM_PMEM_SSDHASH")
    at = argv.index("--storage-path")
    assert argv[at + 1 : at + 4] == ["-", "/mnt/pmem", "/mnt/ssd"]
    at = argv.index("--storage-size")
    # The first size is the file's, the second a share of the medium; the disk has no limit.
    assert argv[at + 1 : at + 3] == [str(2 << 10), str(1 << 20)]
    assert wdl.argument_parser().parse_args(argv[3:]).storage_size == [2 << 10, 1 << 20]
    in_memory, in_pmem, on_ssd = (
        tier.resolved_on(scenario.topology) for tier in scenario.expect.tiers
    )
    assert in_memory == RowPlacement(nodes=(0,))
    assert in_pmem == RowPlacement(file_under="/mnt/pmem", is_pmem=True)
    assert on_ssd == RowPlacement(file_under="/mnt/ssd", read_bytes=1 << 20, written_bytes=2 << 20)


def test_sizes_may_be_given_for_each_tier(tmp_path: Path) -> None:
    text = ON_SEVERAL_TIERS.replace("size: 2K", "size: [2K, 4K, 1M]")
    argv = argv_of(load_with_disk(tmp_path, text), "DRAM_PMEM_LEVELDB")
    at = argv.index("--storage-size")
    assert argv[at + 1 : at + 4] == ["2048", "4096", str(1 << 20)]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("tiers:", "rows:", "expect.rows: must be a mapping of fields"),
        (f"    - {ON_DISK}\n", "", "expect.tiers: has 2 entries; .* has 3 tiers"),
        ("[DRAM_PMEM_SSDHASH, DRAM_PMEM_LEVELDB]", "[DRAM]", "expect.tiers: DRAM has one tier"),
        (ON_DISK, "{file_under: mnt}", r"expect.tiers\[2\].file_under: must be pmem"),
        (ON_DISK, "{}", r"expect.tiers\[2\].nodes: say where"),
        (ON_DISK, "{file_under: ssd, read: 1M}", r"tiers\[2\].written: is missing; say how many"),
        (ON_DISK, "{file_under: ssd, written: 1M}", r"tiers\[2\].read: is missing; say how many"),
        (ON_DISK, "{file_under: ssd, read: 1M, written: x}", r"tiers\[2\].written: 'x' is no size"),
        ("{nodes: [0]}", "{nodes: [0], read: 1M}", r"tiers\[0\].read: is for file_under: ssd"),
        ("size: 2K", "size: [2K, none]", "storage.size: 'none' is no size"),
    ],
)
def test_a_bad_field_of_several_tiers_is_named(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in ON_SEVERAL_TIERS
    with pytest.raises(ScenarioError, match=rf"fsdax\.yaml:\d+: .*{complaint}"):
        load_with_disk(tmp_path, ON_SEVERAL_TIERS.replace(old, new, 1))


def test_a_topology_without_a_disk_is_refused_if_a_disk_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="storage_types: DRAM_PMEM_SSDHASH needs a disk"):
        load(tmp_path, ON_SEVERAL_TIERS)
    argv = argv_of(
        load(
            tmp_path,
            ON_SEVERAL_TIERS.replace("size: 2K", "path: /srv").replace(
                ON_DISK, "{file_under: /srv}"
            ),
        ),
        "DRAM_PMEM_SSDHASH",
    )
    assert argv[argv.index("--storage-path") + 3] == "/srv"


def test_workload_arguments_are_passed_on_the_command_line(tmp_path: Path) -> None:
    text = SCENARIO + "workload: {arguments: {steps: 7, hidden-units: [8, 4]}}\n"
    argv = argv_of(load(tmp_path, text), "PMEM_LIBPMEM")
    assert argv[-5:] == ["--steps", "7", "--hidden-units", "8", "4"]


def test_a_boolean_argument_is_passed_as_a_flag(tmp_path: Path) -> None:
    text = SCENARIO + "workload: {arguments: {fill: true, steps: 7}}\n"
    assert argv_of(load(tmp_path, text), "PMEM_LIBPMEM")[-3:] == ["--fill", "--steps", "7"]
    text = text.replace("fill: true", "fill: false")
    assert argv_of(load(tmp_path, text), "PMEM_LIBPMEM")[-2:] == ["--steps", "7"]


def test_a_host_reads_its_disk_with_direct_io(tmp_path: Path) -> None:
    scenario = load_with_disk(tmp_path, ON_SEVERAL_TIERS)
    assert "--direct-io" not in argv_of(scenario, "DRAM_PMEM_SSDHASH")
    on_host = replace(scenario, direct_io=True)
    assert "--direct-io" in argv_of(on_host, "DRAM_PMEM_SSDHASH")
    assert "--direct-io" not in argv_of(on_host, "DRAM_PMEM_LEVELDB")


PREDICTED = "predict_on: [[ddr4-2666-x6, here, nvme-p4510], [here, here, here]]\n"


def test_a_run_is_predicted_on_the_devices_that_the_scenario_names(tmp_path: Path) -> None:
    scenario = load_with_disk(tmp_path, ON_SEVERAL_TIERS + PREDICTED)
    argv = argv_of(scenario, "DRAM_PMEM_SSDHASH")
    at = argv.index("--predict")
    assert argv[at + 1 : at + 3] == ["ddr4-2666-x6,here,nvme-p4510", "here,here,here"]
    assert "--direct-io" in argv
    assert "--direct-io" not in argv_of(scenario, "DRAM_PMEM_LEVELDB")
    assert "--predict" not in argv_of(load(tmp_path, SCENARIO), "PMEM_LIBPMEM")


def test_the_device_file_of_this_computer_s_memory_is_passed_for_predictions(
    tmp_path: Path,
) -> None:
    scenario = load_with_disk(tmp_path, ON_SEVERAL_TIERS + PREDICTED)
    assert "--here" not in argv_of(scenario, "DRAM_PMEM_SSDHASH")
    scenario = replace(scenario, memory_here=tmp_path / "mine.yaml")
    argv = argv_of(scenario, "DRAM_PMEM_SSDHASH")
    memory = tmp_path / "mine.yaml"
    assert argv[argv.index("--here") + 1] == f"{memory},{memory},here"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("nvme-p4510", "nvme-x", r"predict_on\[0\]: .*nvme-x"),
        ("ddr4-2666-x6", "nvme-p4510", r"predict_on\[0\]: .*nvme-p4510 is a disk"),
        ("[here, here, here]", "[here]", r"predict_on\[1\]: .* has 3 tiers"),
        ("[here, here, here]", "here", "predict_on: must be lists of devices"),
        ("[here, here, here]", "[mine.yaml, here, here]", r"predict_on\[1\]: .*mine.yaml"),
        ("predict_on", "workload: {arguments: {predict: x}}\npredict_on", "is set by the runner"),
    ],
)
def test_devices_on_which_a_run_cannot_be_predicted_are_named(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    text = ON_SEVERAL_TIERS + PREDICTED
    assert old in text
    with pytest.raises(ScenarioError, match=complaint):
        load_with_disk(tmp_path, text.replace(old, new))


def test_rows_may_be_expected_on_the_nodes_of_persistent_memory(tmp_path: Path) -> None:
    text = SCENARIO.replace("{file_under: pmem, is_pmem: true}", "{nodes: pmem}")
    scenario = load(tmp_path, text)
    assert scenario.expect.rows is not None
    assert scenario.expect.rows.resolved_on(scenario.topology).nodes == (1, 2)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("summary: rows", "sumary: rows", "sumary: is no field here; there are like, summary"),
        ("summary: rows in a file on the DAX mount", "summary: 3", "summary: must be text"),
        ("lab-fsdax.yaml", "nowhere", "topology: .*there is no 'nowhere'"),
        ("lab-fsdax.yaml", "absent.yaml", "topology: .*absent.yaml: can't be read"),
        ("[PMEM_LIBPMEM]", "[PMEM]", "storage_types: 'PMEM' is no storage type; there are DRAM"),
        ("[PMEM_LIBPMEM]", "[]", "storage_types: must be a list"),
        ("[PMEM_LIBPMEM]", "[DRAM, DRAM]", "storage_types: names one twice"),
        ("is_pmem: true", "is_pmem: maybe", "expect.rows.is_pmem: must be true or false"),
        (
            "file_under: pmem",
            "file_under: mnt",
            "expect.rows.file_under: must be pmem, ssd or an abs",
        ),
        ("file_under: pmem", "nodes: [one]", "expect.rows.nodes: must be pmem or a list"),
        ("{file_under: pmem, is_pmem: true}", "{}", "expect.rows.nodes: say where rows must lie"),
        ("rows:", "row:", "expect.row: is no field here; there are rows"),
        ("rows: {", "auc_above: 2\n  rows: {", "expect.auc_above: must be a number in"),
        ("rows: {", "identical_to: RAM\n  rows: {", "expect.identical_to: 'RAM' is no storage"),
        ("expect:", "timeout_s: 0\nexpect:", "timeout_s: must be a number of seconds above 0"),
        ("expect:", "timeout_s: 1.0e+300\nexpect:", "timeout_s: must be .*a week at most"),
        (
            "expect:",
            "machine: guest\nexpect:",
            "machine: is no field here; there are",
        ),
        ("expect:", "storage: {size: 1X}\nexpect:", "storage.size: '1X' is no size"),
        ("expect:", "storage: {path: here}\nexpect:", "storage.path: must be an absolute path"),
        ("expect:", "workload: {name: dlrm}\nexpect:", "workload.name: 'dlrm' is no workload"),
        ("expect:", "workload: {arguments: {steps: 0}}\nexpect:", "argument --steps: 0 is not"),
        ("expect:", "workload: {arguments: {stepz: 1}}\nexpect:", "wdl does not take --stepz 1"),
        (
            "expect:",
            "workload: {arguments: {help: true}}\nexpect:",
            "workload.arguments.help: shows the workload's options and trains nothing",
        ),
        (
            "expect:",
            "workload: {arguments: {storage-path: /x}}\nexpect:",
            "workload.arguments.storage-path: is set by the runner",
        ),
        ("expect:", "- expect:", "not YAML"),
    ],
)
def test_a_bad_field_is_named_with_its_file(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in SCENARIO
    with pytest.raises(ScenarioError, match=rf"fsdax\.yaml:\d+: .*{complaint}"):
        load(tmp_path, SCENARIO.replace(old, new, 1))


def test_a_topology_without_a_mount_has_no_path_to_expect(tmp_path: Path) -> None:
    text = SCENARIO.replace("lab-fsdax.yaml", "plain.yaml")
    (tmp_path / "plain.yaml").write_text("name: plain\nsummary: plain\nproof: {nodes: [0]}\n")
    with pytest.raises(ScenarioError, match=r"expect\.rows\.file_under: topology plain has no"):
        load(tmp_path, text)


def argv_of(scenario: Scenario, storage_type: str) -> list[str]:
    return workload_command(scenario, storage_type, "python3", scenario.topology)


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_a_scenario_may_be_like_another_and_state_only_the_differences(tmp_path: Path) -> None:
    small = "workload: {arguments: {steps: 3}}\ntimeout_s: 60\n"
    (tmp_path / "small.yaml").write_text(SCENARIO + small)
    scenario = load(tmp_path, "summary: rows elsewhere\nlike: small\ntimeout_s: 30\n")
    assert scenario.workload == Workload("wdl", {"steps": 3})
    assert (scenario.summary, scenario.timeout_s) == ("rows elsewhere", 30)
    assert scenario.topology.name == "lab-fsdax"
    assert scenario.expect.rows == RowPlacement(file_under="pmem", is_pmem=True)


def test_a_scenario_does_not_inherit_the_markers_of_the_scenario_it_is_like(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(dedent(SCENARIO) + "markers: [long]\n")
    assert load(tmp_path, "summary: another\nlike: small\n").markers == ()
    assert load(tmp_path, "summary: another\nlike: small\nmarkers: [slow]\n").markers == ("slow",)


def test_scenarios_that_are_not_long_cover_every_storage_type_and_every_machine() -> None:
    all_of_them = [load_scenario(path) for path in sorted(SCENARIOS.glob("*.yaml"))]
    default = [scenario for scenario in all_of_them if "long" not in scenario.markers]
    storage_types = {name for each in default for name in each.storage_types}
    assert storage_types == set(StorageType.__members__)
    assert {each.topology.name for each in default} == {each.topology.name for each in all_of_them}
    assert sum(each.power_cuts is not None for each in default) >= 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("summary: s\nlike: tiny\n", "fsdax.yaml:2: like: there is no other scenario 'tiny'"),
        ("summary: s\nlike: fsdax\n", "fsdax.yaml:2: like: there is no other scenario 'fsdax'"),
        ("summary: s\nlike: [small]\n", "fsdax.yaml:2: like: there is no other scenario"),
        ("summary: s\nlike: third\n", "like: third is like another one itself; name that one"),
        ("like: small\n", "summary: is missing"),
        ("summary: s\nlike: wrong\n", "fsdax.yaml:2: stepz: is no field here"),
    ],
)
def test_an_impossible_like_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    (tmp_path / "third.yaml").write_text("summary: s\nlike: small\n")
    (tmp_path / "wrong.yaml").write_text(SCENARIO + "stepz: 3\n")
    with pytest.raises(ScenarioError) as caught:
        load(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.parametrize("where", ["scenario", "workload"])
def test_neither_a_scenario_nor_its_workload_can_set_an_environment(
    tmp_path: Path, where: str
) -> None:
    environment = "environment: {PMEM_IS_PMEM_FORCE: '1'}"
    field_text = {
        "scenario": f"{environment}\n",
        "workload": f"workload: {{{environment}}}\n",
    }[where]
    with pytest.raises(ScenarioError, match="environment: is no field here"):
        load(tmp_path, SCENARIO + field_text)


SAVED_ON = "saved_on: {topology: lab-fsdax.yaml, storage_type: PMEM_LIBPMEM, batches: 4}\n"
TABLES = "workload: {name: tables, arguments: {tables: 3}}\n"
CUTS = "power_cuts: {count: 2, after_line: saved, kept_on: pmem}\n"


def load_on_media(folder: Path, text: str) -> Scenario:
    """Loads the text for a machine whose persistent memory is a file, which survives power cuts."""
    topology = folder / "lab-nvdimm.yaml"
    topology.write_text(TOPOLOGY.replace("lab-fsdax", "lab-nvdimm") + "backing_files: {dimm: 1M}\n")
    return load(folder, text.replace("lab-fsdax.yaml", "lab-nvdimm.yaml"))


def test_a_run_may_have_power_cuts_and_continue_after_each(tmp_path: Path) -> None:
    cuts = CUTS.replace("kept_on", "within_s: [0, 1.5], after_lines: [2, 9], seed: 7, kept_on")
    scenario = load_on_media(tmp_path, SCENARIO + TABLES + cuts)
    assert scenario.power_cuts == PowerCuts(2, "pmem", "saved", (0.0, 1.5), 7, (2, 9))
    place = "PMEM_LIBPMEM", "python3", scenario.topology
    cut = cut_command(scenario, *place, "/mnt/pmem/kept")
    last = workload_command(scenario, *place, kept_folder="/mnt/pmem/kept")
    assert option(cut, "--kept-in") == option(last, "--kept-in") == "/mnt/pmem/kept"
    assert option(last, "--reference") == "DRAM"
    assert "--reference" not in cut


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("count: 2, ", "", "power_cuts.count: is missing"),
        ("count: 2", "count: no", "power_cuts.count: must be a whole number above 0"),
        ("after_line: saved, ", "", "power_cuts.after_line: say when the power is cut"),
        ("after_line: saved", "within_s: 3", "power_cuts.within_s: must be the least and the most"),
        ("after_line: saved", "within_s: [3, 1]", "power_cuts.within_s: must be the least"),
        ("after_line: saved", "within_s: [0, 0]", "power_cuts.within_s: must be the least"),
        ("kept_on: pmem", "kept_on: ram", "power_cuts.kept_on: must be pmem or ssd, not 'ram'"),
        ("kept_on: pmem", "kept_on: ssd", "power_cuts.kept_on: topology .* has no ssd.path"),
        (", kept_on: pmem", "", "power_cuts.kept_on: is missing"),
        ("count: 2", "count: 2, often: 1", "power_cuts.often: is no field here"),
        (
            "name: tables, arguments: {tables: 3}",
            "name: wdl",
            "power_cuts: workload wdl keeps no checkpoints of it: durability: PMEM_LIBPMEM has no",
        ),
        ("after_line: saved", "after_lines: 3", "power_cuts.after_lines: must be the least and"),
        ("saved", "saved, after_lines: [0, 2]", "power_cuts.after_lines: must be the least and"),
        ("saved", "saved, after_lines: [3, 2]", "power_cuts.after_lines: must be the least and"),
        ("after_line: saved", "within_s: [0, 1], after_lines: [1, 2]", "after_lines: of which"),
        ("{tables: 3}", "{kept-in: /x}", "arguments.kept-in: is set by the runner"),
    ],
)
def test_bad_power_cuts_are_named(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    text = SCENARIO + TABLES + CUTS
    assert old in text
    with pytest.raises(ScenarioError, match=complaint):
        load_on_media(tmp_path, text.replace(old, new))


def test_power_cuts_on_a_machine_that_is_all_ram_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="nothing of topology lab-fsdax outlives a power cut"):
        load(tmp_path, SCENARIO + TABLES + CUTS)


def test_power_cuts_and_saved_on_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="power_cuts: and saved_on: are for scenarios"):
        load_on_media(tmp_path, SCENARIO + TABLES + SAVED_ON + CUTS)


def test_a_run_may_start_from_a_checkpoint_of_another_machine(tmp_path: Path) -> None:
    scenario = load(tmp_path, SCENARIO + TABLES + SAVED_ON)
    saving = saving_command(scenario, "python3", scenario.topology, "/tmp/saved")
    assert option(saving, "--save") == "/tmp/saved"
    assert option(saving, "--stop-after") == "4"
    assert "--reference" not in saving
    assert option(saving, "--storage-size") == str((156 << 20) // 3 // 3)
    going_on = workload_command(
        scenario, "PMEM_LIBPMEM", "python3", scenario.topology, "/tmp/there"
    )
    assert option(going_on, "--restore") == "/tmp/there"
    assert option(going_on, "--reference") == "DRAM"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("batches: 4", "", "saved_on.batches: is missing"),
        ("PMEM_LIBPMEM, batches", "DRAM_SSDHASH, batches", "DRAM_SSDHASH needs a disk"),
        ("PMEM_LIBPMEM, batches", "PMEM, batches", "saved_on.storage_type: 'PMEM' is no storage"),
        ("name: tables, arguments: {tables: 3}", "name: wdl", "only workload tables can be saved"),
    ],
)
def test_bad_fields_of_saved_on_are_named(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    text = SCENARIO + TABLES + SAVED_ON
    assert old in text
    with pytest.raises(ScenarioError, match=complaint):
        load(tmp_path, text.replace(old, new))


@pytest.mark.parametrize("storage_type", ["HBM_DRAM_PMEM", "HBM_DRAM_PMEM_SSDHASH"])
def test_wdl_keeps_no_checkpoints_below_hbm(tmp_path: Path, storage_type: str) -> None:
    text = SCENARIO.replace("PMEM_LIBPMEM", storage_type).replace("lab-fsdax.yaml", "fsdax-nvme")
    tiers = len(storage_type.split("_"))
    expected = f"tiers: [{', '.join(['{is_pmem: true}'] * tiers)}]"
    text = text.replace("rows: {file_under: pmem, is_pmem: true}", expected)
    with pytest.raises(ScenarioError, match=r"power_cuts: .*HBM; give DRAM_PMEM or DRAM_PMEM_SSDH"):
        load(tmp_path, text + CUTS)


def test_hbm_needs_a_topology_with_a_gpu(tmp_path: Path) -> None:
    text = "summary: a\ntopology: {}\nstorage_types: [HBM]\nexpect: {{rows: {{gpu: emulated}}}}\n"
    assert load(tmp_path, text.format("dram")).topology.gpu == "emulated"
    with pytest.raises(ScenarioError, match="storage_types: HBM needs a GPU, but topology sata"):
        load(tmp_path, text.format("sata"))
    with pytest.raises(ScenarioError, match=r"expect.rows.gpu: topology sata has no such GPU"):
        load(tmp_path, text.format("sata").replace("[HBM]", "[DRAM]"))
    with pytest.raises(ScenarioError, match=r"expect.rows.gpu: must be emulated, not 'cuda'"):
        load(tmp_path, text.format("dram").replace("gpu: emulated", "gpu: cuda"))
