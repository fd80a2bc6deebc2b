"""Cuts the power under a command, and boots the machine for the next one."""

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
from pmemlab.workloads.keeping import Resumed, kept_step, resumed_from

__all__ = ["PowerCut", "kept_folder", "run_until_cut"]


@dataclass(frozen=True)
class PowerCut:
    """One that was made, and what the command that it ended had said by then.

    after_s: seconds since the command's start.
    resumed: the checkpoint that it had gone on from; None for none, or where it hadn't come so far.
    kept_step: of the newest checkpoint that it had kept; 0 for none.
    """

    after_s: float
    resumed: Resumed | None
    kept_step: int


def run_until_cut(
    machine: Machine,
    argv: Sequence[str],
    env: Mapping[str, str],
    timeout: float,
    cuts: PowerCuts,
    number: int,
) -> PowerCut | Result:
    """Run a command until the power is cut as `cuts` says; a Result where it ended before.

    number: of this cut, from 0; each has a moment of its own.
    After a cut the machine is without power. Raises LabError where the lab breaks.
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
        made = cut.finish()
    if made is not None:
        return made
    assert result is not None
    return result


class _Cut:
    """Watches a command that has just been started. `_lock` guards `_after_s` and `_cancelled`."""

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
        self._resumed: Resumed | None = None
        self._kept = 0
        if not after_line:
            self._arm()

    def on_line(self, line: str) -> None:
        """Of the command, as it comes."""
        self._resumed = resumed_from(line) or self._resumed
        self._kept = kept_step(line) or self._kept
        if self._after_line and self._after_line in line:
            self._lines -= 1
            if self._lines == 0:
                self._arm()

    def finish(self) -> PowerCut | None:
        """The cut, if it was made; it is made no more. Raises LabError where it failed."""
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

    def _arm(self) -> None:
        self._timer = threading.Timer(self._delay_s, self._make)
        self._timer.start()

    def _make(self) -> None:
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
    """Path of a folder that is not there at first, on a medium that outlives power cuts.

    REQUIRES: the scenario has `power_cuts`. Raises LabError.
    """
    assert scenario.power_cuts is not None
    topology = machine.topology
    disk = topology.ssd.path if topology.ssd else None
    medium = topology.pmem.path if scenario.power_cuts.kept_on == PMEM else disk
    folder = f"{medium}/kept-{scenario.name}-{storage_type}"
    remove_folder(machine, folder)  # a machine of the running lab may have one of an earlier run
    yield folder
    remove_folder(machine, folder)
