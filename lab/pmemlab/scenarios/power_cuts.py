"""Cuts the power under a command, and chooses the folder of its checkpoints."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pmemlab.errors import LabError, MachineDiedError
from pmemlab.machines.copying import remove_folder
from pmemlab.machines.protocol import Machine, Result
from pmemlab.scenarios.document import PMEM, PowerCuts, Scenario
from pmemlab.workloads.keeping import ResumePoint, parse_resumed, parse_saved_step

__all__ = ["PowerCut", "kept_folder", "run_until_cut"]


@dataclass(frozen=True)
class PowerCut:
    """A power cut, with the state that the ended command had reported.

    after_s: seconds since the command's start.
    resumed: the checkpoint that the command had gone on from; None if it had none, or
        had not reported it yet.
    kept_step: step of the newest checkpoint kept; 0 for none.
    """

    after_s: float
    resumed: ResumePoint | None
    kept_step: int


def run_until_cut(
    machine: Machine,
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    cuts: PowerCuts,
    number: int,
) -> PowerCut | Result:
    """Runs a command until the power is cut as `cuts` says. Returns its Result if it ended before.

    number: of this cut, from 0; each cut has its own random moment.
    After a cut the machine is without power. Raises LabError if the lab breaks.
    """
    drawn = random.Random(f"{cuts.seed} {number}")
    delay_s = drawn.uniform(*cuts.within_s)
    cut = _Cut(machine, cuts.after_line, drawn.randint(*cuts.after_lines), delay_s)
    result = None
    try:
        result = machine.run(argv, env=env, timeout=timeout, on_line=cut.on_line)
    except MachineDiedError:
        if cut.finish() is None:
            raise
    finally:
        performed = cut.finish()
    if performed is not None:
        return performed
    assert result is not None
    return result


class _Cut:
    """Watches a command that has just started. `_lock` guards `_after_s` and `_cancelled`."""

    def __init__(self, machine: Machine, after_line: str, lines: int, delay_s: float) -> None:
        self._machine = machine
        self._after_line = after_line
        self._lines = lines
        self._delay_s = delay_s
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._cancelled = False
        self._after_s: float | None = None
        self._error: LabError | None = None
        self._timer: threading.Timer | None = None
        self._resumed: ResumePoint | None = None
        self._kept = 0
        if not after_line:
            self._arm_timer()

    def on_line(self, line: str) -> None:
        """Takes a line of the command's output as it comes."""
        self._resumed = parse_resumed(line) or self._resumed
        self._kept = parse_saved_step(line) or self._kept
        if self._after_line and self._after_line in line:
            self._lines -= 1
            if self._lines == 0:
                self._arm_timer()

    def finish(self) -> PowerCut | None:
        """Prevents a later cut. Returns the cut, if it was made. Raises LabError if it failed."""
        with self._lock:
            self._cancelled = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._error is not None:
            raise self._error
        if self._after_s is None:
            return None
        return PowerCut(round(self._after_s, 3), self._resumed, self._kept)

    def _arm_timer(self) -> None:
        self._timer = threading.Timer(self._delay_s, self._cut_power)
        self._timer.start()

    def _cut_power(self) -> None:
        with self._lock:
            if self._cancelled:
                return
            self._after_s = time.monotonic() - self._started
        try:
            self._machine.power_cut()
        except LabError as error:
            self._error = error


@contextmanager
def kept_folder(machine: Machine, scenario: Scenario, storage_type: str) -> Iterator[str]:
    """Yields the path of a folder on a medium that outlives power cuts; the folder does not exist
    yet.

    REQUIRES: the scenario has `power_cuts`. Raises LabError.
    """
    assert scenario.power_cuts is not None
    topology = machine.topology
    disk = topology.ssd.path if topology.ssd else None
    medium = topology.pmem.path if scenario.power_cuts.kept_on == PMEM else disk
    folder = f"{medium}/kept-{scenario.name}-{storage_type}"
    remove_folder(machine, folder)  # a machine of the lab may have one of an earlier run
    yield folder
    remove_folder(machine, folder)
