"""The error of a worker's function, on its way to the process that called `run`."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.errors import WorkerFailedError

__all__ = ["WorkerFailure"]


@dataclass(frozen=True)
class WorkerFailure:
    """An error that a worker's function raised, in a form that can always be unpickled.

    description: the error's type and message. traceback: the worker's. pickled: the error; None if
    it would change when it is pickled, for example because its `__init__` takes other arguments.

    Ray reports a process that exits as one that died, and an error that can't be unpickled too.
    """

    description: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> WorkerFailure:
        description = "".join(traceback.format_exception_only(type(error), error)).strip()
        return cls(description, traceback.format_exc(), _pickled(error))

    def error(self, rank: int) -> Exception:
        """Returns the original error if it could be pickled, else a WorkerFailedError."""
        described = WorkerFailedError(f"worker {rank}: {self.description}\n\n{self.traceback}")
        error = None if self.pickled is None else _unpickled(self.pickled)
        if error is None:
            return described
        error.__cause__ = described
        return error


def _pickled(error: BaseException) -> bytes | None:
    """Returns the pickled error, or None if it can't be pickled unchanged, or is no Exception:
    SystemExit, for example, would end the caller of `run`.
    """
    if not isinstance(error, Exception):
        return None
    pickle: Any = ray_cluster.library().cloudpickle
    try:
        pickled: bytes = pickle.dumps(error)
    except Exception:
        return None
    again = _unpickled(pickled)
    same = type(again) is type(error) and str(again) == str(error)
    return pickled if same else None


def _unpickled(pickled: bytes) -> Exception | None:
    try:
        error = ray_cluster.library().cloudpickle.loads(pickled)
    except Exception:
        return None
    return error if isinstance(error, Exception) else None
