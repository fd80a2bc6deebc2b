"""Runs scenarios on machines: one machine a topology, few of them at a time.

Runs are started ahead of those who ask for their outcome, so that a machine boots while another
one works.
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
from pmemlab.machines.facts import TELLS_OF_CRASHES
from pmemlab.machines.protocol import Accelerator, Booting, Kind, Machine, OnLine, Result
from pmemlab.scenarios.command import cut_command, saving_command, workload_command
from pmemlab.scenarios.document import PowerCuts, Scenario
from pmemlab.scenarios.power_cuts import PowerCut, kept_folder, run_until_cut
from pmemlab.scenarios.program import Looks, pack_program, program_command
from pmemlab.topology import Topology

__all__ = ["Job", "OpenMachine", "Outcome", "ScenarioRunner"]

# After SIGABRT a workload has so long to say where it is; emulated machines are slow.
_KILL_AFTER_S = 20
# And the machine so long to be done with it all.
_MACHINE_GRACE_S = 120.0
_ENDED_EARLY = "the run was ended while its machine started"

OpenMachine = Callable[[Topology, Kind, Callable[[str], None], Callable[[Booting], None]], Machine]
"""Gives a started and proved machine, or raises LabError: see `open_machine`."""


@dataclass(frozen=True)
class Job:
    """One scenario on one storage type, on a machine of the kind chosen for it."""

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
    """How a job's command ended, and on what. Whether that is good is for `verdict` to say.

    topology: the machine's, which for a process has its persistent memory at other places.
    facts: read just before the run; of one that was cut, before its last part. facts_after: just
        after it.
    power_cuts: those that were made; fewer than asked for where the command ended before one.
    findings: of a program of the user's: what was found of its rows, as `Looks` has it.
    reference: of such a program: its run on the storage type that it is compared with, which came
        first; if that failed it is `result`, too.
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

    There is one machine at a time, so that nothing disturbs what is measured, until it is known
    that the first one is emulated: then nothing is measured here, and `emulated_at_a_time` share
    the cores, of which each keeps but one busy.

    A machine that breaks costs the job that ran on it; the next job of that topology gets a fresh
    one. All methods are for one thread, the one that made the runner.
    """

    def __init__(
        self,
        open_machine: OpenMachine,
        emulated_at_a_time: int,
        handed_over: Collection[str] = (),
    ) -> None:
        """handed_over: names of topologies whose machine `take` is called for, after its jobs."""
        self._open_machine = open_machine
        self._handed_over = {name: Future[Machine | None]() for name in handed_over}
        self._pool = ThreadPoolExecutor(emulated_at_a_time, thread_name_prefix="pmemlab-machine")
        self._slots = threading.Semaphore(1)
        self._extra_slots = emulated_at_a_time - 1
        self._futures: dict[Job, Future[Outcome]] = {}
        # Guards `_extra_slots` and the fields below, which the pool's threads change.
        self._lock = threading.Lock()
        self._closed = False
        self._machines: dict[int, Machine] = {}  # by id: a machine need not be hashable
        self._booting: dict[Job, Booting] = {}
        self._activities: dict[str, tuple[str, float]] = {}  # by topology; and since when
        # Machines that could not be stopped, and why; complete once `close` has returned.
        self.leftovers: list[str] = []

    def start(self, jobs: Sequence[Job]) -> None:
        """Start the jobs, those of one topology and kind after one another on one machine."""
        groups: dict[tuple[str, Kind], list[Job]] = {}
        for job in jobs:
            self._futures[job] = Future()
            groups.setdefault((job.scenario.topology.name, job.kind), []).append(job)
        for group in groups.values():
            self._pool.submit(self._run_group, group)

    def outcome(self, job: Job, timeout_s: float | None = None) -> Outcome | None:
        """Wait for a started job's outcome; None where there is none after `timeout_s`.

        Raises LabError where the lab broke.
        """
        future = self._futures[job]
        wait([future], timeout_s)
        return future.result() if future.done() else None

    def take(self, topology: str) -> Machine | None:
        """The machine on which the topology's jobs ran, once all of them have; it is the caller's
        to stop. None where it is broken, or nobody said that it would be taken.
        """
        kept = self._handed_over.pop(topology, None)
        machine = kept.result() if kept is not None else None
        if machine is not None:
            with self._lock:
                self._machines.pop(id(machine), None)
        return machine

    def activities(self) -> list[str]:
        """What is being done now and for how long, for people."""
        now = time.monotonic()
        with self._lock:
            return [f"{what}, {now - since:.0f} s" for what, since in self._activities.values()]

    def close(self) -> None:
        """Stop what runs and every machine. Idempotent."""
        with self._lock:
            self._closed = True
            machines = list(self._machines.values())
            booting = list(self._booting.values())
        for machine in machines:
            self._stop(machine)
        for boot in booting:
            with suppress(LabError):  # whoever opens it tries as well
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
            self._note(jobs[0], None)

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
        kept = self._handed_over.get(jobs[0].scenario.topology.name)
        if kept is None or kept.done():  # by these jobs' first runs
            self._stop(machine)
        else:
            kept.set_result(machine)

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
        """Run a program of the user's: first on what it is compared with, if it is."""
        reference = None
        if job.scenario.compared_with:
            reference = self._run_once(job, machine, job.scenario.compared_with)
            if reference.result.returncode:
                return reference
        outcome = self._run_once(job, machine, job.storage_type)
        return replace(outcome, reference=reference)

    def _run_once(self, job: Job, machine: Machine, storage_type: str) -> Outcome:
        """Run a program in a folder of its own, which has nothing of an earlier run."""
        with temporary_folder(machine) as folder:
            complaint = f"{job.label}: its files can't be copied to the {machine.kind}"
            unpack(machine, folder, partial(pack_program, job.scenario), complaint)
            command = program_command(
                job.scenario.workload, storage_type, machine.python, machine.topology, folder
            )
            looks = Looks(machine, folder)
            outcome = self._run_command(job, machine, command, looks.on_line)
            return replace(outcome, findings=looks.findings)

    def _run_and_cut(self, job: Job, machine: Machine, cuts: PowerCuts) -> Outcome:
        """Run the command until each of the cuts, and then to its end."""
        made: list[PowerCut] = []
        with kept_folder(machine, job.scenario, job.storage_type) as folder:
            place = job.storage_type, machine.python, machine.topology
            command = _limited(job.scenario, cut_command(job.scenario, *place, folder))
            while len(made) < cuts.count:
                self._note(job, f"{job.label}: power cut {len(made) + 1} of {cuts.count}")
                facts = machine.facts()
                ended = run_until_cut(
                    machine, command, TELLS_OF_CRASHES, _limit_s(job.scenario), cuts, len(made)
                )
                if isinstance(ended, Result):
                    machine.prove()
                    return _outcome(ended, machine, facts, made)
                made.append(ended)
                self._note(job, f"{job.label}: boots again after power cut {len(made)}")
                machine.power_on()
            last = workload_command(job.scenario, *place, kept_folder=folder)
            return replace(self._run_command(job, machine, last), power_cuts=tuple(made))

    def _run_command(
        self,
        job: Job,
        machine: Machine,
        command: Sequence[str],
        on_line: OnLine | None = None,
    ) -> Outcome:
        """Run a workload on a machine that is what it says before and after it.

        It was proved as it was opened or had its power again, or after what ran before.

        One that doesn't end is told to say where it is, by SIGABRT, before it is killed: that is
        its own failure. The machine's is that it can't even do this.
        """
        self._note(job, f"{job.label}: runs on a {machine.kind}")
        facts = machine.facts()
        result = machine.run(
            _limited(job.scenario, command),
            env=TELLS_OF_CRASHES,
            timeout=_limit_s(job.scenario),
            on_line=on_line,
        )
        machine.prove()
        return _outcome(result, machine, facts)

    def _open(self, job: Job, topology: Topology) -> Machine:
        self._note(job, f"{topology.name}: {job.kind} is being started")

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
                lambda step: self._note(job, f"{topology.name}: {step}"),
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
        """Uses every slot where machines are emulated."""
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
            # What it ran has an outcome, and that is what counts; but nothing is hidden.
            with self._lock:
                self.leftovers.append(f"{machine.kind} {machine.topology.name}: {error}")

    def _note(self, job: Job, activity: str | None) -> None:
        with self._lock:
            if activity is None:
                self._activities.pop(job.scenario.topology.name, None)
            else:
                self._activities[job.scenario.topology.name] = activity, time.monotonic()


def _limited(scenario: Scenario, command: Sequence[str]) -> list[str]:
    # coreutils' timeout: in the machine, so that the children of the workload are meant too.
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
    """REQUIRES: the machine was proved just now."""
    return Outcome(
        result,
        machine.topology,
        machine.kind,
        machine.accelerator,
        facts,
        machine.facts(),
        tuple(power_cuts),
    )
