"""Every error that embstore raises on purpose; all of them are an `EmbStoreError`.

The native core raises these classes too: the binding maps each native kind to one of them.
"""

from collections.abc import Sequence

__all__ = [
    "CheckpointError",
    "ClosedError",
    "DamagedRowsError",
    "DeviceLostError",
    "EmbStoreError",
    "ForkedError",
    "InUseError",
    "InvalidArgumentError",
    "MissingDeviceError",
    "MissingLibraryError",
    "ShardLostError",
    "StorageError",
    "StoreFullError",
    "UnsupportedError",
    "WorkerFailedError",
    "WorkerLostError",
]


class EmbStoreError(Exception):
    """Anything that embstore refuses or can't do."""


class InvalidArgumentError(EmbStoreError, ValueError):
    """An argument can't be used as given; the message names it and says what would do."""


class UnsupportedError(EmbStoreError, NotImplementedError):
    """A legal request that this version can't serve yet."""


class StoreFullError(EmbStoreError):
    """No tier has room for the new rows, or there is none for a tier; nothing was changed."""


class MissingLibraryError(EmbStoreError, ImportError):
    """A library that the request needs isn't installed."""


class MissingDeviceError(EmbStoreError):
    """The machine has no device or memory node of the kind that the request needs."""


class StorageError(EmbStoreError, OSError):
    """The operating system refused a file or a mapping; the message names the path."""


class InUseError(StorageError):
    """Another variable or process has the files, which the message names. They are free again when
    it has closed them, or has ended: some seconds after it was killed, while the kernel clears up.
    """


class DamagedRowsError(StorageError):
    """Rows that a medium doesn't give back as they were written; all others are as they were.

    keys: of those rows.
    """

    def __init__(self, message: str, keys: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.keys = list(keys)


class CheckpointError(StorageError):
    """A checkpoint can't be restored: a file is missing, damaged, or doesn't fit the variable."""


class ClosedError(EmbStoreError):
    """The variable was used after `close()`."""


class DeviceLostError(EmbStoreError):
    """A GPU failed, and what its memory held is gone; the process can't use it any more."""


class ForkedError(EmbStoreError):
    """The variable belongs to the process that this one was forked from, and to no other."""


class ShardLostError(EmbStoreError):
    """A shard in another process can't be reached any more, or what it did last isn't known.

    What it learnt since the last save is lost, and it never comes back by itself: make the variable
    anew, and restore it.
    """


class WorkerFailedError(EmbStoreError):
    """The function of a worker ended by an error of its own; the message has it and its traceback.

    Raised where the error can't be brought to this process as it was, and as the cause of one that
    was. `embstore.cluster.run` doesn't try again.
    """


class WorkerLostError(EmbStoreError):
    """A worker that shares variables with this one is gone, or has taken up another job.

    Start the job again from its last checkpoint (`embstore.cluster.run` does so by itself).
    """
