"""How many threads of the process work on a large batch."""

from __future__ import annotations

from embstore import _core
from embstore.table import checks

__all__ = ["get_num_threads", "set_num_threads"]

_MOST = 1024


def set_num_threads(count: int) -> None:
    """Has so many threads, of which the caller is one, share a large look-up, update or restore.

    count: 1 to 1024, for the whole process, from the next call on. At first as many as the
        environment variable OMP_NUM_THREADS says, or else as the process may use processors, in
        either case 16 at most.

    Rows and their updates are the same to the last bit, however many threads share them. An update
    of fewer than 4,096 ids and a look-up of fewer than 8,192 are one thread's. So are all of a
    variable whose accesses are recorded, or whose devices are paced: their times are to add up.
    """
    _core.set_num_threads(checks.integer("count", count, at_least=1, at_most=_MOST))


def get_num_threads() -> int:
    """How many threads share a large batch at most."""
    return _core.get_num_threads()
