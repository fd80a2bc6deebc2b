"""Checkpoints of a run that may be cut short, and the lines on stderr that report them.

The program that cuts a run reads in these lines which steps were trained and saved by then, and
which checkpoint the next run resumes from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import embstore as es

__all__ = [
    "PeriodicSaves",
    "ResumePoint",
    "check_steps_left",
    "parse_resumed",
    "parse_saved_step",
    "report_resumed",
    "report_saved",
    "report_trained",
]

_KEPT: Final = re.compile(r"kept: step (\d+)")
_RESUMED: Final = re.compile(r"goes on from: step (\d+), sha256 ([0-9a-f]{64})")


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that a run resumes from.

    sha256: over everything read back from it, computed like the run's checksums.
    """

    step: int
    sha256: str


@dataclass(frozen=True)
class PeriodicSaves:
    """Regular saves of variables. folder: created if its parent exists. every: steps between two
    saves.
    """

    folder: Path
    every: int

    def restore(self, variables: Sequence[es.EmbeddingVariable]) -> int:
        """Restore the newest save, if there is one; return the number of steps done by then.

        The caller must call `report_resumed`, as only the caller knows the restored content's
        checksum. Raises EmbStoreError for a save that can't be read: a run must not silently start
        over.
        """
        import embstore as es

        if not any(self.folder.glob("save-*")):
            return 0
        return es.restore(self.folder, variables)

    def save_if_due(self, variables: Sequence[es.EmbeddingVariable], steps: int) -> bool:
        """Save the state after `steps` steps if a save is due; return whether one was due.

        Raises EmbStoreError.
        """
        import embstore as es

        if steps % self.every:
            return False
        es.save(self.folder, variables, steps)
        report_saved(steps)
        return True


def check_steps_left(kept_in: Path, done: int, steps: int) -> None:
    """Raises DataError if the checkpoint already has all the requested steps."""
    from pmemlab.workloads.batches import DataError  # imports NumPy

    if done >= steps:
        raise DataError(
            f"{kept_in}: holds a checkpoint of step {done}, and only {steps} are asked for"
        )


def report_trained(steps: int) -> None:
    """Prints the number of trained steps; a scenario may cut the power at this line."""
    _print_line(f"trained: step {steps}")


def report_saved(steps: int) -> None:
    """Prints that a checkpoint was saved. REQUIRES: the checkpoint is on the medium."""
    _print_line(f"kept: step {steps}")


def report_resumed(resumed: ResumePoint) -> None:
    _print_line(f"goes on from: step {resumed.step}, sha256 {resumed.sha256}")


def parse_saved_step(line: str) -> int | None:
    """Returns the step of a line that `report_saved` printed; None for any other line."""
    match = _KEPT.fullmatch(line)
    return int(match[1]) if match else None


def parse_resumed(line: str) -> ResumePoint | None:
    """Parses a line that `report_resumed` printed; returns None for any other line."""
    match = _RESUMED.fullmatch(line)
    return ResumePoint(int(match[1]), match[2]) if match else None


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
