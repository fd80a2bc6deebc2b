# The native core. Arrays are C-contiguous; nothing is converted silently.
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[np.int64]
_Rows = NDArray[np.float32]
_Occurrences = NDArray[np.uint32]

# name, bytes of the CPU's cache, bytes of the memory that caches the device, sizes, times in ns,
# times of one access alone
DeviceTuple: TypeAlias = tuple[str, int, int, list[int], NDArray[np.float64], NDArray[np.float64]]

def fork_generation() -> int:
    """Returns a number that differs between a process and every process forked from it."""

class PathLock:
    """A lock on the file lock_path that gives one owner in one process the right to use `path`. The
    file is made and stays. A forked child doesn't inherit the lock.

    Raises InUseError if another owner has the lock, and StorageError.
    """

    def __init__(self, lock_path: str, path: str) -> None: ...
    def release(self) -> None:
        """Releases the lock; a second call does nothing."""

def pay_pacing_debt() -> None:
    """Waits for the time that this thread's accesses would have taken longer on their devices."""

class Recording:
    """A recording of tables' phases. See engine/pacing/recording.h."""

    def __init__(self, caches: list[tuple[int, int]], max_phases: int) -> None: ...
    def elapsed_ns(self) -> int: ...
    def stop(self) -> None: ...
    def phases(self, caches: int) -> dict[str, Any]: ...

