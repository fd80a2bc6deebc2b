"""On which CPUs a measurement is made."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["on_cpus"]


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """This thread runs there alone, and so do threads and processes that are started from it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
