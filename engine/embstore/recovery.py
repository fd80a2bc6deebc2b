"""What a variable took over from the process before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["RecoveryReport", "combined"]


@dataclass(frozen=True)
class RecoveryReport:
    """What files that an earlier process kept had in them, and what is known to be missing.

    files: of rows, read back.
    rows: that were found, each key's newest one.
    superseded: records of rows of which a newer one was found, or that were removed since.
    torn: records that a killed process was writing, some of them perhaps copies of rows that are
        whole elsewhere; skipped.
    damaged: others whose checksum is wrong, or that are cut off; skipped. An older record of such a
        row may have been found in its place.
    unwritten: records that a killed process had made and not written out whole. A row that went
        down to the files several times counts each time, and a batch of removed keys counts too; so
        at most so many rows are missing or older for that reason. After a clean close it is 0;
        after a power cut it is a hint, for what was written out may not have reached the medium;
        None where the file that tells it is missing. Rows that lay in the tiers above alone, and
        what they had learnt there, are missing after a kill as well, and not counted.
    first_damage: file and place of the first record that was torn or damaged; "" if none was.
    """

    files: int
    rows: int
    superseded: int
    torn: int
    damaged: int
    unwritten: int | None
    first_damage: str


def combined(parts: Sequence[RecoveryReport]) -> RecoveryReport:
    """The report on all partitions of a variable."""
    unwritten = [part.unwritten for part in parts if part.unwritten is not None]
    return RecoveryReport(
        files=sum(part.files for part in parts),
        rows=sum(part.rows for part in parts),
        superseded=sum(part.superseded for part in parts),
        torn=sum(part.torn for part in parts),
        damaged=sum(part.damaged for part in parts),
        unwritten=sum(unwritten) if len(unwritten) == len(parts) else None,
        first_damage=next((part.first_damage for part in parts if part.first_damage), ""),
    )
