"""The number of threads of the process that share a large batch."""

from __future__ import annotations

from embstore import _core
from embstore.table import checks

__all__ = ["get_num_threads", "set_num_threads"]

_MAX_THREADS = 1024


def set_num_threads(count: int) -> None:
    """Sets how many threads share a large look-up, update or restore, the caller's included.

    count: 1 to 1024; holds for the whole process, from the next call on. The default is the
        environment variable OMP_NUM_THREADS, else the number of processors that the process may
        use, in either case at most 16.

    Rows and their updates are the same to the last bit for every count. One thread does an update
    of fewer than 4,096 ids, a look-up of fewer than 8,192, and all work of a variable whose
    accesses are recorded or whose devices are paced, so that its times add up.
    """
    _core.set_num_threads(checks.integer("count", count, at_least=1, at_most=_MAX_THREADS))


def get_num_threads() -> int:
    """Returns the greatest number of threads that share a large batch."""
    return _core.get_num_threads()
