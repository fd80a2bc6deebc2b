"""Where the compiled library is kept between runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from powercut.errors import PowercutError

__all__ = ["cache_folder", "publish"]


def cache_folder() -> Path:
    """$POWERCUT_CACHE, or powercut in $XDG_CACHE_HOME, or ~/.cache/powercut. Made if need be."""
    own = os.environ.get("POWERCUT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(own) if own else Path(base) / "powercut"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PowercutError(
            f"cache folder {folder}: {error.strerror}; set POWERCUT_CACHE"
        ) from error
    return folder.absolute()


@contextmanager
def publish(target: Path) -> Iterator[Path]:
    """Give an empty folder, and rename it to `target` when the block ends without an error.

    Readers see the whole folder or none. Of two processes that publish the same, the first wins.
    """
    unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        yield unfinished
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
