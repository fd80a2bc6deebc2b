"""The verdict on a scenario: a workload's document must show all that the scenario expects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pmemlab.errors import MissingRequirementError
from pmemlab.machines.protocol import Result
from pmemlab.scenarios.document import (
    Expectations,
    PowerCuts,
    RowPlacement,
    Scenario,
    Workload,
)
from pmemlab.scenarios.power_cuts import PowerCut
from pmemlab.scenarios.verdict import (
    ExpectationError,
    judge,
    judge_placement,
    judge_power_cuts,
    parse_document,
)
from pmemlab.topology import PersistentMemory, SolidStateDisk, Topology
from pmemlab.workloads.keeping import ResumePoint

PMEM = PersistentMemory(path="/mnt/pmem", nodes=(1,), size_bytes=1 << 20)
SSD = SolidStateDisk("/mnt/ssd")
TOPOLOGY = Topology(name="fsdax", summary="", proof={}, pmem=PMEM, ssd=SSD)
FACTS: dict[str, Any] = {
    "nodes": [0, 1],
    "mount": {"device_number": "259:0"},
    "ssd": {
        "device": "/dev/nvme0n1",
        "device_number": "259:3",
        "read_bytes": 1000,
        "written_bytes": 2000,
    },
}
FACTS_AFTER: dict[str, Any] = {
    **FACTS,
    "ssd": {**FACTS["ssd"], "read_bytes": 1000 + 4096, "written_bytes": 2000 + 8192},
}
ON_NODE_1 = RowPlacement(nodes=(1,))
ON_DAX = RowPlacement(file_under="/mnt/pmem", is_pmem=True)


def scenario(rows: RowPlacement, auc_above: float | None = None) -> Scenario:
    return Scenario(
        path=Path("fsdax.yaml"),
        name="fsdax",
        summary="",
        topology=TOPOLOGY,
        storage_types=("PMEM_LIBPMEM",),
        expect=Expectations(rows, auc_above=auc_above),
    )


def run(storage_type: str) -> dict[str, Any]:
    return {
        "storage_type": storage_type,
        "losses": ["0x1.6p-1", "0x1.5p-1"],
        "state_sha256": "aa",
        "auc": 0.7,
        "tables": [table()],
    }


def table(**changed: Any) -> dict[str, Any]:
    """Returns a document's entry for a table with one good tier, changed by `changed`."""
    tier = {
        "name": "PMEM_LIBPMEM",
        "rows": 3,
        "nodes": {"1": 4},
        "file": "/mnt/pmem/deep_C1",
        "devices": {"259:0": 4096},
        "is_pmem": True,
        "bytes": 144,
        "mapped_bytes": 16384,
        "sought": 2,
        "found": 2,
        **changed,
    }
    return {"name": "deep_C1", "exported_rows": 3, "tiers": [tier]}


CHECKSUMS = {"1": "11", "2": "22"}


def verdict_after(
    cuts: Sequence[PowerCut],
    first_step: int,
    checksums: Mapping[str, str] = CHECKSUMS,
    expected: Mapping[str, str] = CHECKSUMS,
) -> str | None:
    """Returns the complaint about a good run with power cuts, whose last part began at
    `first_step`; or None.

    checksums, expected: the checksums by step of the run and of the reference.
    """
    losses = run("DRAM")["losses"][first_step:]
    changed = {"first_step": first_step, "losses": losses, "checksums": checksums}
    document = {
        "reference": run("DRAM") | {"checksums": expected},
        "run": run("PMEM_LIBPMEM") | changed,
    }
    try:
        judge(scenario(ON_DAX), "PMEM_LIBPMEM", document, cuts)
    except ExpectationError as error:
        return str(error)
    return None


def cut(resumed_step: int = 0, kept_step: int = 0, sha256: str | None = None) -> PowerCut:
    """Returns a power cut. resumed_step: 0 if the command named no checkpoint that it resumed."""
    checksum = sha256 or CHECKSUMS.get(str(resumed_step), "")
    return PowerCut(1.0, ResumePoint(resumed_step, checksum) if resumed_step else None, kept_step)


def test_a_run_that_resumes_from_its_last_checkpoint_passes() -> None:
    assert verdict_after([cut(kept_step=1)], first_step=1) is None
    assert verdict_after([cut(), cut(0, 1), cut(1, 0)], first_step=1) is None


