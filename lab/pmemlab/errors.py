"""The one hierarchy of the lab's errors.

A `LabError` says that the lab broke: a machine did not start, died, or is not what it says it
is. It is never the verdict of a scenario; whoever runs scenarios keeps the two apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "EXEC_LAB_ERROR_STATUS",
    "CommandTimeoutError",
    "LabError",
    "MachineDiedError",
    "Mismatch",
    "MissingRequirementError",
    "ProofError",
    "ProvisionError",
    "TopologyError",
]

EXEC_LAB_ERROR_STATUS = 125
"""What `pmemlab exec` ends with where the lab broke, as `docker run` does."""


class LabError(Exception):
    """Base of everything that the lab itself can get wrong."""


class TopologyError(LabError, ValueError):
    """A topology is unknown, or its file is malformed; the message names file and field."""


class MissingRequirementError(LabError):
    """Something that this computer lacks; the message names it and the command that gets it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; to get it: {remedy}")
        self.what = what
        self.remedy = remedy


class MachineDiedError(LabError):
    """The machine is gone, or never came up. `console` is the tail of its serial console."""

    def __init__(self, message: str, console: str = "") -> None:
        tail = f"\n--- end of its serial console ---\n{console}" if console else ""
        super().__init__(message + tail)
        self.console = console


class ProvisionError(LabError):
    """A provisioning command of a topology failed in the machine."""


class CommandTimeoutError(LabError):
    """A command in a machine ran past its timeout and was killed, with all its children."""

    def __init__(self, argv: Sequence[str], timeout: float, stdout: str, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)}: still running after {timeout:g} s, killed")
        self.stdout = stdout
        self.stderr = stderr


@dataclass(frozen=True)
class Mismatch:
    """One fact that does not hold. `found` is None where it could not be read at all."""

    fact: str
    expected: object
    found: object


class ProofError(LabError):
    """A machine is not what its topology says, so it was not handed out."""

    def __init__(
        self, machine: str, mismatches: Sequence[Mismatch], facts: Mapping[str, object]
    ) -> None:
        lines = [f"{m.fact}: expected {m.expected!r}, found {m.found!r}" for m in mismatches]
        super().__init__(f"machine {machine} is not what it says:\n  " + "\n  ".join(lines))
        self.machine = machine
        self.mismatches = tuple(mismatches)
        self.facts = dict(facts)
