"""The cache that outlives runs: kernels, and the results of KVM trials.

Entries are published by a rename, so a reader sees a whole entry or none, even if a writer dies.
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
    """Returns $PMEMLAB_CACHE, or pmemlab in $XDG_CACHE_HOME, or ~/.cache/pmemlab, and makes it."""
    chosen = os.environ.get("PMEMLAB_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(chosen) if chosen else Path(base) / "pmemlab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"cache folder {folder}: {error.strerror}; set PMEMLAB_CACHE") from error
    return folder.absolute()


@contextmanager
def build_once() -> Iterator[Path]:
    """Holds the cache's lock, and yields a scratch folder on the same file system.

    While the caller waited for the lock, its entry may have been published, so the caller looks
    again before it builds. Removes scratch folders of killed builders.
    """
    folder = cache_folder()
    try:
        lock_file = (folder / "lock").open("w")
    except OSError as error:  # owned by another user
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
