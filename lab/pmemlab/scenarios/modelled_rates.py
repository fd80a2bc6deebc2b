"""Models how fast a scenario would run on the devices that its machine's emulated media stand for.

The workload runs on this computer, once per storage type, with tables so large that devices matter
(`Workload.rated`), and its rate on the devices is predicted from its accesses to rows: see
`pmemlab.model.prediction`. The accesses don't depend on the memory that the rows lie in, so one run
in DRAM serves every storage type with all rows in DRAM or in persistent memory. The rate with all
rows in DRAM is predicted from that run, too. An HBM tier lies in DRAM during the run.

A step also takes computing time of this computer, which varies with its other load. So all runs of
one workload get the least of their computing times: rates differ by their tiers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from embstore.options import TIER_KINDS, StorageType, TierKind
from pmemlab.errors import LabError
from pmemlab.machines.opening import open_machine
from pmemlab.scenarios.command import PMEM_KINDS, SSD_KINDS, storage_command
from pmemlab.scenarios.document import Scenario, Storage, Workload
from pmemlab.topology import StandsFor, Topology

__all__ = ["ModelledRate", "RateModel", "devices_of"]

_TIMEOUT_S = 120.0
# Arguments for work after the timed steps, which a run of the timed steps does not need.
_AFTER_THE_TIMED = ("cold-lookups", "held-out-rows", "keep-every")
_MIN_PMEM_BYTES = 1 << 30  # for tables of `rated`; sparse
# Storage types with the same accesses to rows.
_RUNS_AS = {
    StorageType.PMEM_LIBPMEM: StorageType.DRAM,
    StorageType.PMEM_MEMKIND: StorageType.DRAM,
    StorageType.SSDHASH: StorageType.DRAM_SSDHASH,
    StorageType.LEVELDB: StorageType.DRAM_LEVELDB,
}


@dataclass(frozen=True)
class ModelledRate:
    """A modelled rate. devices: of each tier, first tier first. dram_ratio: to the rate of the same
    workload with all rows in the DRAM that the machine stands for.
    """

    devices: tuple[str, ...]
    samples_per_s: float
    dram_ratio: float


class _Run(NamedTuple):
    """A run on this computer, which predicts rates for any devices.

    arguments: JSON. sizes: bytes of each tier, first tier first; () for no limit.
    """

    workload: str
    arguments: str
    storage_type: str
    sizes: tuple[int, ...]


class _Step(NamedTuple):
    """A predicted step: milliseconds at the tiers, of computing, and of the thread that moves rows
    in the background, if that is busier."""

    samples: float
    tiers_ms: float
    compute_ms: float
    moves_ms: float

    def samples_per_s(self, compute_ms: float) -> float:
        return 1e3 * self.samples / max(self.tiers_ms + compute_ms, self.moves_ms)


_Steps = Mapping[tuple[str, ...], _Step]
"""Devices of the tiers -> predicted step."""


class RateModel:
    """Models rates from runs on this computer, each workload once."""

    def __init__(self, selected: Sequence[tuple[Scenario, str]]) -> None:
        """selected: all scenarios whose rate may be requested. Runs nothing yet."""
        self._placements: dict[_Run, list[tuple[str, ...]]] = {}
        self._scenarios: dict[_Run, Scenario] = {}
        self._steps: dict[_Run, _Steps | LabError] = {}
        for scenario, storage_type in selected:
            for run, devices in _runs(scenario, storage_type):
                self._scenarios.setdefault(run, scenario)
                known = self._placements.setdefault(run, [])
                if devices not in known:
                    known.append(devices)

    def rate(
        self, scenario: Scenario, storage_type: str, on_step: Callable[[str], object]
    ) -> ModelledRate | None:
        """Returns the modelled rate; None if a tier has no device, or the workload isn't rated.

        on_step: gets the current run, which takes seconds; the runs to compare with come first.
        Raises LabError if a necessary run fails.
        """
        runs = _runs(scenario, storage_type)
        if not runs:
            return None
        rate, dram_rate = (self._rate_of(run, devices, on_step) for run, devices in runs)
        return ModelledRate(runs[0][1], rate, rate / dram_rate)

    def _rate_of(
        self, run: _Run, devices: tuple[str, ...], on_step: Callable[[str], object]
    ) -> float:
        same_work = [each for each in self._scenarios if each[:2] == run[:2]]
        steps = {each: self._steps_of(each, on_step) for each in same_work}
        own = steps[run]
        if isinstance(own, LabError):
            raise own
        compute_ms = min(
            step.compute_ms
            for each in steps.values()
            if not isinstance(each, LabError)
            for step in each.values()
        )
        return own[devices].samples_per_s(compute_ms)

    def _steps_of(self, run: _Run, on_step: Callable[[str], object]) -> _Steps | LabError:
        if run not in self._steps:
            on_step(f"modelling rates: {run.workload} on {run.storage_type}")
            try:
                self._steps[run] = _run_on_this_computer(
                    run, self._scenarios[run], self._placements[run]
                )
            except LabError as error:
                self._steps[run] = error
        return self._steps[run]


def devices_of(storage_type: str, stands_for: StandsFor) -> tuple[str, ...] | None:
    """Returns the device of each tier; None if a tier has none."""
    devices = []
    for kind in TIER_KINDS[StorageType[storage_type]]:
        if kind in PMEM_KINDS:
            devices.append(stands_for.pmem)
        elif kind in SSD_KINDS:
            devices.append(stands_for.ssd)
        elif kind is TierKind.HBM:
            devices.append(stands_for.gpu)
        else:
            devices.append(stands_for.memory or stands_for.dram)
    return tuple(devices) if all(devices) else None


def _runs(scenario: Scenario, storage_type: str) -> list[tuple[_Run, tuple[str, ...]]]:
    """Returns the scenario's run and the run in DRAM, each with the devices of its tiers."""
    stands_for, rated = scenario.topology.stands_for, scenario.workload.rated
    devices = devices_of(storage_type, stands_for)
    if devices is None or rated is None or not stands_for.dram:
        return []
    name, arguments = scenario.workload.name, {**scenario.workload.arguments, **rated.arguments}
    timed = {name: value for name, value in arguments.items() if name not in _AFTER_THE_TIMED}
    arguments_json = json.dumps(timed, sort_keys=True)
    sizes = tuple(size * rated.rows_times for size in scenario.storage.size_bytes)
    own = StorageType[storage_type]
    runs_as = _RUNS_AS.get(own, own)
    in_dram = _Run(name, arguments_json, StorageType.DRAM.name, ())
    run = (
        in_dram if runs_as is StorageType.DRAM else _Run(name, arguments_json, runs_as.name, sizes)
    )
    return [(run, devices), (in_dram, (stands_for.dram,))]


