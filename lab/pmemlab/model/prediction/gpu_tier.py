"""The time of a first tier on a GPU, from a recording of a run with that tier in DRAM.

- The GPU itself looks up and updates rows in the tier: their bytes divided by its memory's
  bandwidth. These rows don't cross the bus.
- A row that is stored in the tier came over the bus, and a whole row that is read to be demoted
  leaves over the bus; so these phases also take the bus's time.
- A call takes no less than the launches of its kernels.

The CPU's time for the same phases in the recorded run doesn't count, since the CPU has no part in
them on a GPU.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

import embstore as es
from embstore.devices import Access
from pmemlab.model.devices.gpu_device import GpuDevice

__all__ = ["KERNELS", "gpu_times_ns"]

Floats = NDArray[np.float64]

_MIB = 1 << 20

KERNELS: Final = {Access.LOAD: 6, Access.UPDATE: 21, Access.STORE: 3}
"""Kernels that one call launches, by engine/core/gpu/operations; its device_steps_test counts them.

A look-up: 4 find its ids in the mirror, 1 gathers rows, 1 inserts promoted rows. An update: 6
deduplicate the ids, 4 find them, 7 sort and sum the gradients (3 more for each further 6 bits of
their number), 1 checks that they are finite, 1 copies the host's decisions, 1 counts and 1 updates.
Promoted rows: 1 for the mirror, 2 for the stored rows.
"""


def gpu_times_ns(
    phases: NDArray[np.void], cache: int, device: GpuDevice, training_thread: int
) -> Floats:
    """Return nanoseconds of each phase, (phases,).

    phases: of one tier. cache: the index of the device's cache in the recording. training_thread:
    its native id.
    """
    times_ns = _with_launches(es.phase_times_ns(device, phases, cache=cache), phases, device)
    for access, crosses in (
        (Access.STORE, phases["access"] == Access.STORE),
        (Access.LOAD, _is_demotion(phases, training_thread)),
    ):
        byte_ns = device.bus.time_ns(access, _MIB, threads=1) / _MIB
        times_ns[crosses] += phases["bytes"][crosses] * byte_ns
    return times_ns


def _with_launches(times_ns: Floats, phases: NDArray[np.void], device: GpuDevice) -> Floats:
    """Raises the times of calls that take less than their launches. All phases of one call, on rows
    and on the data beside them, have the same start.
    """
    call_keys = np.stack(
        [phases[name].astype(np.int64) for name in ("access", "thread", "start_ns")]
    )
    calls, of_call = np.unique(call_keys, axis=1, return_inverse=True)
    together_ns = np.bincount(of_call.ravel(), weights=times_ns)
    launched_ns = (
        np.array([KERNELS.get(Access(access), 1) for access in calls[0]]) * device.launch_ns
    )
    return np.asarray(times_ns * np.maximum(1.0, launched_ns / together_ns)[of_call.ravel()])


def _is_demotion(phases: NDArray[np.void], training_thread: int) -> NDArray[np.bool_]:
    """Returns whether each phase reads rows that are demoted.

    A demotion reads whole rows, a look-up only the weights. Without optimizer slots the two are
    equal, and the training thread's reads are then taken as look-ups.
    """
    row_bytes = phases["bytes"] / phases["accesses"]
    is_load = phases["access"] == Access.LOAD
    whole_row_bytes = row_bytes[~is_load].max(initial=0.0)
    looked_up = row_bytes[is_load & (phases["thread"] == training_thread)].min(
        initial=whole_row_bytes
    )
    by_others = phases["thread"] != training_thread
    return np.asarray(
        is_load
        & (whole_row_bytes > 0)
        & (row_bytes >= whole_row_bytes)
        & (by_others | (whole_row_bytes > looked_up))
    )
