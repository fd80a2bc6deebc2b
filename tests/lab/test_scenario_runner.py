"""Runs of scenarios, with this computer as the machine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pmemlab.errors import MachineDiedError
from pmemlab.machines.opening import open_machine
from pmemlab.machines.process import LOST_BY_POWER_CUT, ProcessMachine
from pmemlab.machines.protocol import Accelerator, Booting, Result
from pmemlab.scenarios import runner
from pmemlab.scenarios.document import (
    Expectations,
    PowerCuts,
    RowPlacement,
    SavedOn,
    Scenario,
    Storage,
    Workload,
)
from pmemlab.scenarios.power_cuts import PowerCut, run_until_cut
from pmemlab.scenarios.reading import load_scenario
from pmemlab.scenarios.runner import Job, Outcome, ScenarioRunner
from pmemlab.scenarios.verdict import (
    ExpectationError,
    judge,
    judge_power_cuts,
    parse_document,
)
from pmemlab.topology import Topology, load_topology

SCENARIOS = Path(__file__).parents[2] / "scenarios"
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


def test_tables_that_are_saved_on_one_machine_resume_bit_for_bit_on_another() -> None:
    saved_on = SavedOn(load_topology("fsdax"), "DRAM_PMEM", batches=9)
    scenario = replace(ON_DISK, saved_on=saved_on)
    document = parse_document(outcome_of(scenario, "DRAM_SSDHASH").result)
    judge(scenario, "DRAM_SSDHASH", document)
    assert document["run"]["first_step"] == 9
    assert document["run"]["steps"] == document["reference"]["steps"] - 9


def test_a_failed_save_is_a_failure_of_the_workload() -> None:
    saved_on = SavedOn(load_topology("fsdax"), "DRAM_PMEM", batches=9)
    unknown = replace(ON_DISK, saved_on=saved_on, workload=Workload("tables", {"no": "option"}))
    with pytest.raises(ExpectationError, match="ended with status 2"):
        parse_document(outcome_of(unknown, "DRAM_SSDHASH").result)


WITH_POWER_CUTS = Scenario(
    path=Path("nvme-power-cuts.yaml"),
    name="nvme-power-cuts",
    summary="",
    topology=load_topology("nvme"),
    storage_types=("DRAM",),
    expect=Expectations(RowPlacement(nodes=(0,))),
    workload=Workload("tables", {**SMALL, "steps": 60, "keep-every": 3}),
    power_cuts=PowerCuts(3, "ssd", after_line="kept: step"),
)


def test_tables_resume_bit_for_bit_after_power_cuts() -> None:
    outcome = outcome_of(WITH_POWER_CUTS, "DRAM")
    document = parse_document(outcome.result)
    judge(WITH_POWER_CUTS, "DRAM", document, outcome.power_cuts)
    first, *others = outcome.power_cuts
    assert (first.resumed, first.kept_step >= 3) == (None, True)
    assert [later.resumed is not None for later in others] == [True, True]
    assert document["run"]["first_step"] >= 9
    assert LOST_BY_POWER_CUT in str(outcome.facts["unproved"])


ONE_CUT = load_scenario(SCENARIOS / "fsdax-power-cuts-wdl.yaml")
assert ONE_CUT.power_cuts is not None
# With 150 steps, enough are left after the latest second cut for rows to fill DRAM again.
MODEL_WITH_POWER_CUTS = replace(
    ONE_CUT,
    workload=Workload("wdl", {**ONE_CUT.workload.arguments, "steps": 150}),
    power_cuts=replace(ONE_CUT.power_cuts, count=2),
)


@pytest.mark.long
def test_a_model_resumes_bit_for_bit_after_power_cuts_at_random_moments() -> None:
    outcome = outcome_of(MODEL_WITH_POWER_CUTS, "DRAM_PMEM")
    document = parse_document(outcome.result)
    judge(MODEL_WITH_POWER_CUTS, "DRAM_PMEM", document, outcome.power_cuts)
    first, second = outcome.power_cuts
    assert first.kept_step >= 4
    assert second.resumed is not None
    assert document["reference"]["checksums"][str(second.resumed.step)] == second.resumed.sha256
    assert document["run"]["first_step"] >= second.kept_step > second.resumed.step


class KeepingMachine:
    """A fake machine, whose command keeps 60 steps, or fewer if its power is cut."""

    powered = True

    def run(self, *_: object, on_line: Callable[[str], None], **__: object) -> Result:
        for step in range(1, 61):
            if not self.powered:
                raise MachineDiedError("power cut")
            on_line(f"kept: step {step}")
        return Result(0, "{}", "")

    def power_cut(self) -> None:
        self.powered = False


def cuts_made(cuts: PowerCuts, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], list[int]]:
    """Makes the power cuts without any wait. Returns the seconds after which each was due, and the
    last step kept before each."""
    delays: list[float] = []

    class Timer:
        def __init__(self, delay_s: float, cut: Callable[[], None]) -> None:
            delays.append(delay_s)
            self.start = cut

        def cancel(self) -> None:
            pass

        def join(self) -> None:
            pass

    monkeypatch.setattr(threading, "Timer", Timer)
    steps = []
    for number in range(cuts.count):
        machine: Any = KeepingMachine()
        cut = run_until_cut(machine, ["true"], {}, 60.0, cuts, number)
        assert isinstance(cut, PowerCut)
        steps.append(cut.kept_step)
    return delays, steps


def test_power_cuts_may_come_at_lines_drawn_by_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = PowerCuts(4, "ssd", after_line="kept: step", after_lines=(5, 20))
    _, steps = cuts_made(cuts, monkeypatch)
    assert all(5 <= step <= 20 for step in steps)
    assert len(set(steps)) > 1
    assert cuts_made(cuts, monkeypatch)[1] == steps
    assert cuts_made(replace(cuts, seed=cuts.seed + 1), monkeypatch)[1] != steps


FORGETFUL = """
import sys, time
print("kept: step 7", file=sys.stderr, flush=True)
time.sleep(600)
"""


def test_a_checkpoint_that_a_command_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "cut_command", lambda *_: [sys.executable, "-c", FORGETFUL])
    outcome = outcome_of(WITH_POWER_CUTS, "DRAM")
    document = parse_document(outcome.result)
    with pytest.raises(ExpectationError, match="went on from step 0, though it had kept step 7"):
        judge(WITH_POWER_CUTS, "DRAM", document, outcome.power_cuts)


def test_power_cuts_may_come_at_moments_drawn_by_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    cuts = PowerCuts(3, "ssd", within_s=(0.2, 1.2), seed=3)
    moments, _ = cuts_made(cuts, monkeypatch)
    assert all(0.2 <= moment <= 1.2 for moment in moments)
    assert len(set(moments)) == 3
    assert cuts_made(cuts, monkeypatch)[0] == moments


def test_a_command_that_ends_before_its_power_cut_fails() -> None:
    never = PowerCuts(2, "ssd", after_line="no such line")
    scenario = replace(WITH_POWER_CUTS, power_cuts=never)
    outcome = outcome_of(scenario, "DRAM")
    assert outcome.power_cuts == ()
    with pytest.raises(ExpectationError, match="ended before power cut 1 of 2"):
        judge_power_cuts(never, outcome.power_cuts, outcome.result)


def test_the_death_of_a_machine_does_not_count_as_a_power_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dies(_self: object, _argv: object, **_: object) -> object:
        raise MachineDiedError("the machine is gone")

    monkeypatch.setattr(runner, "cut_command", lambda *_: [sys.executable, "-c", FORGETFUL])
    with open_machine(WITH_POWER_CUTS.topology, "process") as machine:
        monkeypatch.setattr(ProcessMachine, "run", dies)
        with pytest.raises(MachineDiedError, match="the machine is gone"):
            run_until_cut(machine, ["true"], {}, 1.0, PowerCuts(1, "ssd", "saved"), 0)


HANG = """
import threading, time
def wait_for_a_row_that_never_comes():
    time.sleep(600)