def _run_on_this_computer(
    run: _Run, scenario: Scenario, placements: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], _Step]:
    workload = Workload(run.workload, json.loads(run.arguments))
    here = replace(scenario, workload=workload, storage=Storage(None, run.sizes))
    with open_machine(_with_min_pmem(scenario.topology), "process") as machine:
        argv = storage_command(here, run.storage_type, machine.python, machine.topology)
        argv += ["--predict", *(",".join(devices) for devices in placements), "--rates-only"]
        if TierKind.SSDHASH in TIER_KINDS[StorageType[run.storage_type]]:
            argv.append("--direct-io")  # reads from the page cache would cost nothing
        done = machine.run([*argv, *workload.argv()], timeout=_TIMEOUT_S)
    if done.returncode:
        last = (done.said.splitlines() or ["it wrote nothing"])[-1]
        raise LabError(f"{run.workload} on {run.storage_type}, on this computer: {last}")
    document: Mapping[str, Any] = json.loads(done.stdout)
    return {
        tuple(prediction["devices"]): _step(prediction)
        for prediction in document["run"]["predictions"]
    }


def _step(prediction: Mapping[str, Any]) -> _Step:
    """Returns the step of a prediction, from its `samples_per_s` and `step_ms`."""
    parts: Mapping[str, float] = prediction["step_ms"]
    whole_ms = sum(parts.values())
    compute_ms = parts["compute"]
    waits_ms = parts.get("moves", 0.0)
    return _Step(
        samples=prediction["samples_per_s"] * whole_ms / 1e3,
        tiers_ms=whole_ms - waits_ms - compute_ms,
        compute_ms=compute_ms,
        moves_ms=whole_ms if waits_ms else 0.0,
    )


def _with_min_pmem(topology: Topology) -> Topology:
    pmem = topology.pmem
    if not pmem.size_bytes:
        return topology
    return replace(topology, pmem=replace(pmem, size_bytes=max(pmem.size_bytes, _MIN_PMEM_BYTES)))
