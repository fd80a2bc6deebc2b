"""The time of a run on other devices, from what was recorded of it on this computer's memory.

Each phase of the thread that trains takes the longer of two times: the one that it took here, which
has all the work that isn't the memory's, and the one that its accesses take on the device. The rest
of the thread's time stays as it is. Threads that move rows beside it have a time of their own by
the same rule; training can't be done before the busiest of them is.

A device can't make a phase faster than it was here: what part of it was this computer's memory
isn't known. So predictions of memories that are faster than this computer's say what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import embstore as es
from pmemlab.errors import LabError

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
) -> list[es.recording.Caches]:
    """What to simulate in a recording, so that each placement can be predicted from it."""
    caches = [
        es.recording.Caches.of(device) for devices in placements for device in devices if device
    ]
    return list(dict.fromkeys(caches))


def predict_run(
    phases: NDArray[np.void],
    caches: Sequence[es.recording.Caches],
    devices: Sequence[es.devices.Device | None],
    ran: RanIn,
) -> PredictedRun:
    """How long the run takes with its tiers on `devices`, first tier first.

    phases: of `embstore.record_accesses`. caches: that were simulated. Raises LabError where there
    is no device for a tier, or its caches weren't simulated, and InvalidArgumentError where a
    device can't do what was done with a tier.
    """
    tiers = int(phases["tier"].max(initial=-1)) + 1
    if tiers > len(devices):
        raise LabError(f"devices: {len(devices)} for {tiers} tiers; give one a tier, or None")
    elapsed_ns = phases["elapsed_ns"].astype(np.float64)
    takes_ns = np.maximum(elapsed_ns, _device_times_ns(phases, caches, devices))
    trains = phases["thread"] == ran.thread
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


def _device_times_ns(
    phases: NDArray[np.void],
    caches: Sequence[es.recording.Caches],
    devices: Sequence[es.devices.Device | None],
) -> NDArray[np.float64]:
    times_ns = np.zeros(len(phases))
    for tier, device in enumerate(devices):
        of_tier = phases["tier"] == tier
        if device is None or not of_tier.any():
            continue
        before = es.recording.Caches.of(device)
        if before not in caches:
            raise LabError(f"{device.name}: what its caches have was not simulated")
        times_ns[of_tier] = es.phase_times_ns(device, phases[of_tier], cache=caches.index(before))
    return times_ns
