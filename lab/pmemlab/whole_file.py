"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_folder", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """As `Path.write_text`, but whoever reads the file finds all of it, or what was there before.

    A link stays one, and what is written to a device or a pipe goes there.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Makes what was created, renamed and removed in the folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
