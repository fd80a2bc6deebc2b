"""Checkpoints of a run that may be cut short, and the lines that tell of them.

Whoever cuts a run reads on its stderr what had been kept by then, and what the next one goes on
from.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import embstore as es

__all__ = ["Keeping", "kept_step", "resumed_step"]

_KEPT = re.compile(r"kept: step (\d+)")
_RESUMED = re.compile(r"goes on from: step (\d+)")


@dataclass(frozen=True)
class Keeping:
    """Saves of variables. folder: made if its parent exists. every: steps between two saves."""

    folder: Path
    every: int

    def restore(self, variables: Sequence[es.EmbeddingVariable]) -> int:
        """Put the newest save back, where there is one; return the steps that were done by then.

        Raises EmbStoreError for a save that can't be read: a run must not begin anew in silence.
        """
        import embstore as es

        if not any(self.folder.glob("save-*")):
            return 0
        steps = es.restore(self.folder, variables)
        _tell(f"goes on from: step {steps}")
        return steps

    def keep(self, variables: Sequence[es.EmbeddingVariable], steps: int) -> None:
        """Save, if it is time, what `steps` steps have come to. Raises EmbStoreError."""
        import embstore as es

        if steps % self.every == 0:
            es.save(self.folder, variables, steps)
            _tell(f"kept: step {steps}")


def kept_step(line: str) -> int | None:
    """The step that a line of a workload says was kept."""
    return _step(_KEPT, line)


def resumed_step(line: str) -> int | None:
    """The step that a line of a workload says it goes on from."""
    return _step(_RESUMED, line)


def _step(pattern: re.Pattern[str], line: str) -> int | None:
    match = pattern.fullmatch(line)
    return int(match[1]) if match else None


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
