"""How a worker's function failed by itself, as it comes to the process that called `run`."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from embstore.cluster.ray import cluster as ray_cluster
from embstore.errors import WorkerFailedError

__all__ = ["WorkerFailure"]


@dataclass(frozen=True)
class WorkerFailure:
    """told: the error's type and message. traceback: of the worker. pickled: the error; None where
    it isn't the same any more once it was pickled, as one whose `__init__` takes other arguments.

    A process that ends looks to Ray like one that died, and an error that can't be unpickled too.
    """

    told: str
    traceback: str
    pickled: bytes | None

    @classmethod
    def of(cls, error: BaseException) -> WorkerFailure:
        told = "".join(traceback.format_exception_only(type(error), error)).strip()
        return cls(told, traceback.format_exc(), _pickled(error))

    def error(self, rank: int) -> Exception:
        """What is raised of it: the error itself where that can be."""
        described = WorkerFailedError(f"worker {rank}: {self.told}\n\n{self.traceback}")
        error = None if self.pickled is None else _unpickled(self.pickled)
        if error is None:
            return described
        error.__cause__ = described
        return error


def _pickled(error: BaseException) -> bytes | None:
    """Only exceptions: SystemExit and its like would end whoever called `run`."""
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
