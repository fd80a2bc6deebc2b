"""Restricts a measurement to some CPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = ["on_cpus"]


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """Restricts this thread, and threads and processes that it starts, to these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
