"""Runs scenarios on machines: one machine per topology, few of them at a time.

Runs start before a caller asks for their outcome, so that a machine boots while another works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pmemlab.errors import LabError
from pmemlab.machines.copying import copy_in, copy_out, temporary_folder, unpack
from pmemlab.machines.protocol import (
    CRASH_STACKS_ENVIRONMENT,
    Accelerator,
    Booting,
    Kind,
    Machine,
    OnLine,
    Result,
)
from pmemlab.scenarios.command import cut_command, saving_command, workload_command
from pmemlab.scenarios.document import PowerCuts, Scenario
from pmemlab.scenarios.power_cuts import PowerCut, kept_folder, run_until_cut
from pmemlab.scenarios.program import RowSearch, pack_program, program_command
from pmemlab.topology import Topology

__all__ = ["Job", "OpenMachine", "Outcome", "ScenarioRunner"]

# Time after SIGABRT in which a workload can print its stacks; emulated machines are slow.
_KILL_AFTER_S = 20
# Further time for the machine to end the command.
_MACHINE_GRACE_S = 120.0
_ENDED_EARLY = "the run was ended while its machine started"

OpenMachine = Callable[[Topology, Kind, Callable[[str], None], Callable[[Booting], None]], Machine]
"""Returns a started and proved machine, or raises LabError: see `open_machine`."""


@dataclass(frozen=True)
class Job:
    """A scenario on a storage type, on a machine of the kind chosen for it."""

    scenario: Scenario
    storage_type: str
    kind: Kind

    def __hash__(self) -> int:
        return hash((self.scenario.path, self.storage_type))

    @property
    def label(self) -> str:
        return f"{self.scenario.name} on {self.storage_type}"


@dataclass(frozen=True)
class Outcome:
    """The result of a job's command, and its machine. `verdict` judges whether the result is good.

    topology: the machine's, which for a process has its persistent memory at other places.
    facts: read just before the run; for a run that was cut, before its last part. facts_after: just
        after it.
    power_cuts: the cuts made; fewer than requested if the command ended before one.
    findings: for a program of the user's: the findings of `RowSearch` on its rows.
    reference: for such a program: its earlier run on the storage type to compare with. If that run
        failed, it is `result`, too.
    """

    result: Result
    topology: Topology
    machine: Kind
    accelerator: Accelerator
    facts: Mapping[str, object]
    facts_after: Mapping[str, object]
    power_cuts: tuple[PowerCut, ...] = ()
    findings: str | None = None
    reference: Outcome | None = None


class ScenarioRunner:
    """Runs jobs in the background. A context manager; leaving it stops every machine.

    Only one machine runs at a time, so that nothing disturbs measurements, until the first machine
    is known to be emulated: then nothing is measured here, and `emulated_at_a_time` machines share
    the cores, since each keeps only one busy.

    If a machine breaks, the job that ran on it fails; the next job of the topology gets a new
    machine. All methods must be called from the thread that made the runner.
    """

    def __init__(
        self,
        open_machine: OpenMachine,
        emulated_at_a_time: int,
        handed_over: Collection[str] = (),
    ) -> None:
        """handed_over: names of topologies whose machine is taken by `take` after its jobs."""
        self._open_machine = open_machine
        self._handed_over = {name: Future[Machine | None]() for name in handed_over}
        self._pool = ThreadPoolExecutor(emulated_at_a_time, thread_name_prefix="pmemlab-machine")
        self._slots = threading.Semaphore(1)
        self._extra_slots = emulated_at_a_time - 1
        self._futures: dict[Job, Future[Outcome]] = {}
        # Guards `_extra_slots` and the fields below, which threads of the pool change.
        self._lock = threading.Lock()
        self._closed = False
        self._machines: dict[int, Machine] = {}  # by id: a machine need not be hashable
        self._booting: dict[Job, Booting] = {}
        self._activities: dict[str, tuple[str, float]] = {}  # by topology, with their start
        # Machines that could not be stopped, with the reasons; complete once `close` has returned.
        self.leftovers: list[str] = []

    def start(self, jobs: Sequence[Job]) -> None:
        """Starts the jobs. Jobs of one topology and kind run one after another on one machine."""
        groups: dict[tuple[str, Kind], list[Job]] = {}
        for job in jobs:
            self._futures[job] = Future()
            groups.setdefault((job.scenario.topology.name, job.kind), []).append(job)
        for group in groups.values():
            self._pool.submit(self._run_group, group)

    def outcome(self, job: Job, timeout_s: float | None = None) -> Outcome | None:
        """Waits for a started job's outcome. Returns None if there is none after `timeout_s`.

        Raises LabError if the lab broke.
        """
        future = self._futures[job]
        wait([future], timeout_s)
        return future.result() if future.done() else None

    def take(self, topology: str) -> Machine | None:
        """Returns the machine of the topology's jobs, once all have run; the caller must stop it.
        Returns None if it is broken, or the topology is not in `handed_over`.
        """
        handed_over = self._handed_over.pop(topology, None)
        machine = handed_over.result() if handed_over is not None else None
        if machine is not None:
            with self._lock:
                self._machines.pop(id(machine), None)
        return machine

    def activities(self) -> list[str]:
        """Returns the current activities and their durations, for people."""
        now = time.monotonic()
        with self._lock:
            return [f"{what}, {now - since:.0f} s" for what, since in self._activities.values()]

    def close(self) -> None:
        """Stops all runs and every machine. Idempotent."""
        with self._lock:
            self._closed = True
            machines = list(self._machines.values())
            booting = list(self._booting.values())
        for machine in machines:
            self._stop(machine)
        for boot in booting:
            with suppress(LabError):  # the opening thread tries as well
                boot.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for future in self._futures.values():
            if not future.done():
                future.set_exception(LabError("the run was ended before its turn"))
        for kept in self._handed_over.values():
            if not kept.done():
                kept.set_result(None)

    def __enter__(self) -> ScenarioRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_group(self, jobs: Sequence[Job]) -> None:
        with self._slots:
            self._run_jobs(jobs)
            self._note_activity(jobs[0], None)

    def _run_jobs(self, jobs: Sequence[Job]) -> None:
        machine: Machine | None = None
        for job in jobs:
            try:
                if self._closed:
                    raise LabError("the run was ended before its turn")
                if machine is None:
                    machine = self._open(job, job.scenario.topology)
                self._futures[job].set_result(self._run(job, machine))
            except BaseException as error:
                self._futures[job].set_exception(error)
                self._stop(machine)
                machine = None
        handed_over = self._handed_over.get(jobs[0].scenario.topology.name)
        if handed_over is None or handed_over.done():  # set by these jobs' first runs
            self._stop(machine)
        else:
            handed_over.set_result(machine)

    def _run(self, job: Job, machine: Machine) -> Outcome:
        if job.scenario.workload.command:
            return self._run_program(job, machine)
        if job.scenario.power_cuts is not None:
            return self._run_and_cut(job, machine, job.scenario.power_cuts)
        saved_on = job.scenario.saved_on
        if saved_on is None:
            return self._run_command(
                job,
                machine,
                workload_command(job.scenario, job.storage_type, machine.python, machine.topology),
            )
        with TemporaryDirectory(prefix="pmemlab-saved-") as scratch:
            saved = Path(scratch, "saved")
            earlier = self._open(job, saved_on.topology)
            try:
                with temporary_folder(earlier) as folder:
                    command = saving_command(job.scenario, earlier.python, earlier.topology, folder)
                    outcome = self._run_command(job, earlier, command)
                    if outcome.result.returncode:
                        return outcome
                    copy_out(earlier, folder, saved)
            finally:
                self._stop(earlier)
            with temporary_folder(machine) as folder:
                copy_in(machine, saved, folder)
                place = job.storage_type, machine.python, machine.topology
                command = workload_command(job.scenario, *place, f"{folder}/{saved.name}")
                return self._run_command(job, machine, command)

    def _run_program(self, job: Job, machine: Machine) -> Outcome:
        """Runs a program of the user's, first on the storage type to compare with, if any."""
        reference = None
        if job.scenario.reference_storage_type:
            reference = self._run_once(job, machine, job.scenario.reference_storage_type)
            if reference.result.returncode:
                return reference
        outcome = self._run_once(job, machine, job.storage_type)
        return replace(outcome, reference=reference)

    def _run_once(self, job: Job, machine: Machine, storage_type: str) -> Outcome:
        """Runs a program in a folder of its own, without files of an earlier run."""
        with temporary_folder(machine) as folder:
            complaint = f"{job.label}: its files can't be copied to the {machine.kind}"
            unpack(machine, folder, partial(pack_program, job.scenario), complaint)
            command = program_command(
                job.scenario.workload, storage_type, machine.python, machine.topology, folder
            )
            search = RowSearch(machine, folder)
            outcome = self._run_command(job, machine, command, search.on_line)
            return replace(outcome, findings=search.findings)

    def _run_and_cut(self, job: Job, machine: Machine, cuts: PowerCuts) -> Outcome:
        """Runs the command until each of the cuts, and then to its end."""
        performed: list[PowerCut] = []
        with kept_folder(machine, job.scenario, job.storage_type) as folder:
            place = job.storage_type, machine.python, machine.topology
            command = _limited(job.scenario, cut_command(job.scenario, *place, folder))
            while len(performed) < cuts.count:
                self._note_activity(
                    job, f"{job.label}: power cut {len(performed) + 1} of {cuts.count}"
                )
                facts = machine.facts()
                ended = run_until_cut(
                    machine,
                    command,
                    CRASH_STACKS_ENVIRONMENT,
                    _limit_s(job.scenario),
                    cuts,
                    len(performed),
                )
                if isinstance(ended, Result):
                    machine.prove()
                    return _outcome(ended, machine, facts, performed)
                performed.append(ended)
                self._note_activity(
                    job, f"{job.label}: boots again after power cut {len(performed)}"
                )
                machine.power_on()
            command_to_end = workload_command(job.scenario, *place, kept_folder=folder)
            return replace(
                self._run_command(job, machine, command_to_end), power_cuts=tuple(performed)
            )

    def _run_command(
        self,
        job: Job,
        machine: Machine,
        command: Sequence[str],
        on_line: OnLine | None = None,
    ) -> Outcome:
        """Runs a workload on a machine that is proved before and after the run.

        The proof before is that of the machine's opening, its boot, or the end of the previous run.

        A workload that doesn't end gets SIGABRT, on which it prints its stacks, before it is
        killed: that is its own failure. A machine that can't even do this is the lab's failure.
        """
        self._note_activity(job, f"{job.label}: runs on a {machine.kind}")
        facts = machine.facts()
        result = machine.run(
            _limited(job.scenario, command),
            env=CRASH_STACKS_ENVIRONMENT,
            timeout=_limit_s(job.scenario),
            on_line=on_line,
        )
        machine.prove()
        return _outcome(result, machine, facts)

    def _open(self, job: Job, topology: Topology) -> Machine:
        self._note_activity(job, f"{topology.name}: {job.kind} is being started")

        def note_boot(booting: Booting) -> None:
            self._note_accelerator(booting.accelerator)
            with self._lock:
                if self._closed:
                    raise LabError(_ENDED_EARLY)
                self._booting[job] = booting

        try:
            machine = self._open_machine(
                topology,
                job.kind,
                lambda step: self._note_activity(job, f"{topology.name}: {step}"),
                note_boot,
            )
        finally:
            with self._lock:
                self._booting.pop(job, None)
        with self._lock:
            closed = self._closed
            self._machines[id(machine)] = machine
        if closed:
            self._stop(machine)
            raise LabError(_ENDED_EARLY)
        self._note_accelerator(machine.accelerator)
        return machine

    def _note_accelerator(self, accelerator: Accelerator) -> None:
        """Uses every slot if machines are emulated."""
        if accelerator != "tcg":
            return
        with self._lock:
            for _ in range(self._extra_slots):
                self._slots.release()
            self._extra_slots = 0

    def _stop(self, machine: Machine | None) -> None:
        if machine is None:
            return
        with self._lock:
            self._machines.pop(id(machine), None)
        try:
            machine.stop()
        except Exception as error:
            # The run has an outcome, which is what counts; the error is reported at the end.
            with self._lock:
                self.leftovers.append(f"{machine.kind} {machine.topology.name}: {error}")

    def _note_activity(self, job: Job, activity: str | None) -> None:
        with self._lock:
            if activity is None:
                self._activities.pop(job.scenario.topology.name, None)
            else:
                self._activities[job.scenario.topology.name] = activity, time.monotonic()


def _limited(scenario: Scenario, command: Sequence[str]) -> list[str]:
    # coreutils' timeout runs in the machine, so that it reaches the workload's children.
    timeout = ["timeout", "--verbose", "--signal=ABRT", f"--kill-after={_KILL_AFTER_S}"]
    return [*timeout, f"{scenario.timeout_s}", *command]


def _limit_s(scenario: Scenario) -> float:
    return scenario.timeout_s + _MACHINE_GRACE_S


def _outcome(
    result: Result,
    machine: Machine,
    facts: Mapping[str, object],
    power_cuts: Sequence[PowerCut] = (),
) -> Outcome:
    """Returns an outcome. REQUIRES: the machine was proved just now."""
    return Outcome(
        result,
        machine.topology,
        machine.kind,
        machine.accelerator,
        facts,
        machine.facts(),
        tuple(power_cuts),
    )
