"""Device files of this computer's own, as `pmemlab model measure` writes them."""

from __future__ import annotations

import argparse
from pathlib import Path

from pmemlab.model.devices.measuring.command import measure_device

__all__ = ["measure_here"]


def measure_here(
    what: str,
    file: Path,
    seconds: float,
    size_bytes: int | None,
    *,
    page_cache: bool = False,
) -> Path:
    """The file, which was written; the device has its stem for a name.

    what: a node or a folder. seconds: a figure. size_bytes: to measure; None: what measure-device
    takes. page_cache: of a disk, through it. Raises MeasuringError.
    """
    return measure_device(
        argparse.Namespace(
            what=what,
            output=file,
            seconds=seconds,
            page_cache=page_cache,
            size=None if size_bytes is None else str(size_bytes),
            last_level_cache=None,
            media_line=None,
            name=file.stem,
            title=None,
            force=True,
        )
    )
