"""Records the accesses to the rows of variables, and computes their times on devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embstore import _core
from embstore.devices import Device
from embstore.devices.device_table import OUTCOMES, check_device, phase_times
from embstore.errors import (
    ClosedError,
    EmbStoreError,
    InvalidArgumentError,
    StoreFullError,
    UnsupportedError,
)
from embstore.table import checks
from embstore.table.shard import LocalShard
from embstore.table.variable_arguments import check_variable_list
from embstore.variable import EmbeddingVariable

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AccessRecording", "Caches", "phase_times_ns", "record_accesses"]

MAX_CACHES = 16
_COLUMNS = {
    "variable": np.int32,
    "tier": np.int32,
    "access": np.int32,
    "threads": np.int32,
    "accesses": np.uint64,
    "bytes": np.uint64,
    "rounds": np.uint64,
    "elapsed_ns": np.uint64,
    "thread": np.int64,
    "start_ns": np.int64,
}


@dataclass(frozen=True)
class Caches:
    """Sizes of the simulated caches between the engine and a device.

    cpu_bytes: size of the CPU's last-level cache, which has 16 ways; 0: no cache.
    memory_bytes: size of a memory in front of the device, which is a direct-mapped write-back
        cache; 0: no such memory.

    Both are in bytes, or in K, M, G and T, such as "32M". Lines have 64 bytes. A size is rounded
    down to whole sets, and above 4,096 sets to a multiple of 4,096: of 4 MiB for the CPU's cache,
    of 256 KiB for the memory.
    """

    cpu_bytes: int | str
    memory_bytes: int | str = 0

    def __post_init__(self) -> None:
        for name in ("cpu_bytes", "memory_bytes"):
            size = checks.size(name, getattr(self, name), at_least=0)
            object.__setattr__(self, name, size)

    @classmethod
    def of(cls, device: Device) -> Caches:
        """Returns the caches in front of the device."""
        memory_bytes = 0 if device.cache is None else device.cache.size_bytes
        return cls(device.cpu_cache_bytes, memory_bytes)


class AccessRecording:
    """A recording made by `record_accesses`: a context manager that records during its block."""

    def __init__(
        self,
        variables: EmbeddingVariable | Iterable[EmbeddingVariable],
        caches: Sequence[Caches | Device],
        max_phases: int,
    ) -> None:
        self._variables = (
            [variables]
            if isinstance(variables, EmbeddingVariable)
            else check_variable_list(variables)
        )
        if not isinstance(caches, Sequence):
            raise InvalidArgumentError(
                f"caches must be a list of Caches and devices, got {type(caches).__name__}"
            )
        if len(caches) > MAX_CACHES:
            raise InvalidArgumentError(
                f"caches: at most {MAX_CACHES} can be simulated at once, got {len(caches)}"
            )
        self._caches = [
            cache if isinstance(cache, Caches) else Caches.of(check_device(f"caches[{i}]", cache))
            for i, cache in enumerate(caches)
        ]
        self._max_phases = checks.integer("max_phases", max_phases, at_least=1, unit="phases")
        self._recording: _core.Recording | None = None
        self._phases: NDArray[Any] | None = None

    @property
    def phases(self) -> NDArray[Any]:
        """The phases so far, ordered by their beginnings: a structured array.

        A phase has the accesses of one kind that one call made to the rows of one tier. variable:
        the index of the variable. tier: the tier's index, the same for all partitions. access: an
        `embstore.Access`. threads, accesses, bytes and elapsed_ns: as in `stats()`. rounds: the
        number of rounds, one after the other, each with a part of the accesses in flight: 1 in
        memory, one for 128 reads of files by io_uring, one for each read by pread. thread: the
        system's number of the thread. start_ns: since the recording began.
        Four fields of shape (caches,), float64, count for each simulated cache how many of the
        accesses were: hits, which cost nothing; dirtied, which found their bytes in the CPU's
        cache, but unchanged, so that nothing is fetched, but a write-back follows; clean_misses and
        dirty_misses, which found another line in their place in the memory in front of the device,
        unchanged or changed. All other accesses missed only the CPU's cache.

        Raises StoreFullError if more phases ended than could be kept.
        """
        if self._phases is not None:
            return self._phases
        columns = self._entered().phases(len(self._caches))
        if columns["lost"]:
            raise StoreFullError(
                f"{columns['lost']} phases weren't recorded, since {self._max_phases} were kept "
                "already; raise max_phases, or record fewer batches"
            )
        shape = (len(self._caches),)
        phases = np.empty(
            len(columns["start_ns"]),
            np.dtype(
                [
                    *_COLUMNS.items(),
                    *[(name, np.float64, shape) for name in OUTCOMES],
                ]
            ),
        )
        for name in phases.dtype.names or ():
            phases[name] = columns[name]
        return phases[np.argsort(phases["start_ns"], kind="stable")]

    def elapsed_ns(self) -> int:
        """Returns the nanoseconds since the recording began, on the clock of `start_ns`."""
        return self._entered().elapsed_ns()

    def _entered(self) -> _core.Recording:
        if self._recording is None:
            raise InvalidArgumentError("nothing was recorded: enter the `with` block first")
        return self._recording

    def __enter__(self) -> Self:
        if self._recording is not None:
            raise InvalidArgumentError("a recording can be made only once; make another")
        shards = [
            (number, shard)
            for number, variable in enumerate(self._variables)
            for shard in variable.internals.shards
        ]
        for number, shard in shards:
            if not isinstance(shard, LocalShard):
                raise UnsupportedError(
                    f"{self._variables[number].name} has shards in other processes, whose accesses "
                    "can't be recorded from here"
                )
        self._recording = _core.Recording(
            [(int(caches.cpu_bytes), int(caches.memory_bytes)) for caches in self._caches],
            self._max_phases,
        )
        try:
            for number, shard in shards:
                assert isinstance(shard, LocalShard)
                shard.start_recording(self._recording, number)
        except EmbStoreError:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._recording is not None
        self._recording.stop()
        for variable in self._variables:
            for shard in variable.internals.shards:
                try:
                    if isinstance(shard, LocalShard):
                        shard.stop_recording(self._recording)
                except ClosedError:
                    pass  # closed during the block; its phases until then are recorded


def record_accesses(
    variables: EmbeddingVariable | Iterable[EmbeddingVariable],
    *,
    caches: Sequence[Caches | Device] = (),
    max_phases: int = 1 << 20,
) -> AccessRecording:
    """Records the accesses to the rows of variables while a `with` block runs.

        with es.record_accesses(variable, caches=[device]) as recorded:
            train(variable)
        times_ns = es.phase_times_ns(device, recorded.phases, cache=0)

    variables: one, or several; the work of their eviction and compaction threads is recorded too.
    caches: `Caches` to simulate, or devices, which stand for their caches; each is simulated as if
        all variables were on one computer with it. The simulation looks at the addresses of one of
        64 lines of the touched rows, so its results are estimates. Caches are empty when the block
        begins: run a few batches before those that count.
    max_phases: greatest number of phases that are kept, some 60 bytes each and 32 more per cache.

    Entering the block raises UnsupportedError for a variable whose shards lie in other processes.
    """
    return AccessRecording(variables, caches, max_phases)


def phase_times_ns(
    device: Device, phases: NDArray[Any], cache: int | None = None
) -> NDArray[np.float64]:
    """Returns how long each phase's accesses take on a device, as under pacing; ns, (phases,).

    phases: from `record_accesses`, all in memory or all in files. cache: the index of the recorded
    cache that is the device's; None: no cache, every line comes from the device.

    A miss of the CPU's cache takes `Device.time_ns`, or the time of the memory in front of the
    device; a hit takes nothing; an access that only makes cached bytes dirty takes the difference
    to a load. The accesses of each round take at least `Device.alone_ns`: n requests of which c are
    in flight take the latency of one for n up to c, and n / c times that beyond (Little's law). A
    phase with less than one miss takes that part of it.

    The engine's own time, elapsed_ns, passes meanwhile: a phase takes the longer of both. Raises
    InvalidArgumentError if a time isn't finite and above 0, or `cache` wasn't recorded.
    """
    check_device("device", device)
    caches = phases["hits"].shape[1]
    if cache is not None:
        checks.integer("cache", cache, at_least=0, at_most=caches - 1)
    outcomes = {
        name: np.zeros(len(phases)) if cache is None else phases[name][:, cache]
        for name in OUTCOMES
    }
    return phase_times(device, phases, outcomes)