def test_a_checkpoint_completed_during_the_power_cut_may_be_unreported() -> None:
    assert verdict_after([cut(kept_step=0)], first_step=1) is None


def test_a_checkpoint_lost_in_a_power_cut_fails() -> None:
    complaint = verdict_after([cut(kept_step=2)], first_step=1)
    assert (
        complaint == "after power cut 1 the workload went on from step 1, though it had kept step 2"
    )


def test_a_checkpoint_lost_in_an_earlier_power_cut_fails_although_the_end_is_right() -> None:
    assert "after power cut 1 the" in str(verdict_after([cut(0, 1), cut(0, 1)], first_step=1))
    assert "after power cut 2 the" in str(verdict_after([cut(0, 2), cut(2, 0)], first_step=1))


def test_a_command_cut_before_its_first_output_is_not_judged() -> None:
    assert verdict_after([cut(0, 1), cut(0, 0), cut(1, 0)], first_step=1) is None
    assert "after power cut 2 the" in str(verdict_after([cut(0, 2), cut(), cut(1)], first_step=2))


def test_a_checkpoint_with_other_bits_fails_and_is_named() -> None:
    complaint = str(verdict_after([cut(0, 1), cut(1, 0, sha256="1f")], first_step=1))
    assert complaint == (
        "after power cut 1 the checkpoint of step 1 was read back with checksum 1f; the reference "
        "has 11 there"
    )
    complaint = str(verdict_after([cut(0, 1)], 1, checksums={"1": "1f", "2": "22"}))
    assert "after power cut 1 the checkpoint of step 1 was read back with checksum 1f" in complaint


def test_a_resumed_checkpoint_must_have_a_checksum_on_both_sides() -> None:
    assert "read back with checksum None" in str(
        verdict_after([cut(0, 1)], 1, checksums={"2": "22"})
    )
    assert verdict_after([cut(0, 1)], 1, expected={"2": "22"}) == (
        "after power cut 1 the workload went on from step 1, of which the reference has no checksum"
    )


@pytest.mark.parametrize("end", [{}, {"2": "2f"}])
def test_an_end_with_other_bits_fails(end: dict[str, str]) -> None:
    complaint = str(verdict_after([cut(0, 1)], 1, checksums={"1": "11"} | end))
    assert complaint.startswith("after the last step, 2, the checksum is ")
    assert complaint.endswith("the reference's is 22")
    assert "after the last step" in str(
        verdict_after([cut(0, 1)], 1, checksums={"1": "11"}, expected={"1": "11"})
    )


def test_power_cuts_before_any_checkpoint_fail_as_no_evidence() -> None:
    assert verdict_after([cut(), cut()], 0) == (
        "every run began anew: no power cut came after something was kept"
    )


def test_a_run_that_ends_before_its_power_cut_fails() -> None:
    cuts = PowerCuts(2, "ssd", after_line="saved")
    well, badly = Result(0, "{}", ""), Result(1, "", "no space left")
    with pytest.raises(ExpectationError, match=r"before power cut 2 of 2: no line .* 'saved'"):
        judge_power_cuts(cuts, [cut()], well)
    judge_power_cuts(cuts, [cut(), cut()], well)
    judge_power_cuts(cuts, [cut()], badly)
    with pytest.raises(ExpectationError, match="no space left"):
        parse_document(badly)


def verdict(
    rows: RowPlacement = ON_DAX,
    auc_above: float | None = None,
    reference: dict[str, Any] | None = None,
    **changed: Any,
) -> str | None:
    """Judges a good document with changes in its run and in the reference. Returns the complaint,
    or None.
    """
    document = {
        "workload": "wdl",
        "reference": run("DRAM") | (reference or {}),
        "run": run("PMEM_LIBPMEM") | changed,
    }
    judged = scenario(rows, auc_above)
    try:
        judge(judged, "PMEM_LIBPMEM", document)
        judge_placement(judged, judged.topology, FACTS, FACTS_AFTER, document)
    except ExpectationError as error:
        return str(error)
    return None


def test_a_correct_run_passes() -> None:
    assert verdict(ON_DAX, auc_above=0.5) is None
    assert verdict(ON_NODE_1) is None


