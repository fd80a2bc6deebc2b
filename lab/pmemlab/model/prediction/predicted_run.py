"""The time of a run on other devices, from what was recorded of it on this computer's memory.

What a phase, which is one call's work on one tier, takes on a device:

- Where the device that the tier was on here is described, the time that its accesses took on that
  one is taken out of what the phase took, and the time that they take on the other put in. What
  remains is the work that isn't the memory's. It isn't credited with going on while the memory is
  waited for, beyond what the devices' fetches in flight say.
- Where it isn't, the longer of what it took here and what its accesses take on the device: the
  rule of pacing, which can't make anything faster. Memories that are faster than this computer's
  are then predicted to be as fast.
- On a GPU, only what its accesses and launches take there: see `gpu_tier`.

The rest of the training thread's time stays as it is. Threads that move rows beside it have a time
of their own by the same rule; training can't be done before the busiest of them is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.errors import LabError
from pmemlab.model.devices.gpu_device import GpuDevice
from pmemlab.model.prediction.gpu_tier import gpu_times_ns

__all__ = ["PredictedRun", "RanIn", "caches_before", "predict_run"]


@dataclass(frozen=True)
class RanIn:
    """seconds: how long the recorded run took. thread: the one that trained, as the system numbers
    it (`threading.get_native_id()`)."""

    seconds: float
    thread: int


@dataclass(frozen=True)
class PredictedRun:
    """devices: names, one a tier; None: as on this computer. seconds: of the run. tier_seconds: of
    the training thread at each tier. rest_seconds: what else it did. behind_seconds: that it would
    have to wait at the end, since another thread is busier."""

    devices: tuple[str | None, ...]
    seconds: float
    tier_seconds: tuple[float, ...]
    rest_seconds: float
    behind_seconds: float


def caches_before(
    placements: Sequence[Sequence[es.devices.Device | None]],
) -> list[es.Caches]:
    """What to simulate in a recording, so that each placement can be predicted from it."""
    caches = [es.Caches.of(device) for devices in placements for device in devices if device]
    return list(dict.fromkeys(caches))


def predict_run(
    phases: NDArray[np.void],
    caches: Sequence[es.Caches],
    devices: Sequence[es.devices.Device | None],
    ran: RanIn,
    here: Sequence[es.devices.Device | None] = (),
) -> PredictedRun:
    """How long the run takes with its tiers on `devices`, first tier first.

    phases: of `embstore.record_accesses`; where a device is a GPU, of a run whose first tier was
    in DRAM. caches: that were simulated. here: what the tiers were on
    when it was recorded, by files of `pmemlab model measure`; None, or fewer: isn't known. Raises
    LabError where there is no device for a tier, its caches weren't simulated, or nothing was
    recorded of the thread that trained, and InvalidArgumentError where a device can't do what was
    done with a tier.
    """
    tiers = int(phases["tier"].max(initial=-1)) + 1
    if tiers > len(devices):
        raise LabError(f"devices: {len(devices)} for {tiers} tiers; give one a tier, or None")
    trains = phases["thread"] == ran.thread
    _check_ran(ran, phases["thread"], trains)
    elapsed_ns = phases["elapsed_ns"].astype(np.float64)
    takes_ns = _takes_ns(phases, caches, devices, here, ran.thread)
    tier_seconds = tuple(
        float(takes_ns[trains & (phases["tier"] == tier)].sum()) / 1e9
        for tier in range(len(devices))
    )
    rest_seconds = ran.seconds - float(elapsed_ns[trains].sum()) / 1e9
    if rest_seconds < 0:
        raise LabError(
            f"the run took {ran.seconds:.3f} s, less than its phases: they are of another"
        )
    own_seconds = rest_seconds + sum(tier_seconds)
    busiest_seconds = max(
        (
            float(takes_ns[phases["thread"] == thread].sum()) / 1e9
            for thread in np.unique(phases["thread"][~trains])
        ),
        default=0.0,
    )
    return PredictedRun(
        devices=tuple(None if device is None else device.name for device in devices),
        seconds=max(own_seconds, busiest_seconds),
        tier_seconds=tier_seconds,
        rest_seconds=rest_seconds,
        behind_seconds=max(0.0, busiest_seconds - own_seconds),
    )


def _check_ran(ran: RanIn, threads: NDArray[Any], trains: NDArray[np.bool_]) -> None:
    if not math.isfinite(ran.seconds):
        raise LabError(f"ran.seconds: must be finite, not {ran.seconds}")
    if threads.size and not trains.any():
        recorded = ", ".join(map(str, np.unique(threads)))
        raise LabError(
            f"ran.thread: thread {ran.thread} recorded nothing; give the one that trained, by "
            f"threading.get_native_id(), of those recorded: {recorded}"
        )


def _takes_ns(
    phases: NDArray[np.void],
    caches: Sequence[es.Caches],
    devices: Sequence[es.devices.Device | None],
    here: Sequence[es.devices.Device | None],
    trained_by: int,
) -> NDArray[np.float64]:
    takes_ns = phases["elapsed_ns"].astype(np.float64)
    for tier, device in enumerate(devices):
        of_tier = phases["tier"] == tier
        if device is None or not of_tier.any():
            continue
        if isinstance(device, GpuDevice):
            cache = _number_of(caches, device)
            takes_ns[of_tier] = gpu_times_ns(phases[of_tier], cache, device, trained_by)
            continue
        elapsed_ns = takes_ns[of_tier]
        device_ns = _device_times_ns(phases[of_tier], caches, device)
        was_on = here[tier] if tier < len(here) else None
        if was_on is None:
            takes_ns[of_tier] = np.maximum(elapsed_ns, device_ns)
        else:
            here_ns = _device_times_ns(phases[of_tier], caches, was_on)
            takes_ns[of_tier] = np.maximum(0.0, elapsed_ns - here_ns) + device_ns
    return takes_ns


def _device_times_ns(
    phases: NDArray[np.void], caches: Sequence[es.Caches], device: es.devices.Device
) -> NDArray[np.float64]:
    return es.phase_times_ns(device, phases, cache=_number_of(caches, device))


def _number_of(caches: Sequence[es.Caches], device: es.devices.Device) -> int:
    before = es.Caches.of(device)
    if before not in caches:
        raise LabError(f"{device.name}: what its caches have was not simulated")
    return caches.index(before)
