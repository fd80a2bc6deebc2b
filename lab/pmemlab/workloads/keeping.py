"""Checkpoints of a run that may be cut short, and the lines that tell of them.

Whoever cuts a run reads on its stderr what had been trained and kept by then, and what the next one
goes on from.
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
    "Keeping",
    "Resumed",
    "demand_steps_left",
    "kept_step",
    "resumed_from",
    "tell_kept",
    "tell_resumed",
    "tell_trained",
]

_KEPT: Final = re.compile(r"kept: step (\d+)")
_RESUMED: Final = re.compile(r"goes on from: step (\d+), sha256 ([0-9a-f]{64})")


@dataclass(frozen=True)
class Resumed:
    """The checkpoint that a run goes on from.

    sha256: of all that was read back from it, as the run's checksums are.
    """

    step: int
    sha256: str


@dataclass(frozen=True)
class Keeping:
    """Saves of variables. folder: made if its parent exists. every: steps between two saves."""

    folder: Path
    every: int

    def restore(self, variables: Sequence[es.EmbeddingVariable]) -> int:
        """Put the newest save back, where there is one; return the steps that were done by then.

        `tell_resumed` is for the caller, who can tell what is there now.
        Raises EmbStoreError for a save that can't be read: a run must not begin anew in silence.
        """
        import embstore as es

        if not any(self.folder.glob("save-*")):
            return 0
        return es.restore(self.folder, variables)

    def keep(self, variables: Sequence[es.EmbeddingVariable], steps: int) -> bool:
        """Save, if it is time, what `steps` steps have come to; return whether it was time.

        Raises EmbStoreError.
        """
        import embstore as es

        if steps % self.every:
            return False
        es.save(self.folder, variables, steps)
        tell_kept(steps)
        return True


def demand_steps_left(kept_in: Path, done: int, steps: int) -> None:
    """Raises DataError where a checkpoint has all the steps that are asked for."""
    from pmemlab.workloads.batches import DataError  # brings NumPy

    if done >= steps:
        raise DataError(
            f"{kept_in}: holds a checkpoint of step {done}, and only {steps} are asked for"
        )


def tell_trained(steps: int) -> None:
    """Prints the number of trained steps, at which a power cut may be due."""
    _tell(f"trained: step {steps}")


def tell_kept(steps: int) -> None:
    """REQUIRES: the checkpoint is on the medium."""
    _tell(f"kept: step {steps}")


def tell_resumed(resumed: Resumed) -> None:
    _tell(f"goes on from: step {resumed.step}, sha256 {resumed.sha256}")


def kept_step(line: str) -> int | None:
    """The step that a line of a workload says was kept."""
    match = _KEPT.fullmatch(line)
    return int(match[1]) if match else None


def resumed_from(line: str) -> Resumed | None:
    """What a line of a workload says it goes on from."""
    match = _RESUMED.fullmatch(line)
    return Resumed(int(match[1]), match[2]) if match else None


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