def test_nan_losses_are_equal() -> None:
    """A user's own program may print losses as JSON numbers."""
    losses = [0.5, float("nan")]
    assert verdict(reference={"losses": losses}, losses=[*losses]) is None
    complaint = verdict(reference={"losses": losses}, losses=[0.5, 0.25])
    assert complaint == "step 2: the loss is nan on DRAM, but 0.25 on PMEM_LIBPMEM"


def test_the_first_different_loss_is_named() -> None:
    complaint = verdict(losses=["0x1.6p-1", "0x1.4p-1"])
    assert complaint == "step 2: the loss is 0x1.5p-1 on DRAM, but 0x1.4p-1 on PMEM_LIBPMEM"


def test_different_rows_fail_even_if_losses_agree() -> None:
    assert "rows after training differ" in str(verdict(state_sha256="bb"))


def test_fewer_steps_fail() -> None:
    assert "2 steps on DRAM, but 1 on PMEM_LIBPMEM" in str(verdict(losses=["0x1.6p-1"]))


def test_a_run_on_another_storage_type_fails() -> None:
    assert "the run was on DRAM, not on PMEM_LIBPMEM" in str(verdict(storage_type="DRAM"))


@pytest.mark.parametrize("auc", [0.5, 0.3, None])
def test_an_auc_that_is_not_above_the_threshold_fails(auc: float | None) -> None:
    assert f"the AUC on held-out rows is {auc}" in str(verdict(auc_above=0.5, auc=auc))
    assert verdict(auc_above=None, auc=auc) is None


@pytest.mark.parametrize(
    ("rows", "tier", "complaint"),
    [
        (ON_NODE_1, {"nodes": {"0": 2, "1": 9}}, "2 pages lie on node 0; they must lie on node 1"),
        (ON_NODE_1, {"nodes": {}}, "move_pages knows no page of it"),
        (ON_DAX, {"file": None}, "is mapped from no file; it must be a file under /mnt/pmem/"),
        (ON_DAX, {"file": "/mnt/pmem2/x"}, "is mapped from /mnt/pmem2/x"),
        (ON_DAX, {"is_pmem": False}, "is_pmem is False; it must be True"),
        (ON_DAX, {"is_pmem": None}, "is_pmem is None; it must be True"),
        (ON_DAX, {"rows": 0}, "has no rows"),
        (ON_DAX, {"bytes": 4097}, "holds 4096 bytes, too few for rows of 4097"),
        (ON_NODE_1, {"devices": {}, "bytes": 16385}, "holds 16384 bytes, too few"),
        (ON_DAX, {"found": 1}, "another process found 1 of 2 rows in /mnt/pmem/deep_C1"),
        (ON_NODE_1, {"file": None, "found": 0}, "another process found 0 of 2 rows in its memory"),
    ],
)
def test_rows_outside_the_expected_place_fail(
    rows: RowPlacement, tier: dict[str, Any], complaint: str
) -> None:
    changed = table(**tier)
    changed["exported_rows"] = changed["tiers"][0]["rows"]
    shown = str(verdict(rows, tables=[changed]))
    assert shown.startswith("table deep_C1, tier PMEM_LIBPMEM: ")
    assert complaint in shown


def test_a_tier_without_any_row_that_was_looked_for_fails() -> None:
    unseen = table(sought=0, found=0)
    shown = str(verdict(ON_DAX, tables=[unseen]))
    assert "tier PMEM_LIBPMEM: none of its rows could be looked for" in shown
    assert verdict(ON_DAX, tables=[unseen, table()]) is None


def test_tiers_with_fewer_rows_than_were_exported_fail() -> None:
    shown = str(verdict(ON_DAX, tables=[table(rows=1)]))
    assert "table deep_C1: exported 3 rows, and its tiers say that they have 1" in shown


ON_SSD = RowPlacement(file_under="ssd", read_bytes=4096, written_bytes=8192)
TWO_TIERS = Scenario(
    path=Path("nvme.yaml"),
    name="nvme",
    summary="",
    topology=TOPOLOGY,
    storage_types=("DRAM_SSDHASH",),
    workload=Workload("tables"),
    expect=Expectations(None, tiers=(ON_NODE_1, ON_SSD)),
)


