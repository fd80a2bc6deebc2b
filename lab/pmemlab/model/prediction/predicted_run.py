"""Predicts a run's time on other devices from a recording on this computer's memory.

A phase is one call's work on one tier. Its time on a device is:

- If the device that the tier lay on here is known: the recorded time, minus the time of its
  accesses on that device, plus their time on the new device. The difference is work outside of the
  memory. It isn't assumed to overlap with memory waits, beyond the devices' fetches in flight.
- If that device is unknown: the longer of the recorded time and the time of its accesses on the new
  device. Pacing follows the same rule and can't make anything faster, so memories faster than this
  computer's are predicted to be as fast as it.
- On a GPU: only the time of its accesses and launches there (see `gpu_tier`).

The rest of the training thread's time stays unchanged. The times of threads that move rows in the
background follow the same rules; training can't end before the busiest of them.
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
    """The recorded run. seconds: how long it took. thread: the native id of the training thread
    (`threading.get_native_id()`).
    """

    seconds: float
    thread: int


@dataclass(frozen=True)
class PredictedRun:
    """A predicted run. devices: names, one per tier; None: as on this computer. seconds: of the
    run. tier_seconds: the training thread's time at each tier. rest_seconds: its other work.
    behind_seconds: how long it would have to wait at the end for a busier thread.
    """

    devices: tuple[str | None, ...]
    seconds: float
    tier_seconds: tuple[float, ...]
    rest_seconds: float
    behind_seconds: float


def caches_before(
    placements: Sequence[Sequence[es.devices.Device | None]],
) -> list[es.Caches]:
    """Returns the caches to simulate in a recording, so that each placement can be predicted from
    it.
    """
    caches = [es.Caches.of(device) for devices in placements for device in devices if device]
    return list(dict.fromkeys(caches))


def predict_run(
    phases: NDArray[np.void],
    caches: Sequence[es.Caches],
    devices: Sequence[es.devices.Device | None],
    ran: RanIn,
    here: Sequence[es.devices.Device | None] = (),
) -> PredictedRun:
    """Predicts the run's time with its tiers on `devices`, first tier first.

    phases: from `embstore.record_accesses`; for a GPU, of a run whose first tier was in DRAM.
    caches: those that the recording simulated. here: the devices that the tiers lay on in the
    recording, by files of `pmemlab model measure`; None, or a shorter sequence: unknown. Raises
    LabError if a tier has no device, its caches weren't simulated, or nothing was recorded of the
    training thread, and InvalidArgumentError if a device can't do the accesses of a tier.
    """
    tiers = int(phases["tier"].max(initial=-1)) + 1
    if tiers > len(devices):
        raise LabError(f"devices: {len(devices)} for {tiers} tiers; give one a tier, or None")
    trains = phases["thread"] == ran.thread
    _check_recorded(ran, phases["thread"], trains)
    elapsed_ns = phases["elapsed_ns"].astype(np.float64)
    predicted_ns = _predicted_ns(phases, caches, devices, here, ran.thread)
    tier_seconds = tuple(
        float(predicted_ns[trains & (phases["tier"] == tier)].sum()) / 1e9
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
            float(predicted_ns[phases["thread"] == thread].sum()) / 1e9
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


def _check_recorded(ran: RanIn, threads: NDArray[Any], trains: NDArray[np.bool_]) -> None:
    if not math.isfinite(ran.seconds):
        raise LabError(f"ran.seconds: must be finite, not {ran.seconds}")
    if threads.size and not trains.any():
        recorded = ", ".join(map(str, np.unique(threads)))
        raise LabError(
            f"ran.thread: thread {ran.thread} recorded nothing; give the one that trained, by "
            f"threading.get_native_id(), of those recorded: {recorded}"
        )


def _predicted_ns(
    phases: NDArray[np.void],
    caches: Sequence[es.Caches],
    devices: Sequence[es.devices.Device | None],
    here: Sequence[es.devices.Device | None],
    training_thread: int,
) -> NDArray[np.float64]:
    predicted_ns = phases["elapsed_ns"].astype(np.float64)
    for tier, device in enumerate(devices):
        of_tier = phases["tier"] == tier
        if device is None or not of_tier.any():
            continue
        if isinstance(device, GpuDevice):
            cache = _number_of(caches, device)
            predicted_ns[of_tier] = gpu_times_ns(phases[of_tier], cache, device, training_thread)
            continue
        elapsed_ns = predicted_ns[of_tier]
        device_ns = _device_times_ns(phases[of_tier], caches, device)
        was_on = here[tier] if tier < len(here) else None
        if was_on is None:
            predicted_ns[of_tier] = np.maximum(elapsed_ns, device_ns)
        else:
            here_ns = _device_times_ns(phases[of_tier], caches, was_on)
            predicted_ns[of_tier] = np.maximum(0.0, elapsed_ns - here_ns) + device_ns
    return predicted_ns


def _device_times_ns(
    phases: NDArray[np.void], caches: Sequence[es.Caches], device: es.devices.Device
) -> NDArray[np.float64]:
    return es.phase_times_ns(device, phases, cache=_number_of(caches, device))


def _number_of(caches: Sequence[es.Caches], device: es.devices.Device) -> int:
    before = es.Caches.of(device)
    if before not in caches:
        raise LabError(
            f"{device.name}: its caches were not simulated in the recording; give the device to "
            "caches_before, and record again"
        )
    return caches.index(before)