def phase_times_ns(
    device: DeviceTuple,
    access: NDArray[np.int32],
    threads: NDArray[np.int32],
    accesses: NDArray[np.uint64],
    bytes: NDArray[np.uint64],
    rounds: NDArray[np.uint64],
    outcomes: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Returns the times of phases under pacing. See Device::phase_ns in engine/pacing/device.h."""

def set_num_threads(count: int) -> None: ...
def get_num_threads() -> int: ...
def first_not_finite(values: _Rows) -> int | None:
    """Returns the flat index of the first value that is NaN or infinite, or None."""

def keys_by_partition(keys: _Ids, partition_count: int) -> tuple[NDArray[np.int64], list[int]]:
    """Returns positions in `keys`, grouped by partition, and where each partition's positions
    begin, and the end. See engine/core/row/key_partition.h and keys_by_partition.h.
    """

class UniqueIds:
    """The distinct keys of a batch. See engine/core/row/unique_ids.h."""

    def __init__(self, ids: _Ids, partition_count: int = 1) -> None: ...
    def keys(self) -> NDArray[np.int64]: ...
    def begins(self) -> list[int]: ...
    def occurrences(self) -> NDArray[np.uint32]: ...
    def spread(self, rows: _Rows, out: _Rows) -> None: ...
    def sum(self, gradients: _Rows, sums: _Rows) -> None: ...

class PreparedApply:
    """A batch that is ready to be applied. See Table::PreparedApply in engine/core/table.h."""

    def abort(self) -> None: ...

def are_valid_offsets(offsets: _Ids, ids: int) -> bool:
    """Returns whether `offsets` are valid begins of bags: from 0, ascending, at most `ids`."""

def look_up_together(
    tables: Sequence[Table],
    ids: _Ids,
    begins: Sequence[int],
    rows: _Rows,
    train: bool,
    occurrences: _Occurrences | None = None,
) -> list[Exception | None]:
    """Looks up the ids from begins[i] to begins[i + 1] in tables[i]. rows: (floats,), one table's
    after the other. Returns each table's error or None.
    """

def look_up_each(
    tables: Sequence[Table],
    ids: Sequence[_Ids],
    rows: _Rows,
    train: bool,
    count: bool,
    bags: Sequence[tuple[_Ids, int | None]] | None = None,
) -> list[Exception | None]:
    """Looks up ids[i] in tables[i]. rows: (floats,), one table's after the other. bags: for each
    table, where its bags begin, and an id that is left out; then rows are the sums of the bags.
    Returns each table's error or None.
    """

def apply_each(
    batches: Sequence[tuple[Table, _Ids, _Rows, tuple[_Ids, int | None] | None]],
    global_step: int | None = None,
) -> list[int | Exception | None]:
    """Applies each table's batch by itself: ids, gradients, and bags as in look_up_each. With bags,
    gradients have a row for each bag, otherwise for each id. Returns for each table None, its
    error, or the position of its first gradient that isn't finite, among dim floats for each id.
    """

def prepare_together(
    batches: Sequence[tuple[Table, Sequence[tuple[_Ids, _Rows, _Occurrences | None]]]],
    scale: float,
) -> list[PreparedApply | Exception]:
    """Prepares each table's batch, given in parts. The gradients of several parts are multiplied by
    `scale`; a single part is used as it is, and must outlive the PreparedApply. Returns each
    table's PreparedApply or error.
    """

def commit_together(prepared: Sequence[PreparedApply], global_step: int | None = None) -> None: ...

class DeviceMemory:
    """A piece of a GPU's memory, which is used on the GPU's default stream."""

    def __init__(self, gpu: tuple[str, str, str], bytes: int) -> None: ...
    def address(self) -> int: ...
    def write(self, array: NDArray[np.uint8]) -> None: ...
    def read(self, array: NDArray[np.uint8]) -> None: ...
    # Orders work put on `stream` from now on behind the work on the default stream.
    def come_before(self, stream: int) -> None: ...

def described(array: object) -> tuple[int, tuple[int, ...], str, int, int, int]:
    """Describes a C-contiguous DLPack array: its address, shape, the letter of its type ("i", "u",
    "f" or "?") and its bits, the type of its device, and the device's number."""

def to_dlpack(
    owner: object,
    address: int,
    shape: list[int],
    is_float: bool,
    device_type: int,
    device_id: int,
) -> Any:
    """Returns a DLPack capsule of a float32 or int64 array."""

class Table:
    """One partition of an embedding variable. See engine/core/table.h."""

    def __init__(
        self,
        *,
        name: str,
        dim: int,
        default_values: _Rows,
        optimizer: str,
        optimizer_params: dict[str, float],
        tiers: list[tuple[str, str | None, int | None]],
        cache_strategy: str = "LFU",
        # filter_freq; and for a sketch: max_element_size, false_positive_probability, counter_bits
        filter: tuple[int, tuple[int, float, int] | None] | None = None,
        no_permission_value: float = 0.0,
        # direct_io, io_scheme ("auto", "io_uring" or "pread"), file_bytes, buffer_bytes
        ssd_hash: tuple[bool, str, int, int] = (False, "auto", 67108864, 4194304),
        keeps_rows: bool = False,
        devices: list[DeviceTuple | None] = [],
        partition_count: int = 1,
        # for a tier of HBM: its device's name, the NVRTC library, the folder of compiled kernels
        gpu: tuple[str, str, str] = ("", "", ""),
    ) -> None: ...
    def lookup(
        self,
        ids: _Ids,
        out: _Rows,
        train: bool = False,
        occurrences: NDArray[np.uint32] | None = None,
        count: bool = True,
    ) -> None: ...
    # The next four need an HBM tier. Returns the turn of the next batch that is prefetched.
    def next_turn(self) -> int: ...
    def prefetch(self, ids: _Ids, turn: int) -> None: ...
    def forget_prefetched(self) -> None: ...
    def synchronize(self) -> None: ...
    # Returns the flat index of the first gradient that isn't finite; then nothing was applied.
    def apply_if_finite(
        self, ids: _Ids, grads: _Rows, global_step: int | None = None
    ) -> int | None: ...
    def lookup_tier(self, ids: _Ids) -> NDArray[np.int32]: ...
    def frequency(self, ids: _Ids) -> NDArray[np.int64]: ...
    def version(self, ids: _Ids) -> NDArray[np.int64]: ...
    def size(self) -> int: ...
    def keys(self, first: int, last: int) -> _Ids: ...
    def export(
        self, skip_damaged: bool = False, keys: _Ids | None = None
    ) -> tuple[_Ids, _Rows, NDArray[np.int64], NDArray[np.int64], list[_Rows]]: ...
    def stats(self) -> dict[str, Any]: ...
    def find_damaged(self) -> _Ids: ...
    def drop(self, keys: _Ids) -> int: ...
    def put(
        self,
        keys: _Ids,
        values: _Rows,
        with_slots: bool,
        frequencies: NDArray[np.uint32] | None,
        version: int,
    ) -> None: ...
    def evict(self, least_version: int | None, least_half_square: float | None) -> int: ...
    # Counts an apply whose batch is left out; nothing else changes.
    def leave_out_apply(self) -> None: ...
    def apply_count(self) -> int: ...
    def advance_apply_count(self, at_least: int) -> None: ...
    def learning_rate(self) -> float: ...
    def set_learning_rate(self, learning_rate: float) -> None: ...
    def drain(self) -> None: ...
    def start_recording(self, recording: Recording, number: int) -> None: ...
    def stop_recording(self, recording: Recording) -> None: ...
    def close(self) -> None: ...

# Puts the look-ups of one step on a stream, given by its handle, of the device of the tables' HBM
# tiers. A batch: a variable's partitions, the address of ids, their number, the address of out.
def lookup_on_device(
    batches: list[tuple[list[Table], int, int, int]], stream: int, train: bool, count: bool
) -> None: ...

# Puts the updates of one step on a stream. A batch: partitions; the address of ids, their number;
# the address of gradients, their number of rows, and the address (0 for none) of the int64 row of
# each id; the addresses of the int64 arrays kept and refused (0 for none), the reasons, and the
# address of left_out, as of refused; see core/update/batch_conditions.h.
def apply_on_device(
    batches: list[tuple[list[Table], int, int, int, int, int, int, int, list[str], int]],
    stream: int,
    global_step: int | None = None,
) -> None: ...

# Prefetches the batch whose ids lie at an address; `turns` has a turn for each partition.
def prefetch_on_device(
    partitions: list[Table], ids: int, count: int, stream: int, turns: list[int]
) -> None: ...

class Save:
    def begin(self, waiting_keys: bool) -> None: ...
    def write(self, skip_damaged: bool) -> dict[str, Any]: ...
    def stop(self) -> None: ...
    def abandon(self) -> None: ...

def prepare_save(
    table: Table,
    *,
    path: str,
    save_id: bytes,
    partition: int,
    partition_count: int,
    incremental: bool,
    least_version: int | None,
    least_half_square: float | None,
) -> Save: ...
def save_succeeded(table: Table, number: int) -> None: ...
def sketch_shape(table: Table) -> tuple[int, int, int] | None: ...
def verify_rows(path: str, partition_count: int) -> dict[str, Any]: ...
def count_rows(chain: list[list[str]], partition_count: int) -> list[int]: ...
def restore_table(
    table: Table,
    *,
    chain: list[list[str]],
    partition: int,
    partition_count: int,
    apply_count: int,
    beta1_power: float,
    beta2_power: float,
    learning_rate: float,
    clock: int,
    waiting_keys: bool,
) -> None: ...
def crc32c(data: bytes) -> int: ...
def begin_persist(
    table: Table,
    *,
    path: str,
    checkpoint_id: bytes,
    partition: int,
    partition_count: int,
    waiting_keys: bool,
) -> dict[str, Any]: ...
def finish_persist(table: Table, number: int, checkpoint_id: bytes) -> None: ...
def drop_persisted(table: Table, number: int) -> None: ...
def persisted(table: Table) -> list[tuple[int, bytes, int]]: ...
def should_persist(table: Table) -> bool: ...
def is_pool_short(table: Table) -> bool: ...
def awaits_restore(table: Table) -> bool: ...
def await_restore(table: Table) -> None: ...
def discard_persisted(table: Table) -> None: ...
def restore_persisted(
    table: Table,
    *,
    number: int,
    chain: list[list[str]],
    partition: int,
    partition_count: int,
    apply_count: int,
    beta1_power: float,
    beta2_power: float,
    learning_rate: float,
    clock: int,
    waiting_keys: bool,
) -> None: ...
def kept_rows(table: Table) -> list[bytes]: ...
def take_over_kept_rows(table: Table, id: bytes | None, keep_as: bytes) -> None: ...
def keep_no_rows(table: Table, id: bytes) -> None: ...
def keep_rows(table: Table) -> None: ...
def drop_older_rows(table: Table) -> None: ...