def two_tiers(first_rows: int = 8, lower_rows: int = 3, **stats: Any) -> dict[str, Any]:
    """Returns a document's entry for a good table on DRAM_SSDHASH."""
    first = {"name": "DRAM", "rows": first_rows, "capacity_rows": 8}
    lower = {"name": "SSDHASH", "rows": lower_rows, "capacity_rows": None}
    evidence: dict[str, Any] = {"nodes": {}, "file": None, "devices": {}, "is_pmem": None}
    evidence |= {"bytes": 144, "mapped_bytes": 0, "sought": 4, "found": 4}
    return {
        "name": "deep_C1",
        "exported_rows": first_rows + lower_rows,
        "tiers": [
            {**first, **evidence, "nodes": {"1": 1}},
            {**lower, **evidence, "file": "/mnt/ssd/deep_C1.ssdhash", "devices": {"259:3": 4096}},
        ],
        "stats": {"promotions": 5, "demotions": 8, "tiers": [first, lower], **stats},
    }


def verdict_on_two_tiers(
    *tables: dict[str, Any],
    facts: dict[str, Any] = FACTS,
    facts_after: dict[str, Any] = FACTS_AFTER,
    **changed: Any,
) -> str | None:
    """Returns the complaint about a run of TWO_TIERS with these tables, or None."""
    good = {
        "tables": list(tables),
        "cold": {"rows": 5, "wrong": 0},
        "plain": {"wrong_keys": 0, "wrong_frequencies": 0},
    }
    document = {
        "reference": run("DRAM"),
        "run": run("DRAM_SSDHASH") | good | changed,
    }
    try:
        judge(TWO_TIERS, "DRAM_SSDHASH", document)
        judge_placement(TWO_TIERS, TOPOLOGY, facts, facts_after, document)
    except ExpectationError as error:
        return str(error)
    return None


def test_a_folder_that_is_not_on_a_disk_is_a_missing_requirement() -> None:
    in_memory = {**FACTS, "ssd": {"device": "tmpfs", "device_number": "259:3"}}
    with pytest.raises(MissingRequirementError, match=r"is on tmpfs.*set TMPDIR to a folder on"):
        verdict_on_two_tiers(two_tiers(), facts=in_memory, facts_after=in_memory)


def test_tables_whose_rows_lie_in_their_tiers_pass() -> None:
    assert verdict_on_two_tiers(two_tiers()) is None
    assert verdict_on_two_tiers(two_tiers(), two_tiers(4, 0)) is None  # a small table


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (two_tiers(9), "tier DRAM: has 9 rows and room for 8"),
        (two_tiers(7), "tier DRAM: has 7 rows and room for 8, with 3 rows below it"),
        (two_tiers(8, 0), "no table has rows in its tier 1"),
        (two_tiers(promotions=0), "there were no promotions"),
        (two_tiers(demotions=0), "there were no demotions"),
        (two_tiers(tiers=[]), "table deep_C1 has 0 tiers; 2 are expected"),
    ],
)
def test_rows_that_are_not_spread_over_the_tiers_fail(
    table: dict[str, Any], complaint: str
) -> None:
    assert complaint in str(verdict_on_two_tiers(table))


def test_a_disk_tier_may_have_some_rows_in_a_buffer() -> None:
    table, other = two_tiers(), two_tiers()
    table["tiers"][1] |= {"found": 0, "mapped_bytes": 4096}  # some schemes read by mapping
    assert verdict_on_two_tiers(table, other) is None
    other["tiers"][1]["found"] = 3
    shown = str(verdict_on_two_tiers(table, other))
    assert "tier SSDHASH: another process found 3 of 8 rows in /mnt/ssd/deep_C1.ssdhash" in shown


def test_each_tier_is_checked_against_its_own_place() -> None:
    elsewhere = two_tiers()
    elsewhere["tiers"][1]["file"] = "/tmp/deep_C1.ssdhash"
    complaint = str(verdict_on_two_tiers(elsewhere))
    assert "tier SSDHASH: is mapped from /tmp/deep_C1.ssdhash" in complaint
    elsewhere = two_tiers()
    elsewhere["tiers"][0]["nodes"] = {"0": 1}
    assert "tier DRAM: 1 pages lie on node 0" in str(verdict_on_two_tiers(elsewhere))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"cold": None}, "no cold row was looked up"),
        ({"cold": {"rows": 0, "wrong": 0}}, "no cold row was looked up"),
        ({"cold": {"rows": 5, "wrong": 2}}, "2 of 5 cold rows aren't what the reference has"),
        ({"plain": {"wrong_keys": 3, "wrong_frequencies": 0}}, "3 keys have a row and should"),
        ({"plain": {"wrong_keys": 0, "wrong_frequencies": 4}}, "4 rows have another frequency"),
    ],
)
def test_wrong_cold_rows_keys_or_frequencies_fail(changed: dict[str, Any], complaint: str) -> None:
    assert complaint in str(verdict_on_two_tiers(two_tiers(), **changed))


