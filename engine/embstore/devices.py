"""How rows of a tier are touched, for those who price it."""

from __future__ import annotations

import enum

__all__ = ["Access"]


class Access(enum.IntEnum):
    """How bytes of a tier are touched."""

    LOAD = 0  # random reads of whole or part rows into the CPU
    UPDATE = 1  # load + store in place, left to the CPU's caches to write back
    STORE = 2  # a row stored anew, left to the caches
    STORE_FLUSHED = 3  # stored and written back line by line (clwb), in place or not
    STORE_STREAMED = 4  # non-temporal stores
    FILE_READ = 5  # one read call on a file, of `size` bytes (random)
    FILE_WRITE = 6  # one write call on a file (appended, sequential)
