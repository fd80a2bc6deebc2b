# Yardsticks: simple stores to compare tables with, and measurements of devices. Arrays are
# C-contiguous; nothing is converted silently.
import enum
from typing import overload

import numpy as np
from numpy.typing import NDArray

_Ids = NDArray[np.int64]
_Rows = NDArray[np.float32]

class HandWrittenTable:
    """A table in memory for one thread. See engine/bench/hand_written_table.h."""

    def __init__(self, capacity_rows: int, dim: int) -> None: ...
    def insert(self, ids: _Ids, rows: _Rows) -> None: ...
    def lookup(self, ids: _Ids, out: _Rows) -> None: ...
    def adagrad(self, ids: _Ids, grads: _Rows, learning_rate: float) -> None: ...

class LevelDbStore:
    """Rows in plain LevelDB. See engine/bench/leveldb_store.h."""

    def __init__(self, directory: str, row_floats: int) -> None: ...
    @property
    def row_floats(self) -> int: ...
    def write(self, ids: _Ids, rows: _Rows) -> None: ...
    def read(self, ids: _Ids, rows: _Rows) -> None: ...
    def close(self) -> None: ...

class TierAlone:
    """A tier in files without a table. See engine/bench/tier_alone.h."""

    def __init__(
        self,
        kind: str,
        directory: str,
        dim: int,
        slot_count: int,
        row_count: int,
        direct: bool,
    ) -> None: ...
    @property
    def row_floats(self) -> int: ...
    def write(self, ids: _Ids, rows: _Rows) -> None: ...
    def read(self, ids: _Ids, rows: _Rows) -> None: ...
    def drain(self) -> None: ...
    def file_bytes(self) -> int: ...
    def close(self) -> None: ...

class MemoryOperation(enum.Enum):
    LOAD = 0
    STORE = 1
    STORE_FLUSHED = 2
    STORE_STREAMED = 3

class MemoryYardstick:
    """Measures a memory. See engine/bench/memory_yardstick.h."""

    @overload
    def __init__(self, bytes: int, node: int) -> None: ...
    @overload
    def __init__(self, bytes: int, directory: str) -> None: ...
    @property
    def is_synced(self) -> bool: ...
    def mb_per_s(
        self,
        operation: MemoryOperation,
        random: bool,
        access_bytes: int,
        threads: int,
        seconds: float,
    ) -> float: ...
    def latency_ns(self, random: bool, seconds: float) -> float: ...

class FileYardstick:
    """Measures a file system's disk. See engine/bench/file_yardstick.h."""

    def __init__(self, bytes: int, directory: str, direct: bool) -> None: ...
    def mb_per_s(
        self, write: bool, random: bool, request_bytes: int, threads: int, seconds: float
    ) -> float: ...
