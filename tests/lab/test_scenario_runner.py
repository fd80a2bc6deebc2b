"""Runs on this computer in the place of a machine."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pmemlab.errors import MachineDiedError
from pmemlab.machines import open_machine
from pmemlab.scenarios import runner
from pmemlab.scenarios.document import (
    Expectations,
    RowPlacement,
    SavedOn,
    Scenario,
    Storage,
    Workload,
)
from pmemlab.scenarios.runner import Job, Outcome, ScenarioRunner
from pmemlab.scenarios.verdict import ExpectationError, judge, parse_document
from pmemlab.topology import Topology, load_topology

SMALL = {"tables": 2, "rows": 3000, "steps": 12, "batch-size": 512, "cold-lookups": 200}
ON_DISK = Scenario(
    path=Path("fsdax-then-nvme.yaml"),
    name="fsdax-then-nvme",
    summary="",
    topology=load_topology("nvme"),
    storage_types=("DRAM_SSDHASH",),
    expect=Expectations(None, tiers=(RowPlacement(nodes=(0,)), RowPlacement(nodes=(0,)))),
    storage=Storage(size_bytes=(1 << 14,)),
    workload=Workload("tables", SMALL),
)
PLAIN = Topology("plain", "this computer", {"kernel": os.uname().release})


def outcome_of(scenario: Scenario, storage_type: str) -> Outcome:
    job = Job(scenario, storage_type, "process")
    with ScenarioRunner(open_machine, 1) as running:
        running.start([job])
        outcome = running.outcome(job)
    assert outcome is not None
    return outcome


def test_tables_that_begin_on_one_machine_go_on_bit_for_bit_on_another() -> None:
    saved_on = SavedOn(load_topology("fsdax"), "DRAM_PMEM", batches=9)
    scenario = replace(ON_DISK, saved_on=saved_on)
    document = parse_document(outcome_of(scenario, "DRAM_SSDHASH").result)
    judge(scenario, "DRAM_SSDHASH", document)
    assert document["run"]["first_step"] == 9
    assert document["run"]["steps"] == document["reference"]["steps"] - 9


def test_what_is_saved_in_vain_is_the_workload_s_failure() -> None:
    saved_on = SavedOn(load_topology("fsdax"), "DRAM_PMEM", batches=9)
    unknown = replace(ON_DISK, saved_on=saved_on, workload=Workload("tables", {"no": "option"}))
    with pytest.raises(ExpectationError, match="ended with status 2"):
        parse_document(outcome_of(unknown, "DRAM_SSDHASH").result)


HANG = """
import threading, time
def wait_for_a_row_that_never_comes():
    time.sleep(600)
print("trained half", flush=True)
wait_for_a_row_that_never_comes()
"""


def test_a_workload_that_hangs_fails_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "workload_command", lambda *_: [sys.executable, "-c", HANG])
    hanging = replace(ON_DISK, topology=PLAIN, timeout_s=1.0)
    outcome = outcome_of(hanging, "DRAM")
    with pytest.raises(ExpectationError, match="still running when its time was up") as failure:
        parse_document(outcome.result)
    assert "wait_for_a_row_that_never_comes" in str(failure.value)


IGNORE = """
import signal, time
signal.signal(signal.SIGABRT, signal.SIG_IGN)
time.sleep(600)
"""


def test_a_workload_that_can_t_be_aborted_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "workload_command", lambda *_: [sys.executable, "-c", IGNORE])
    monkeypatch.setattr(runner, "_KILL_AFTER_S", 1)
    outcome = outcome_of(replace(ON_DISK, topology=PLAIN, timeout_s=1.0), "DRAM")
    with pytest.raises(ExpectationError, match="still running when its time was up"):
        parse_document(outcome.result)


def test_a_machine_that_dies_is_no_failure_of_the_workload() -> None:
    def opened(topology: Topology, _: str) -> object:
        machine = open_machine(topology, "process")
        machine.power_cut()
        return machine

    job = Job(replace(ON_DISK, topology=PLAIN), "DRAM", "process")
    with ScenarioRunner(opened, 1) as running:  # type: ignore[arg-type]
        running.start([job])
        with pytest.raises(MachineDiedError):
            running.outcome(job)
