"""The errors that embstore raises on purpose; every class derives from `EmbStoreError`.

The native core raises these classes too: the binding maps each native kind to a class.
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
    """The base class: a request that embstore refuses or can't fulfil."""


class InvalidArgumentError(EmbStoreError, ValueError):
    """An argument can't be used as given; the message names it and says which values are valid."""


class UnsupportedError(EmbStoreError, NotImplementedError):
    """The request is legal, but this version can't serve it yet."""


class StoreFullError(EmbStoreError):
    """No tier has room for the new rows, or the medium has no room for a tier; nothing was
    changed.
    """


class MissingLibraryError(EmbStoreError, ImportError):
    """A library that the request needs isn't installed."""


class MissingDeviceError(EmbStoreError):
    """The machine has no device or memory node of the kind that the request needs."""


class StorageError(EmbStoreError, OSError):
    """The operating system refused a file or a mapping; the message names the path."""


class InUseError(StorageError):
    """Another variable or process uses the files, which the message names. They are free again once
    their owner has closed them or ended. After a kill that takes some seconds, while the kernel
    clears up.
    """


class DamagedRowsError(StorageError):
    """A medium returned other bytes of some rows than were written; all other rows are intact.

    keys: the keys of the damaged rows.
    """

    def __init__(self, message: str, keys: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.keys = list(keys)


class CheckpointError(StorageError):
    """A checkpoint can't be restored: a file is missing, damaged, or doesn't fit the variable."""


class ClosedError(EmbStoreError):
    """The variable was used after `close()`."""


class DeviceLostError(EmbStoreError):
    """A GPU failed and the contents of its memory are lost; the process can't use the GPU again."""


class ForkedError(EmbStoreError):
    """The variable was inherited by fork; only the process that made it can use it."""


class ShardLostError(EmbStoreError):
    """A shard in another process can't be reached, or may not have done the last request.

    Training since the last save is lost, and the shard never comes back by itself: make the
    variable anew, and restore it.
    """


class WorkerFailedError(EmbStoreError):
    """A worker's function raised an error; the message has that error and its traceback.

    Raised if the worker's error can't be sent to this process; if it can, that error is raised,
    with this one as its cause. `embstore.cluster.run` doesn't try again.
    """


class WorkerLostError(EmbStoreError):
    """A worker that shares variables with this one is gone, or has joined another job.

    Start the job again from its last checkpoint (`embstore.cluster.run` does so by itself).
    """