def test_rows_that_never_reach_the_disk_fail() -> None:
    complaint = str(verdict_on_two_tiers(two_tiers(), facts_after=FACTS))
    assert "0 bytes were read from /dev/nvme0n1 during the run" in complaint
    assert "0 bytes were written to /dev/nvme0n1 during the run" in complaint


def test_files_on_another_device_fail_whatever_their_path() -> None:
    # For example, the disk was unmounted, and the folder is on the file system below it.
    elsewhere = two_tiers()
    elsewhere["tiers"][1]["devices"] = {"0:21": 4096}
    assert "on device 0:21; they must be on 259:3" in str(verdict_on_two_tiers(elsewhere))
    nowhere = two_tiers()
    nowhere["tiers"][1]["devices"] = {}
    assert "on device none; they must be on 259:3" in str(verdict_on_two_tiers(nowhere))
    moved = verdict(RowPlacement(file_under="pmem"), tables=[table(devices={"8:1": 1})])
    assert "on device 8:1; they must be on 259:0" in str(moved)


def test_a_resumed_run_is_compared_from_its_first_step() -> None:
    assert verdict(first_step=1, losses=["0x1.5p-1"]) is None
    assert "step 2: the loss" in str(verdict(first_step=1, losses=["0x1.4p-1"]))
    assert "1 steps on DRAM, but 2" in str(verdict(first_step=1))


def test_pmem_stands_for_the_machine_s_pmem_path_or_nodes() -> None:
    assert verdict(RowPlacement(nodes="pmem", file_under="pmem")) is None
    assert "node 0" in str(verdict(RowPlacement(nodes="pmem"), tables=[table(nodes={"0": 1})]))
    moved = str(verdict(RowPlacement(file_under="pmem"), tables=[table(file="/dev/shm/x")]))
    assert "must be a file under /mnt/pmem/" in moved


def test_a_single_misplaced_table_fails() -> None:
    assert "node 0" in str(verdict(ON_NODE_1, tables=[table(), table(nodes={"0": 1})]))


def test_a_run_without_tables_fails() -> None:
    assert verdict(tables=[]) == "the run had no tables"


def test_many_misplaced_tables_are_summarised() -> None:
    shown = str(verdict(tables=[table(file=None)] * 52))
    assert shown.count("\n") == 5
    assert shown.endswith("... and 47 more of that kind")


def test_the_error_of_a_failed_workload_has_the_end_of_its_output() -> None:
    stderr = "\n".join(f"line {number}" for number in range(100))
    with pytest.raises(ExpectationError, match="ended with status 2") as raised:
        parse_document(Result(2, "", stderr))
    assert "line 99" in str(raised.value)
    assert "line 10\n" not in str(raised.value)


def test_the_error_of_a_hanging_workload_has_its_stacks() -> None:
    stacks = "timeout: sending signal ABRT to command 'python3'\nFatal Python error: Aborted"
    for status in (124, 137, -9):
        with pytest.raises(ExpectationError, match="still running when its time was up") as raised:
            parse_document(Result(status, "", stacks))
        assert "Fatal Python error: Aborted" in str(raised.value)


@pytest.mark.parametrize("stdout", ["", "hello", "[]", "{}", '{"workload": "wdl", "run": {}}'])
def test_a_workload_that_prints_no_document_fails(stdout: str) -> None:
    with pytest.raises(ExpectationError, match="printed no document"):
        parse_document(Result(0, stdout, ""))


def test_a_document_is_parsed() -> None:
    document = {"workload": "wdl", "run": run("DRAM"), "reference": run("DRAM")}
    assert parse_document(Result(0, json.dumps(document), "")) == document
