"""What is kept between runs: kernels, and what was learnt about KVM.

Entries are published by a rename, so a reader sees a whole entry or none, whenever a writer dies.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pmemlab.errors import LabError

__all__ = ["build_once", "cache_folder"]


def cache_folder() -> Path:
    """$PMEMLAB_CACHE, or pmemlab in $XDG_CACHE_HOME, or ~/.cache/pmemlab. Made if need be."""
    own = os.environ.get("PMEMLAB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(own) if own else Path(base) / "pmemlab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cache folder {folder}: {error.strerror}; set PMEMLAB_CACHE") from error
    return folder.absolute()


@contextmanager
def build_once() -> Iterator[Path]:
    """Hold the cache's lock, and give a scratch folder on the same file system.

    Whoever waited for the lock finds what the holder before it published, so the caller looks
    again before it builds. Scratch folders that killed builders left are removed here.
    """
    folder = cache_folder()
    try:
        lock_file = (folder / "lock").open("w")
    except OSError as error:  # another user's
        raise LabError(f"cache folder {folder}: {error.strerror}; set PMEMLAB_CACHE") from error
    with lock_file as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for stale in folder.glob("scratch-*"):
            shutil.rmtree(stale, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=folder))
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