print("trained half", flush=True)
wait_for_a_row_that_never_comes()
"""


def test_a_hanging_workload_fails_and_says_where_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "workload_command", lambda *_: [sys.executable, "-c", HANG])
    hanging = replace(ON_DISK, topology=PLAIN, timeout_s=3.0)  # enough for Python to start
    outcome = outcome_of(hanging, "DRAM")
    with pytest.raises(ExpectationError, match="still running when its time was up") as failure:
        parse_document(outcome.result)
    assert "wait_for_a_row_that_never_comes" in str(failure.value)


IGNORE = """
import signal, time
signal.signal(signal.SIGABRT, signal.SIG_IGN)
time.sleep(600)
"""


def test_a_workload_that_ignores_sigabrt_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "workload_command", lambda *_: [sys.executable, "-c", IGNORE])
    monkeypatch.setattr(runner, "_KILL_AFTER_S", 1)
    outcome = outcome_of(replace(ON_DISK, topology=PLAIN, timeout_s=1.0), "DRAM")
    with pytest.raises(ExpectationError, match="still running when its time was up"):
        parse_document(outcome.result)


def test_the_death_of_a_machine_is_not_a_failure_of_the_workload() -> None:
    def opened(topology: Topology, _: str, *__: object) -> object:
        machine = open_machine(topology, "process")
        machine.power_cut()
        return machine

    job = Job(replace(ON_DISK, topology=PLAIN), "DRAM", "process")
    with ScenarioRunner(opened, 1) as running:  # type: ignore[arg-type]
        running.start([job])
        with pytest.raises(MachineDiedError):
            running.outcome(job)


@pytest.mark.parametrize(("accelerator", "boots_beside_another"), [("tcg", True), ("kvm", False)])
def test_only_emulated_machines_boot_at_the_same_time(
    accelerator: Accelerator, boots_beside_another: bool
) -> None:
    """Nothing may disturb a machine on KVM, whose rates are measured."""
    both_boot = threading.Barrier(2)
    beside_another = []

    def opened(
        _topology: Topology, _kind: str, _on_step: object, tell: Callable[[Booting], None]
    ) -> object:
        tell(Booting(accelerator, lambda: None))
        try:
            both_boot.wait(timeout=10.0 if boots_beside_another else 0.3)
            beside_another.append(True)
        except threading.BrokenBarrierError:
            beside_another.append(False)
        raise MachineDiedError("it boots no further")

    jobs = [
        Job(replace(ON_DISK, path=Path(name), topology=replace(PLAIN, name=name)), "DRAM", "guest")
        for name in ("one", "other")
    ]
    with ScenarioRunner(opened, 2) as running:  # type: ignore[arg-type]
        running.start(jobs)
        for job in jobs:
            with pytest.raises(MachineDiedError):
                running.outcome(job)
    assert beside_another == [boots_beside_another] * 2


def test_ending_a_run_stops_a_machine_that_is_booting() -> None:
    boots, stopped = threading.Event(), threading.Event()

    def opened(
        _topology: Topology, _kind: str, _on_step: object, tell: Callable[[Booting], None]
    ) -> object:
        tell(Booting("tcg", stopped.set))
        boots.set()
        raise MachineDiedError("is stopped" if stopped.wait(20.0) else "came up in vain")

    job = Job(replace(ON_DISK, topology=PLAIN), "DRAM", "guest")
    running = ScenarioRunner(opened, 1)  # type: ignore[arg-type]
    running.start([job])
    assert boots.wait(20.0)
    running.close()
    with pytest.raises(MachineDiedError, match="is stopped"):
        running.outcome(job)
